"""How long a call may take to begin."""

from shared.streams.connections import opening_seconds


def test_a_call_that_says_nothing_is_given_twice_the_time_at_the_next_try_up_to_a_limit() -> None:
    assert [opening_seconds(silences) for silences in (0, 1, 2, 5, 6, 1_000)] == [10, 20, 40, 320, 320, 320]
