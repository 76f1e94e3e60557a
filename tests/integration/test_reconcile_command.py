"""The command `reconcile` against the stand-in: what it costs, and what cannot be compared."""

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.reconcile.mirror_tables import BigQueryMirrorTables
from services.cdc_consumer.core.reconcile.source_table import mirrored
from services.cdc_consumer.ports import FoundMirror
from shared.contracts.change_batch import Op, encode_batch
from shared.contracts.change_sequence import four_sections
from tests.integration.answering_source import HEADER
from tests.integration.mirror_with_missing_rows import Mirror
from tests.integration.stand_in import PROJECT, StandIn

pytestmark = pytest.mark.integration

THINGS = mirrored(encode_batch(HEADER, []))
KEYS = pa.table({"Id": pa.array([2_000, 10, 7], pa.int64())})


@pytest.fixture
def mirror(bigquery_stand_in: tuple[str, str]) -> Iterator[Mirror]:
    found = Mirror(StandIn(bigquery_stand_in), bigquery_stand_in)
    found.write([10, 2_000], 1_000)
    yield found
    found.stand_in.client.delete_dataset(found.stand_in.dataset, delete_contents=True)


def reconciled(mirror: Mirror, *arguments: str) -> tuple[int, str]:
    """Compare the things; return the exit code and what was printed."""
    code, output = mirror.reconcile("Things", *arguments)
    assert [one.table_id for one in mirror.stand_in.client.list_tables(mirror.stand_in.dataset)] == ["Things"]
    return code, output


def test_a_dry_run_prints_the_bytes_and_queries_nothing(mirror: Mirror) -> None:
    code, output = reconciled(mirror, "--dry-run", "--json")

    ids, notes, sequences, times = 2 * 8, 7 + 2 + 9 + 2, 2 * (67 + 2), 2 * 8
    (one,) = json.loads(output)["tables"]
    assert (code, one["read_bytes"]) == (0, ids + notes + sequences)
    assert one["recheck_bytes"] == ids + notes + sequences + times
    assert f"{ids + notes + sequences} bytes" in reconciled(mirror, "--dry-run")[1]
    queries = [str(getattr(job, "query", "")) for job in mirror.stand_in.client.list_jobs()]
    assert [query for query in queries if mirror.stand_in.dataset in query] == []


def test_a_mirror_is_read_by_one_query_whatever_the_limit_of_an_answer(mirror: Mirror) -> None:
    mirror.write(range(3_000, 3_400), 1_000)
    mirror.stand_in.control("POST", "limits", response_bytes=200_000)
    try:
        code, output = reconciled(mirror, "--json")
    finally:
        mirror.stand_in.control("DELETE", "faults")

    (found,) = json.loads(output)["tables"]
    assert (code, found["source_rows"], found["mirror_rows"]) == (1, 1_000, 402)
    assert (found["rows"], found["compared"], found["coverage_percent"]) == (1_401, 1_401, 100.0)
    assert (found["queries"], found["bytes_billed"]) == (2, 2 * 10_485_760)


def test_what_a_comparison_may_cost_is_kept_and_named(mirror: Mirror) -> None:
    code, output = reconciled(mirror, "--max-bytes", "10MB")
    assert code == 2
    assert "BigQuery would bill 10485760 bytes for the next query, which is more than --max-bytes 10000000" in output
    assert "ask again with --max-bytes 10485760 or more" in output

    code, output = reconciled(mirror, "--max-bytes", "10485760", "--json")
    (found,) = json.loads(output)["tables"]
    assert (code, found["verdict"], found["compared"], found["rows"]) == (3, "undecided", 0, 1_001)
    assert "ask again with --max-bytes 20971520 or more" in found["stopped"]

    assert reconciled(mirror, "--max-bytes", "20971520")[0] == 1
    assert reconciled(mirror, "--max-bytes", "20MiB", "--max-differences", "1001")[0] == 0
    assert reconciled(mirror, "--max-bytes", "10MiB", "--min-coverage", "0")[0] == 0


def test_rows_are_copied_where_that_is_allowed_and_once_whatever_answer_is_lost(mirror: Mirror) -> None:
    code, output = reconciled(mirror, "--temporary-dataset", "nowhere")
    assert code == 2
    assert "Not found: Dataset" in output
    other = StandIn(mirror.addresses)
    copied = f"CREATE TABLE `{PROJECT}.{other.dataset}.millrace_temporary_"
    fault = {"action": "answer", "on": "rest", "when": "after", "method": "POST", "times": 1}
    mirror.stand_in.control("POST", "faults", **fault, containing=copied)

    code, _output = reconciled(mirror, "--temporary-dataset", other.dataset)

    assert code == 1
    queries = [str(getattr(job, "query", "")) for job in mirror.stand_in.client.list_jobs()]
    assert sum(query.startswith(copied) for query in queries) == 1
    assert list(other.client.list_tables(other.dataset)) == []


def test_a_table_that_cannot_be_described_is_reported_and_the_others_are_compared(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cdc_consumer.app.reconcile.recheck.RETRY_BUDGET", timedelta(0))
    code, printed = mirror.reconcile("Nothing", "Things", "Busy", "--json")
    answer = json.loads(printed)

    assert code == 2
    (compared,) = answer["tables"]
    assert (compared["table"], compared["verdict"]) == ("Things", "different")
    assert {one["kind"] for one in compared["differences"]} == {"missing", "different", "extra"}
    assert [one["table"] for one in answer["not_compared"]] == ["Nothing", "Busy"]
    assert "no table Nothing" in answer["not_compared"][0]["why"]
    assert "too busy" in answer["not_compared"][1]["why"]


def test_how_far_a_mirror_is_goes_by_no_row_of_a_time_to_come_or_of_another_form(mirror: Mirror) -> None:
    mirror.write([11], 10**15)
    mirror.stand_in.run("INSERT INTO Things (Id, _millrace_sequence) VALUES (12, 'FF'), (13, NULL)")
    mirrors = BigQueryMirrorTables(mirror.stand_in.client, PROJECT, mirror.stand_in.dataset)
    found = FoundMirror(f"{PROJECT}.{mirror.stand_in.dataset}.Things")

    for until, newest in ((10**15, 10**15), (10**15 - 1, 1_000), (1, 0)):
        rows, progress = mirrors.recheck(THINGS, found, KEYS, str(four_sections(until)))
        assert sorted(rows.column("Id").to_pylist()) == [10, 2_000]
        assert progress.newest == (str(four_sections(newest)) if newest else "")


def test_any_applied_change_shows_that_a_mirror_moves(mirror: Mirror) -> None:
    mirrors = BigQueryMirrorTables(mirror.stand_in.client, PROJECT, mirror.stand_in.dataset)
    found, until = FoundMirror(f"{PROJECT}.{mirror.stand_in.dataset}.Things"), str(four_sections(2_000))
    states = [mirrors.recheck(THINGS, found, KEYS, until)[1].state for _again in range(2)]
    assert len(set(states)) == 1
    applied: Sequence[tuple[int, int, Op]] = (
        (10, 1_001, "UPSERT"),
        (11, 5, "UPSERT"),
        (11, 6, "DELETE"),
        (10, 1_002, "UPSERT"),
    )
    for key, micros, op in applied:
        mirror.write([key], micros, op)
        states.append(mirrors.recheck(THINGS, found, KEYS, until)[1].state)

    assert len(set(states)) == 5 - 1, "without the row of 11 it is as it was before"
