"""Which runs of the completion benchmark are valid."""

import pytest

from tests.benchmarks.completion import RATE, Comparison, Outcome


@pytest.mark.parametrize(("reached", "is_valid"), [(RATE, True), (0.95 * RATE, True), (0.94 * RATE, False)])
def test_a_run_is_valid_if_the_emulator_took_the_changes_at_their_rate(reached: float, is_valid: bool) -> None:
    outcome = Outcome(100.0, [0.2])

    assert Comparison(outcome, outcome, 0.1, reached).is_valid is is_valid
