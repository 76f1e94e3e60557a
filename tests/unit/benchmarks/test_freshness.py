"""Which runs of freshness are repeated, and which is reported."""

import pytest

from tests.benchmarks.freshness import Freshness
from tests.benchmarks.results import repeated


def a_run(reached: float = 500, load: float = 0.3) -> Freshness:
    return Freshness(500, [0.4], reached, load)


@pytest.mark.parametrize(
    ("run", "is_valid"),
    [(a_run(), True), (a_run(475), True), (a_run(474), False), (a_run(load=1.0), True), (a_run(load=1.1), False)],
)
def test_a_run_is_valid_that_reached_its_rate_and_began_on_a_quiet_machine(run: Freshness, is_valid: bool) -> None:
    assert run.is_valid is is_valid


@pytest.mark.parametrize(
    ("loads", "reported", "made"),
    [([0.5], 0.5, 1), ([3, 0.5], 0.5, 2), ([3, 4, 0.5], 0.5, 3), ([3, 4, 5, 0.5], 5, 3)],
)
def test_a_run_that_is_not_valid_is_repeated_twice_at_most(loads: list[float], reported: float, made: int) -> None:
    left = list(loads)

    found = repeated(lambda: a_run(load=left.pop(0)), 2)

    assert found.load == reported
    assert len(loads) - len(left) == made


def test_without_repeats_the_first_is_reported_whatever_it_is() -> None:
    assert not repeated(lambda: a_run(reached=1), 0).is_valid
