"""`docs/reference/measurements.md` and its pictures, from the figures of `make bench` in `docs/measurements/`."""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.results import shown
from tests.documents.drawings import WIDTH, picture

FILE: Final = "reference/measurements.md"
_DIRECTORY: Final = Path(__file__).resolve().parents[2] / "docs" / "measurements"
_HEAD: Final = """# Measurements

<!-- Made from docs/measurements/{file} by `make docs`; a test fails where they differ. -->

The newest figures of `make bench`: {machine}. The emulators and stand-ins run on the same cores. *Runs* has
the lowest and the highest; *Baseline* its median, and the median of the ratios of neighbours.
*Load* is the load average when that part of the benchmark began, which what was measured just before it raises; older
figures have none. A target is for the median, unless it says *each run*.
[What each figure is](../../tests/benchmarks/README.md), {raw}, and why the targets that are missed are missed:
[decision 0062](../decisions/0062-what-limits-the-speed.md).

![Changes a second](../images/speed-consumer.svg)

![Records for each second of CPU](../images/speed-readers.svg)

![CPU for each change, by the size of the backlog and the number of tables](../images/speed-flat.svg)

| Figure | Median | Runs | Baseline | Target | Day, load |
|---|---|---|---|---|---|
"""


def newest() -> Path:
    """Return the newest file of figures; its name is its date."""
    return max(_DIRECTORY.glob("*.json"))


def text() -> str:
    """Return the page."""
    file, measured = newest(), _read()
    raw = f"[the raw figures](../measurements/{file.name})"
    head = _HEAD.format(file=file.name, machine=measured["machine"], raw=raw)
    notes = [f"`{one['name']}`: {one['note']}" for one in measured["figures"] if one.get("note")]
    lines = "".join(map(_line, measured["figures"]))
    return head + lines + "\nNotes:\n\n" + "".join(f"- {note}\n" for note in notes)


def _read() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(newest().read_text(encoding="utf-8"))
    return found


def _line(one: Mapping[str, Any]) -> str:
    runs = one["runs"]
    spread = "one" if len(runs) == 1 else f"{shown(min(runs))}-{shown(max(runs))}"
    baseline = f"{shown(one['baseline'])}: {shown(one['ratio'])} x" if "ratio" in one else ""
    target = shown(one["target"]) if "target" in one else ""
    target = f"{one['target_ratio']:g} x" if "target_ratio" in one else target
    target += ", each run" if one.get("each_run") else ""
    value = f"{shown(one['value'])} {one['unit']}"
    measured = f"{one['date']}, {one['load']:g}" if "load" in one else one["date"]
    return f"| `{one['name']}` | {value} | {spread} | {baseline} | {target} | {measured} |\n"


Bar = tuple[str, float, bool]
"""A label, a value, and whether it is Millrace's."""


def _bars(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Return a picture of bars, the longest of which takes all the width."""
    most = max(value for _, value, _ in bars)
    parts = [f'<text class="ink title" x="14" y="24">{escape(title)}</text>']
    y = 42
    for label, value, ours in bars:
        width = max(2, round((WIDTH - 28) * value / most))
        parts.append(
            f'<text class="ink" x="14" y="{y + 12}">{escape(label)}</text>'
            f'<text class="quiet" x="{WIDTH - 14}" y="{y + 12}" text-anchor="end">{shown(value)}</text>'
            f'<rect class="box {"ours" if ours else "google"}" x="14" y="{y + 18}" width="{width}" height="12" rx="2"/>'
        )
        y += 42
    parts.append(f'<text class="quiet" x="14" y="{y + 8}">{escape(unit)}</text>')
    return picture(f"{title}: {unit}", y + 22, parts)


class Figures:
    """The newest figures by their names."""

    def __init__(self) -> None:
        self._by_name = {one["name"]: one for one in _read()["figures"]}

    def __call__(self, name: str, what: str = "value") -> float:
        """Return a figure's value, or its baseline's."""
        return float(self._by_name[name][what])


def consumer() -> str:
    """Return the consumer beside its baselines and Google's writer for Java."""
    value = Figures()
    return _bars(
        "The consumer",
        "changes a second",
        [
            ("to accepted, Zipf keys", value("drain.accepted.zipf"), True),
            ("to accepted, uniform keys", value("drain.accepted"), True),
            ("to a query, uniform keys", value("drain.applied"), True),
            ("StreamWriter for Java, from a file", value("peer.java_stream_writer"), False),
            ("pull and append, in Python", value("drain.accepted", "baseline"), False),
            ("subscribe with callbacks, in Python", value("drain.accepted.high_level_subscriber"), False),
        ],
    )


def readers() -> str:
    """Return the readers beside their baselines."""
    value = Figures()
    names = {
        "Spanner": "reader.records_per_cpu_second",
        "Bigtable, whole rows": "bigtable_reader.row.records_per_cpu_second",
        "Bigtable, change log": "bigtable_reader.changelog.records_per_cpu_second",
    }
    bars: list[Bar] = []
    for label, name in names.items():
        bars += [(label, value(name), True), (f"{label}: plain client", value(name, "baseline"), False)]
    return _bars("The readers", "records for each second of CPU, publishing included", bars)


def flat() -> str:
    """Return what a change costs by the size of the backlog and the number of tables."""
    value = Figures()
    sizes = {
        "10000_changes": "10,000 changes",
        "100000_changes": "100,000 changes",
        "1000000_changes": "1,000,000 changes",
    }
    tables = {f"{number}_tables": f"100,000 changes, tables: {number}" for number in (1, 10, 100)}
    return _bars(
        "The consumer, by backlog and tables",
        "microseconds of CPU for each change",
        [(label, value(f"flat.{name}.cpu"), True) for name, label in {**sizes, **tables}.items()],
    )


FILES: Final[Mapping[str, Callable[[], str]]] = {
    FILE: text,
    "images/speed-consumer.svg": consumer,
    "images/speed-readers.svg": readers,
    "images/speed-flat.svg": flat,
}
