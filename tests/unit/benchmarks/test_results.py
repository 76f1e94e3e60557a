"""The arithmetic of the benchmarks: medians, ratios, targets, and the shape of the JSON file."""

import json
import random
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.benchmarks.results import Measured, as_table, percentile, shown, write_json

runs = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=9)


def test_the_value_is_the_median_of_the_runs() -> None:
    assert Measured(name="a", unit="s", runs=[9, 1, 2]).value == 2
    assert Measured(name="a", unit="s", runs=[1, 2]).value == 1.5


def test_runs_side_by_side_are_compared_with_each_other() -> None:
    slow_machine = Measured(name="a", unit="/s", runs=[100, 10, 50], baseline_runs=[10, 1, 5])

    assert slow_machine.ratio == 10
    assert slow_machine.baseline == 5


def test_another_number_of_runs_is_compared_by_medians() -> None:
    assert Measured(name="a", unit="/s", runs=[100, 300], baseline_runs=[4]).ratio == 50


def test_a_baseline_that_did_nothing_gives_no_ratio() -> None:
    nothing = Measured(name="a", unit="/s", runs=[1], baseline_runs=[0])

    assert nothing.ratio is None
    assert nothing.baseline == 0


@given(runs=runs, factor=st.floats(0.01, 100))
def test_what_is_so_many_times_its_baseline_has_that_ratio(runs: list[float], factor: float) -> None:
    one = Measured(name="a", unit="/s", runs=[run * factor for run in runs], baseline_runs=runs)

    assert one.ratio == pytest.approx(factor)


def test_a_target_of_each_run_is_missed_by_one_of_them() -> None:
    runs = [Measured(name="a", unit="s", runs=[1.0, 1.0, 2.0], below=1.5, each_run=each) for each in (False, True)]
    assert [one.met for one in runs] == [True, False]
    assert [one.as_json().get("each_run") for one in runs] == [None, True]


@pytest.mark.parametrize(
    ("at_least", "below", "met"), [(2.0, None, True), (2.1, None, False), (None, 2.0, False), (None, 2.1, True)]
)
def test_a_target_is_met_or_missed(at_least: float | None, below: float | None, met: bool) -> None:
    assert Measured(name="a", unit="s", runs=[2.0], at_least=at_least, below=below).met is met


@pytest.mark.parametrize(("baseline", "met"), [([1.0, 2.0], True), ([1.0, 4.0], False), ([], False)])
def test_a_ratio_that_is_the_target_is_met_or_missed(baseline: list[float], met: bool) -> None:
    one = Measured(name="a", unit="s", runs=[4.0, 4.0], baseline_runs=baseline, times_baseline=3)

    assert one.met is met
    assert one.as_json()["target_ratio"] == 3


def test_without_a_target_there_is_nothing_to_meet() -> None:
    assert Measured(name="a", unit="s", runs=[2.0]).met is None


@pytest.mark.parametrize("runs", [[], [1.0, float("nan")], [float("inf")]])
def test_nothing_measured_is_no_figure(runs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"^a: "):
        Measured(name="a", unit="s", runs=runs)


@given(values=runs, percent=st.floats(0, 100))
def test_a_percentile_is_a_value_that_was_measured(values: list[float], percent: float) -> None:
    found = percentile(random.sample(values, len(values)), percent)

    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100


def test_percentiles_by_nearest_rank() -> None:
    assert [percentile(range(1, 101), percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 50)


def test_the_file_is_a_list_of_figures(tmp_path: Path) -> None:
    measured = [
        Measured(name="plain", unit="s", runs=[3.0, 1.0, 2.0]),
        Measured(name="against", unit="/s", runs=[8.0], baseline_runs=[2.0], at_least=9.0, note="of this"),
    ]
    write_json(tmp_path / "build" / "bench.json", measured)

    assert json.loads((tmp_path / "build" / "bench.json").read_text()) == [
        {"name": "plain", "value": 2.0, "unit": "s", "runs": [3.0, 1.0, 2.0]},
        {
            "name": "against",
            "value": 8.0,
            "unit": "/s",
            "runs": [8.0],
            "baseline": 2.0,
            "baseline_runs": [2.0],
            "ratio": 4.0,
            "target": 9.0,
            "note": "of this",
        },
    ]


def test_the_table_shows_value_spread_ratio_and_whether_the_target_is_met() -> None:
    console = Console(width=140)
    with console.capture() as captured:
        console.print(
            as_table(
                [
                    Measured(
                        name="drain",
                        unit="changes/s",
                        runs=[90_000, 70_000, 85_000],
                        baseline_runs=[5000],
                        at_least=8e4,
                    )
                ]
            )
        )
    line = next(line for line in captured.get().splitlines() if "drain" in line)

    assert "85,000 (70,000-90,000)" in line
    assert "5,000" in line
    assert "17 x" in line
    assert ">= 80,000 met" in line


def test_numbers_are_shown_with_the_digits_that_matter() -> None:
    assert [shown(value) for value in (0.01234, 1.5, 99.96, 123.4, 1_234_567.8)] == [
        "0.0123",
        "1.5",
        "100",
        "123",
        "1,234,568",
    ]
    assert shown(median([0.5])) == "0.5"
