"""What the service does to its clients at its own time: schemas seen late, quotas, refusals on demand."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import bigquery
from google.rpc import status_pb2

from tests.integration.stand_in import PROJECT, StandIn, StorageError, storage_error
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

KEY_VALUE = {"k": "int64", "v": "string", **CHANGE}
NO_RETRY: Any = None
WIDER = {**KEY_VALUE, "added": "string"}


@pytest.fixture
def stand_in(stand_in_alone: tuple[str, str]) -> Iterator[StandIn]:
    stand_in = StandIn(stand_in_alone)
    for table in ("t", "u"):
        stand_in.run(f"CREATE TABLE {table} (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
    yield stand_in
    stand_in.control("DELETE", "faults")
    stand_in.control("DELETE", "delay")


def name(stand_in: StandIn, table: str) -> str:
    return f"{PROJECT}.{stand_in.dataset}.{table}"


def rows_of(stand_in: StandIn, table: str = "t") -> list[tuple[Any, ...]]:
    return stand_in.run(f"SELECT k, v FROM {table} ORDER BY k")


def a_row(key: int, value: str = "x") -> dict[str, Any]:
    return change("UPSERT", "1", k=key, v=value)


class TestSeenLate:
    """BigQuery, "Storage Write API best practices", section "Manage schema updates": noticed after minutes."""

    def test_a_new_column_is_refused_until_it_is_seen_and_older_rows_go_on(self, stand_in: StandIn) -> None:
        stand_in.control("POST", "delay", alterations=180)
        with stand_in.writing("t", KEY_VALUE) as old:
            old.append([a_row(1)])
            stand_in.run("ALTER TABLE t ADD COLUMN added STRING")

            refused = stand_in.append("t", WIDER, [change("UPSERT", "1", k=2, added="y")])
            assert storage_error(refused.error.details).code == StorageError.SCHEMA_MISMATCH_EXTRA_FIELDS
            assert not old.append([a_row(3)]).HasField("updated_schema")

            stand_in.control("POST", "clock", seconds=181)
            answer = old.append([a_row(4)])
            assert [field.name for field in answer.updated_schema.fields] == ["k", "v", "added"]
        assert not stand_in.append("t", WIDER, [change("UPSERT", "1", k=2, added="y")]).HasField("error")
        assert stand_in.run("SELECT k, added FROM t ORDER BY k") == [(1, None), (2, "y"), (3, None), (4, None)]

    def test_a_new_table_is_not_found_until_it_is_seen(self, stand_in: StandIn) -> None:
        stand_in.control("POST", "delay", new_tables=60)
        stand_in.run("CREATE TABLE late (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        assert rows_of(stand_in, "late") == []

        with pytest.raises(grpc.RpcError) as closed:
            stand_in.append("late", KEY_VALUE, [a_row(1)])
        assert closed.value.code() == grpc.StatusCode.NOT_FOUND
        stand_in.control("POST", "clock", seconds=61)

        assert not stand_in.append("late", KEY_VALUE, [a_row(1)]).HasField("error")

    def test_one_table_is_late_and_the_rest_is_not(self, stand_in: StandIn) -> None:
        stand_in.control("POST", "delay", alterations=60, table=name(stand_in, "t"))
        for table in ("t", "u"):
            stand_in.run(f"ALTER TABLE {table} ADD COLUMN added STRING")

        assert stand_in.append("t", WIDER, [change("UPSERT", "1", k=1, added="y")]).HasField("error")
        assert not stand_in.append("u", WIDER, [change("UPSERT", "1", k=1, added="y")]).HasField("error")
        stand_in.control("DELETE", "delay")
        assert not stand_in.append("t", WIDER, [change("UPSERT", "1", k=1, added="y")]).HasField("error")

    def test_a_delay_that_is_none_is_refused(self, stand_in: StandIn) -> None:
        with pytest.raises(urllib.error.HTTPError) as refused:
            stand_in.control("POST", "delay", minutes=3)
        assert refused.value.code == 400


class TestConnections:
    """BigQuery, "Storage Write API best practices", section "Connection pool management": a quota of connections."""

    def test_one_more_than_allowed_fails_and_those_that_are_open_go_on(self, stand_in: StandIn) -> None:
        already = stand_in.control("GET", "stats")["connections_open"]
        stand_in.control("POST", "limits", connections=already + 2)
        with ExitStack() as stack:
            first, second = (stack.enter_context(stand_in.writing("t", KEY_VALUE)) for _ in range(2))
            first.append([a_row(1)])
            second.append([a_row(2)])
            third = stack.enter_context(stand_in.writing("t", KEY_VALUE))
            with pytest.raises(grpc.RpcError) as refused:
                third.append([a_row(3)])
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            first.append([a_row(4)])
        stand_in.control("POST", "limits", connections=None)

        stand_in.append("t", KEY_VALUE, [a_row(5)])
        assert [key for key, _ in rows_of(stand_in)] == [1, 2, 4, 5]


class TestThroughput:
    """BigQuery, "Introduction to the Storage Write API", section "Use case": 429 where a peak exceeds the quota."""

    def test_beyond_the_quota_an_append_is_refused_until_time_has_filled_it_up(self, stand_in: StandIn) -> None:
        stand_in.control("POST", "limits", bytes_per_second=1)
        with stand_in.writing("t", KEY_VALUE) as writing, stand_in.writing("u", KEY_VALUE) as other:
            assert not writing.append([a_row(1)]).HasField("error")

            refused = writing.append([a_row(2)])
            assert refused.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            assert refused.error.message.startswith("Exceeds 'AppendRows throughput' quota")
            assert other.append([a_row(2)]).HasField("error"), "the quota is the project's, not a connection's"

            stand_in.control("POST", "clock", seconds=3600)
            assert not writing.append([a_row(3)]).HasField("error")

            stand_in.control("POST", "limits", bytes_per_second=None)
            assert not any(writing.append([a_row(key)]).HasField("error") for key in range(4, 7))
        assert [key for key, _ in rows_of(stand_in)] == [1, 3, 4, 5, 6]


class TestTableUpdates:
    """BigQuery, "Quotas and limits", standard tables: five metadata updates of a table in ten seconds."""

    def test_the_sixth_update_is_refused_until_time_has_passed(self, stand_in: StandIn) -> None:
        stand_in.control("POST", "limits", table_updates=3_600)
        table, other = (
            stand_in.client.get_table(f"{stand_in.dataset}.t"),
            stand_in.client.get_table(f"{stand_in.dataset}.u"),
        )
        for number in range(5):
            table.description = str(number)
            table = stand_in.client.update_table(table, ["description"], retry=NO_RETRY)
        table.description = other.description = "one more"
        with pytest.raises(exceptions.Forbidden) as refused:
            stand_in.client.update_table(table, ["description"], retry=NO_RETRY)
        assert [each["reason"] for each in refused.value.errors] == ["rateLimitExceeded"]
        assert "too many table update operations for this table." in refused.value.message
        assert stand_in.client.update_table(other, ["description"], retry=NO_RETRY).description == "one more"

        stand_in.control("POST", "clock", seconds=3_600)
        assert stand_in.client.update_table(table, ["description"], retry=NO_RETRY).description == "one more"

    def test_a_statement_counts_too_and_no_limit_is_the_usual(self, stand_in: StandIn) -> None:
        for number in range(8):
            stand_in.run(f"ALTER TABLE t ADD COLUMN c{number} STRING")
        stand_in.control("POST", "limits", table_updates=3_600)
        for number in range(5):
            stand_in.run(f"ALTER TABLE t ADD COLUMN d{number} STRING")
        table = stand_in.client.get_table(f"{stand_in.dataset}.t")
        with pytest.raises(exceptions.Forbidden):
            stand_in.client.update_table(table, ["description"], retry=NO_RETRY)
        stand_in.control("POST", "limits", table_updates=None)
        stand_in.client.update_table(table, ["description"], retry=NO_RETRY)


class TestFaults:
    @pytest.mark.parametrize("code", ["SCHEMA_MISMATCH_EXTRA_FIELDS", "TABLE_NOT_FOUND", "KMS_PERMISSION_DENIED"])
    @pytest.mark.parametrize("action", ["answer", "close"])
    def test_any_storage_error_in_an_answer_or_at_the_end(self, stand_in: StandIn, code: str, action: str) -> None:
        """storage.proto, StorageError.StorageErrorCode."""
        table = name(stand_in, "t")
        stand_in.control("POST", "faults", action=action, status="NOT_FOUND", storage_error=code, table=table, times=1)

        with stand_in.writing("t", KEY_VALUE) as writing:
            try:
                details = writing.append([a_row(1)]).error.details
            except grpc.RpcError as closed:
                assert action == "close"
                details = trailing_status(closed).details
        assert storage_error(details).code == StorageError.StorageErrorCode.Value(code)
        assert rows_of(stand_in) == []
        assert not stand_in.append("t", KEY_VALUE, [a_row(1)]).HasField("error")

    def test_a_row_that_provokes_a_refusal_without_row_errors(self, stand_in: StandIn) -> None:
        stand_in.control("POST", "faults", action="answer", status="INVALID_ARGUMENT", containing="killer")

        refused = stand_in.append("t", KEY_VALUE, [a_row(1), a_row(2, "a killer row")])
        assert (refused.error.code, len(refused.row_errors)) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], 0)
        assert not stand_in.append("t", KEY_VALUE, [a_row(1)]).HasField("error")
        assert rows_of(stand_in) == [(1, "x")]

    def test_a_row_error_on_demand(self, stand_in: StandIn) -> None:
        stand_in.control("POST", "faults", action="answer", status="INVALID_ARGUMENT", row=1, times=1, message="no")

        refused = stand_in.append("t", KEY_VALUE, [a_row(1), a_row(2)])

        assert [(error.index, error.message) for error in refused.row_errors] == [(1, "no")]
        assert rows_of(stand_in) == []

    def test_one_fault_is_removed_and_the_others_stay(self, stand_in: StandIn) -> None:
        faults = [
            stand_in.control("POST", "faults", action="answer", table=name(stand_in, table))["fault"]
            for table in ("t", "u")
        ]
        stand_in.control("DELETE", "faults", fault=faults[0])

        assert not stand_in.append("t", KEY_VALUE, [a_row(1)]).HasField("error")
        assert stand_in.append("u", KEY_VALUE, [a_row(1)]).HasField("error")
        assert stand_in.control("GET", "stats")["faults_met"] >= 1

    @pytest.mark.parametrize(
        ("status", "error"),
        [
            ("PERMISSION_DENIED", exceptions.Forbidden),
            ("UNAVAILABLE", exceptions.ServiceUnavailable),
            ("INTERNAL", exceptions.InternalServerError),
        ],
    )
    def test_a_rest_call_fails_for_one_table_and_one_method(
        self, stand_in: StandIn, status: str, error: type[Exception]
    ) -> None:
        table = stand_in.client.get_table(f"{stand_in.dataset}.t")
        other = stand_in.client.get_table(f"{stand_in.dataset}.u")
        fault = {"action": "answer", "on": "rest", "method": "PATCH", "table": name(stand_in, "t"), "status": status}
        stand_in.control("POST", "faults", **fault)
        table.description = other.description = "new"

        with pytest.raises(error):
            stand_in.client.update_table(table, ["description"], retry=NO_RETRY)
        assert stand_in.client.update_table(other, ["description"]).description == "new"
        assert stand_in.client.get_table(table.reference).description is None
        stand_in.control("DELETE", "faults")
        assert stand_in.client.update_table(table, ["description"]).description == "new"

    def test_a_table_that_may_not_be_made(self, stand_in: StandIn) -> None:
        fault = {"action": "answer", "on": "rest", "table": name(stand_in, "v"), "status": "PERMISSION_DENIED"}
        stand_in.control("POST", "faults", **fault)

        with pytest.raises(exceptions.Forbidden):
            stand_in.client.create_table(bigquery.Table(name(stand_in, "v")), retry=NO_RETRY)
        stand_in.client.create_table(bigquery.Table(name(stand_in, "w")), retry=NO_RETRY)

    @pytest.mark.parametrize("reason", ["rateLimitExceeded", "quotaExceeded"])
    def test_it_is_answered_as_what_is_forbidden_is(self, stand_in: StandIn, reason: str) -> None:
        fault = {"action": "answer", "on": "rest", "method": "GET", "status": "RESOURCE_EXHAUSTED", "times": 1}
        stand_in.control("POST", "faults", **fault, reason=reason)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{stand_in._rest}/bigquery/v2/projects/{PROJECT}/datasets/d", timeout=10)
        error = json.load(refused.value)["error"]
        assert (refused.value.code, error["code"], error["errors"][0]["reason"]) == (403, 403, reason)

    def test_a_rest_call_that_was_done_and_not_answered(self, stand_in: StandIn) -> None:
        fault = {"action": "answer", "on": "rest", "method": "PATCH", "when": "after", "times": 1}
        stand_in.control("POST", "faults", **fault, status="UNAVAILABLE", table=name(stand_in, "t"))
        table = stand_in.client.get_table(f"{stand_in.dataset}.t")
        table.description = "new"

        with pytest.raises(exceptions.ServiceUnavailable):
            stand_in.client.update_table(table, ["description"], retry=NO_RETRY)

        assert stand_in.client.get_table(table.reference).description == "new"

    @pytest.mark.parametrize(
        "fault",
        [
            {"action": "burn"},
            {"action": "answer", "status": "ODD"},
            {"action": "answer", "storage_error": "X"},
            {"action": "answer", "reason": "tired"},
        ],
    )
    def test_a_fault_that_is_none_is_refused(self, stand_in: StandIn, fault: dict[str, str]) -> None:
        with pytest.raises(urllib.error.HTTPError) as refused:
            stand_in.control("POST", "faults", **fault)

        assert refused.value.code == 400
        assert json.load(refused.value)["error"]["message"]


def trailing_status(closed: Any) -> Any:
    return status_pb2.Status.FromString(dict(closed.trailing_metadata())["grpc-status-details-bin"])
