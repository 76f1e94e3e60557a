"""What a run makes of a deletion: good is only one that deleted the row that Spanner never had, and no other."""

import json
import subprocess
from collections.abc import Mapping

import pytest

from deploy.local.proof.missing_rows import MissingRowsProof, read_deletion
from tests.unit.local.reports import a_report

AIRLINES = {"AA": "American", "UA": "United"}
GOOD = {"older": 1, "deleted": 1, "left": 0}


def proof(
    document: Mapping[str, object] | None, code: int = 0, after: Mapping[str, str] = AIRLINES
) -> MissingRowsProof:
    output = "" if document is None else json.dumps(document)
    return read_deletion("flights", subprocess.CompletedProcess([], code, output, "it says why"), AIRLINES, after)


def test_a_deletion_of_the_row_and_no_other_is_reported_with_what_stays() -> None:
    found = proof(GOOD)
    assert str(found) == "a row of airlines that Spanner never had is deleted, 2 others stay"
    assert a_report(missing_rows=found).failures == []


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (proof(GOOD, after={"AA": "American"}), "airlines is not what it was before the row came: UA"),
        (proof(GOOD, after={**AIRLINES, "??": "never"}), "airlines is not what it was before the row came: ??"),
        (proof(GOOD, 1), "delete-missing-rows ended with exit code 1; older, deleted, left: [1, 1, 0]"),
        (proof({**GOOD, "deleted": 0}), "delete-missing-rows ended with exit code 0; older, deleted, left: [1, 0, 0]"),
        (proof(None, 2), "delete-missing-rows ended with exit code 2: it says why"),
        (proof({}, 2), "delete-missing-rows ended with exit code 2: it says why"),
    ],
)
def test_anything_else_fails_the_run(found: MissingRowsProof, shown: str) -> None:
    assert str(found) == shown
    assert a_report(missing_rows=found).failures == [f"delete-missing-rows, flights: {shown}"]
