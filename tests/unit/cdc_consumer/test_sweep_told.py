"""How a sweep is told to whoever asked for it."""

import io
import json
from datetime import timedelta

import pytest

from services.cdc_consumer.app.delete_missing_rows.sweep import (
    Swept,
    estimate_document,
    exit_code,
    lines,
    print_sweep,
    sweep_document,
)
from services.cdc_consumer.core.schema.tables import table_definition
from services.cdc_consumer.ports import MirrorTable, QueryEstimate, QuerySpend
from tests.builders import a_header

MIRROR = MirrorTable(table_definition(a_header()), "label", soft_delete=False, complete_since=1_000_000)
LATE = MirrorTable(table_definition(a_header()), "label", False, 1_000_000, timedelta(minutes=15))


def told(found: Swept, mirror: MirrorTable = MIRROR, *, execute: bool = True) -> list[str]:
    return list(lines(sweep_document("Planes", mirror, found, QuerySpend(2, 20_971_520), execute=execute)))


def test_a_dry_run_says_what_would_go_and_how() -> None:
    found = Swept(1_000_000, older=3, living=1, some_living=["[2]"], some_gone=["[1]", "[3]"])

    assert told(found, execute=False) == [
        "planes: 3 rows from before 1970-01-01T00:00:01Z",
        "1 of them are in the source and stay: their snapshot rows are on their way, or are dead letters",
        "  of these keys, among others: [2]",
        "2 are not in the source and would be deleted; --execute deletes them",
        "  of these keys, among others: [1], [3]",
        "BigQuery billed 20971520 bytes for 2 queries",
    ]
    assert exit_code(found) == 1


def test_what_was_done_and_what_was_not_is_said() -> None:
    found = Swept(1_000_000, older=3, some_gone=["[1]"], deleted=2, refused=1, left=1, hidden=True)

    assert told(found, LATE)[1:] == [
        "2 are not in the source and were deleted",
        "  of these keys, among others: [1]",
        "BigQuery has refused the deletion of 1",
        "1 are still there",
        "queries of it may be 900 s behind (max_staleness): look again then",
        "BigQuery billed 20971520 bytes for 2 queries",
    ]


def test_what_no_change_can_delete_is_left_to_whoever_asked() -> None:
    found = Swept(1_000_000, older=1, keyless=1)

    assert "1 hold a NULL in their key" in told(found, execute=False)[2]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (Swept(1), 0),
        (Swept(1, older=2, deleted=2, left=0), 0),
        (Swept(1, older=2, living=1), 1),
        (Swept(1, older=2, refused=1), 1),
        (Swept(1, older=2, keyless=1), 1),
        (Swept(1, older=2, left=1), 1),
        (Swept(1, hidden=True), 1),
        (Swept(1, early=True), 1),
    ],
)
def test_the_exit_code_says_whether_anything_older_stays(found: Swept, code: int) -> None:
    assert exit_code(found) == code


def test_it_is_one_object_where_that_is_asked_for() -> None:
    out = io.StringIO()
    print_sweep(sweep_document("Planes", MIRROR, Swept(1_000_000, older=1), QuerySpend(1, 7), execute=False), True, out)

    document = json.loads(out.getvalue())
    assert (document["table"], document["mirror"], document["before"]) == ("Planes", "planes", "1970-01-01T00:00:01Z")
    assert (document["older"], document["gone"], document["left"]) == (1, 1, None)
    assert (document["queries"], document["bytes_billed"]) == (1, 7)


def test_what_a_sweep_would_read_is_told_as_text_or_as_one_object() -> None:
    told = estimate_document("Planes", MIRROR, QueryEstimate(1_500_000_000, 670))
    text, as_json = io.StringIO(), io.StringIO()
    print_sweep(told, False, text)
    print_sweep(told, True, as_json)

    assert text.getvalue().splitlines() == [
        "planes: one query finds the rows: 1500000000 bytes (1.5 GB)",
        "  where rows are deleted, another one counts what is left: 670 bytes (670 B)",
    ]
    assert json.loads(as_json.getvalue()) == {
        "table": "Planes",
        "mirror": "planes",
        "read_bytes": 1_500_000_000,
        "count_bytes": 670,
    }
