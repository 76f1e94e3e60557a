"""What a run makes of the answer of `reconcile`: only what was compared and found equal is equal."""

import json
from typing import Any

import pytest

from deploy.local.proof.reconciling import read_answer


def table(name: str, verdict: str = "equal", **more: Any) -> dict[str, Any]:
    return {"table": name, "verdict": verdict, "source_rows": 1_000, "differences": [], **more}


def test_tables_that_are_equal_are_counted_with_their_rows() -> None:
    answer = json.dumps({"tables": [table("a"), table("b")], "not_compared": []})
    found = read_answer("flights", 0, answer, "")
    assert (found.differing, str(found)) == ([], "2 tables equal, 2,000 rows")


@pytest.mark.parametrize(
    ("code", "answer", "shown"),
    [
        (
            1,
            {"tables": [table("a", "different", differences=[{"key": [7], "kind": "extra"}])], "not_compared": []},
            "a is different: [7] extra",
        ),
        (3, {"tables": [table("a", "undecided"), table("b")], "not_compared": []}, "a is undecided: "),
        (2, {"tables": [table("a")], "not_compared": [{"table": "b", "why": "no"}]}, "b was not compared: no"),
        (1, {"tables": [table("a")], "not_compared": []}, "ended with exit code 1"),
        (2, {}, "ended with exit code 2: it says why"),
    ],
)
def test_anything_else_is_not_equal(code: int, answer: dict[str, Any], shown: str) -> None:
    found = read_answer("flights", code, json.dumps(answer) if answer else "", "it says why")
    assert str(found) == shown
    assert found.differing
