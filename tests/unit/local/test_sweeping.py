"""What a run makes of a sweep: good is only one that deleted the row that Spanner never had, and no other."""

import json
import subprocess
from collections.abc import Mapping

import pytest

from deploy.local.proof.sweeping import Swept, read_sweep
from tests.unit.local.reports import a_report

AIRLINES = {"AA": "American", "UA": "United"}
GOOD = {"older": 1, "deleted": 1, "left": 0}


def swept(document: Mapping[str, object] | None, code: int = 0, after: Mapping[str, str] = AIRLINES) -> Swept:
    said = "" if document is None else json.dumps(document)
    return read_sweep("flights", subprocess.CompletedProcess([], code, said, "it says why"), AIRLINES, after)


def test_a_sweep_that_deletes_the_row_and_no_other_is_told_with_what_stays() -> None:
    found = swept(GOOD)
    assert str(found) == "a row of airlines that Spanner never had is deleted, 2 others stay"
    assert a_report(swept=found).failures == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (swept(GOOD, after={"AA": "American"}), "airlines is not what it was before the row came: UA"),
        (swept(GOOD, after={**AIRLINES, "??": "never"}), "airlines is not what it was before the row came: ??"),
        (swept(GOOD, 1), "sweep ended with exit code 1; older, deleted, left: [1, 1, 0]"),
        (swept({**GOOD, "deleted": 0}), "sweep ended with exit code 0; older, deleted, left: [1, 0, 0]"),
        (swept(None, 2), "sweep ended with exit code 2: it says why"),
        (swept({}, 2), "sweep ended with exit code 2: it says why"),
    ],
)
def test_anything_else_fails_the_run(found: Swept, said: str) -> None:
    assert str(found) == said
    assert a_report(swept=found).failures == [f"sweep, flights: {said}"]
