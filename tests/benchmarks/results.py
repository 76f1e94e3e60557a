"""What was measured: medians of runs, ratios against a baseline of the same minutes, a table and a JSON file."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol, TypeVar

from rich.table import Table

REACHED: Final = 0.95
"""The least part of its rate that a run has to reach."""


class Judged(Protocol):
    """What one run found."""

    @property
    def is_valid(self) -> bool:
        """Return whether it says something of Millrace, and not of what else the machine or an emulator did."""


Run = TypeVar("Run", bound=Judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One figure: a value for each run, and the baseline's beside it where there is one."""

    name: str
    unit: str
    runs: Sequence[float]
    baseline_runs: Sequence[float] = ()
    note: str = ""
    """What the figure is of, where its name does not say it all."""
    at_least: float | None = None
    """The target, where more is better."""
    below: float | None = None
    """The target, where less is better."""
    each_run: bool = False
    """Whether every run has to be below the target, and not the median alone."""
    times_baseline: float | None = None
    """The least ratio to the baseline, where that is the target."""
    date: str = ""
    """The day on which it was measured."""
    load: float | None = None
    """The machine's load average when that part of the benchmark began."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError(f"{self.name}: nothing was measured")
        if not all(math.isfinite(run) for run in (*self.runs, *self.baseline_runs)):
            raise ValueError(f"{self.name}: not a number among {[*self.runs, *self.baseline_runs]}")

    @property
    def value(self) -> float:
        """Return the median of the runs."""
        return median(self.runs)

    @property
    def baseline(self) -> float | None:
        """Return the median of the baseline's runs; None without any."""
        return median(self.baseline_runs) if self.baseline_runs else None

    @property
    def ratio(self) -> float | None:
        """Return how many times the baseline it is; None without one, or where the baseline did nothing.

        Runs that stand beside each other in time are compared with each other, so that a machine that is slower for a
        minute is slower for both: it is the median of their ratios. With other numbers of runs, that of the medians.
        """
        if not self.baseline_runs or not all(self.baseline_runs):
            return None
        if len(self.runs) == len(self.baseline_runs):
            return median(run / other for run, other in zip(self.runs, self.baseline_runs, strict=True))
        return self.value / median(self.baseline_runs)

    @property
    def met(self) -> bool | None:
        """Return whether the target is reached; None where there is none."""
        if self.at_least is not None:
            return self.value >= self.at_least
        if self.below is not None:
            return (max(self.runs) if self.each_run else self.value) < self.below
        return None if self.times_baseline is None else self.ratio is not None and self.ratio >= self.times_baseline

    def as_json(self) -> dict[str, Any]:
        """Return the figure as an object of the JSON file."""
        found: dict[str, Any] = {"name": self.name, "value": self.value, "unit": self.unit, "runs": list(self.runs)}
        if self.baseline is not None:
            found |= {"baseline": self.baseline, "baseline_runs": list(self.baseline_runs)}
        if self.ratio is not None:
            found["ratio"] = self.ratio
        if self.at_least is not None or self.below is not None:
            found["target"] = self.at_least if self.at_least is not None else self.below
        if self.each_run:
            found["each_run"] = True
        if self.times_baseline is not None:
            found["target_ratio"] = self.times_baseline
        if self.load is not None:
            found |= {"date": self.date, "load": self.load}
        return found | ({"note": self.note} if self.note else {})


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that this share of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def repeated(run: Callable[[], Run], repeats: int) -> Run:
    """Run once, and so often again at most while what was found is not valid; return the last."""
    found = run()
    while repeats > 0 and not found.is_valid:
        repeats -= 1
        found = run()
    return found


def write_json(path: Path, measured: Sequence[Measured]) -> None:
    """Write the figures, as a list of objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([one.as_json() for one in measured], indent=2) + "\n")


def as_table(measured: Sequence[Measured]) -> Table:
    """Return the figures as a table for the screen."""
    table = Table(title="medians; in brackets the lowest and the highest run", title_justify="left")
    table.add_column("figure", no_wrap=True)
    for column in ("value", "unit", "baseline", "ratio", "target"):
        table.add_column(column, justify="left" if column == "unit" else "right")
    for one in measured:
        spread = "" if len(one.runs) == 1 else f" ({shown(min(one.runs))}-{shown(max(one.runs))})"
        table.add_row(
            one.name + (f"\n  [dim]{one.note}[/dim]" if one.note else ""),
            shown(one.value) + spread,
            one.unit,
            "" if one.baseline is None else shown(one.baseline),
            "" if one.ratio is None else f"{shown(one.ratio)} x",
            _target(one),
        )
    return table


def shown(value: float) -> str:
    """Return a number with about three digits that matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def profile_table(title: str, stages: Mapping[str, tuple[float, float]]) -> Table:
    """Return stages with their microseconds a change, of CPU and of time, those that cost most first."""
    table = Table("stage", title=title, title_justify="left")
    for column in ("CPU us/change", "time us/change"):
        table.add_column(column, justify="right")
    for stage, (cpu, wall) in sorted(stages.items(), key=lambda each: -each[1][0]):
        table.add_row(stage, f"{cpu:.2f}", f"{wall:.2f}" if wall else "")
    table.add_section()
    table.add_row("sum", f"{sum(cpu for cpu, _ in stages.values()):.2f}", "")
    return table


def _target(one: Measured) -> str:
    if one.met is None:
        return ""
    target = f">= {one.times_baseline} x"
    if one.at_least is not None:
        target = f">= {shown(one.at_least)}"
    elif one.below is not None:
        target = f"< {shown(one.below)}{' in each run' if one.each_run else ''}"
    return f"{target} {'met' if one.met else 'missed'}"
