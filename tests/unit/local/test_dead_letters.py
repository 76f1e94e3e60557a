"""What a run says of its dead letters in the end, and when it is content."""

from deploy.local.proof.dead_letters import DeadLettersFound

COLLECTED = {"schema_conflict": 10, "undecodable": 1, "value_does_not_fit": 1}


def test_all_that_was_collected_and_settled_is_reported_in_two_lines() -> None:
    found = DeadLettersFound(COLLECTED, {"replayed": 10, "superseded": 1, "discarded": 1, "open": 0})

    assert found.settled
    collected, ends = found.lines()
    assert collected == "dead letters: 12 collected (10 schema_conflict, 1 undecodable, 1 value_does_not_fit)"
    assert ends == (
        "  10 replayed and applied once their table was fixed; 1 superseded, for their row was corrected at its "
        "source; 1 discarded; none is open"
    )


def test_a_dead_letter_that_is_open_still_is_reported_and_fails_the_run() -> None:
    found = DeadLettersFound(COLLECTED, {"replayed": 9, "superseded": 1, "discarded": 1, "open": 1})

    assert not found.settled
    assert found.lines()[-1].endswith("1 open STILL")


def test_a_run_without_dead_letters_or_with_lost_ones_has_shown_nothing() -> None:
    assert not DeadLettersFound().settled
    assert not DeadLettersFound(COLLECTED, {"replayed": 10}).settled
