"""A run fails although every table is equal, where what it is to show did not happen."""

from collections.abc import Sequence

import pytest

from deploy.local.proof.report import Compared
from tests.unit.local.reports import a_report


def failures(completed: int | None) -> Sequence[str]:
    return a_report([Compared("flights", "GoogleSQL", [], 0, 0, completed_images=completed)]).failures


@pytest.mark.parametrize("completed", [None, 1])
def test_a_stream_of_whole_rows_needs_no_completed_image_and_another_one_some(completed: int | None) -> None:
    assert failures(completed) == []


def test_a_run_in_which_no_image_had_to_be_completed_fails() -> None:
    assert failures(0) == [
        "no image of flights had to be completed, although its change stream captures only what changed"
    ]
