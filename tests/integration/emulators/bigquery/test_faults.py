"""Faults on demand, what is counted, and how the stand-in itself lives and ends."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.integration.stand_in import PROJECT, StandIn, a_process
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

KEY_VALUE = {"k": "int64", "v": "string", **CHANGE}


@pytest.fixture
def stand_in(stand_in_alone: tuple[str, str]) -> Iterator[StandIn]:
    stand_in = StandIn(stand_in_alone)
    for table in ("t", "u"):
        stand_in.run(f"CREATE TABLE {table} (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
    yield stand_in
    stand_in.control("DELETE", "faults")


def rows_of(stand_in: StandIn, table: str = "t") -> list[tuple[Any, ...]]:
    return stand_in.run(f"SELECT k, v FROM {table} ORDER BY k")


def a_row(key: int) -> dict[str, Any]:
    return change("UPSERT", "1", k=key, v="x")


@pytest.mark.parametrize("status", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "INTERNAL"])
@pytest.mark.parametrize(("when", "kept"), [("before", []), ("after", [(1, "x")])])
def test_a_stream_is_closed_before_or_after_the_rows_are_taken(
    stand_in: StandIn, status: str, when: str, kept: list[Any]
) -> None:
    stand_in.control("POST", "faults", action="close", when=when, status=status, times=1)

    with stand_in.writing("t", KEY_VALUE) as writing, pytest.raises(grpc.RpcError) as closed:
        writing.append([a_row(1)])

    assert closed.value.code() == grpc.StatusCode[status]
    assert rows_of(stand_in) == kept
    assert not stand_in.append("t", KEY_VALUE, [a_row(1)]).HasField("error")


def test_a_fault_in_the_answer_meets_the_table_it_is_meant_for_until_it_is_cleared(stand_in: StandIn) -> None:
    table = f"{PROJECT}.{stand_in.dataset}.t"
    stand_in.control("POST", "faults", action="answer", status="PERMISSION_DENIED", table=table)

    for _ in range(2):
        assert stand_in.append("t", KEY_VALUE, [a_row(1)]).error.code == grpc.StatusCode.PERMISSION_DENIED.value[0]
    assert not stand_in.append("u", KEY_VALUE, [a_row(1)]).HasField("error")
    stand_in.control("DELETE", "faults")
    assert not stand_in.append("t", KEY_VALUE, [a_row(2)]).HasField("error")
    assert (rows_of(stand_in, "t"), rows_of(stand_in, "u")) == ([(2, "x")], [(1, "x")])


def test_what_the_service_refuses_only_sometimes_is_refused_while_a_fault_is_set(stand_in: StandIn) -> None:
    """python-bigquery-storage #577, google-cloud-python #16650: some calls without routing header are refused."""
    stand_in.control("POST", "faults", action="close", on="routing", times=1)

    assert not stand_in.append("t", KEY_VALUE, [a_row(1)]).HasField("error")
    with stand_in.writing("t", KEY_VALUE, routing="") as writing, pytest.raises(grpc.RpcError) as closed:
        writing.append([a_row(2)])
    with stand_in.writing("t", KEY_VALUE, routing="") as writing:
        assert not writing.append([a_row(3)]).HasField("error")

    assert closed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert closed.value.details() == "Cannot route on empty project id ''"
    assert rows_of(stand_in) == [(1, "x"), (3, "x")]


def test_a_stalled_append_is_answered_when_its_fault_is_cleared_and_appends_of_other_tables_pass(
    stand_in: StandIn,
) -> None:
    table = f"{PROJECT}.{stand_in.dataset}.t"
    fault = stand_in.control("POST", "faults", action="stall", when="after", table=table)["fault"]
    answers: list[Any] = []

    with stand_in.writing("t", KEY_VALUE) as writing:
        waiting = threading.Thread(target=lambda: answers.append(writing.append([a_row(1)])))
        waiting.start()
        deadline = time.monotonic() + 10
        while rows_of(stand_in) != [(1, "x")] and time.monotonic() < deadline:
            pass
        assert rows_of(stand_in) == [(1, "x")]
        assert not stand_in.append("u", KEY_VALUE, [a_row(1)]).HasField("error")
        assert answers == []
        stand_in.control("DELETE", "faults", fault=fault)
        waiting.join(10)

    assert answers[0].HasField("append_result")


def test_an_idle_connection_is_closed_and_another_one_works(stand_in: StandIn) -> None:
    """ "Introduction to the Storage Write API", section "Connections": closed when idle, HTTP 409."""
    stand_in.control("POST", "idle", seconds=0.05)

    with stand_in.writing("t", KEY_VALUE) as writing:
        writing.append([a_row(1)])
        with pytest.raises(grpc.RpcError) as closed:
            next(writing.answers)
    stand_in.append("t", KEY_VALUE, [a_row(2)])

    assert closed.value.code() == grpc.StatusCode.ABORTED
    assert "inactive" in str(closed.value.details())
    assert rows_of(stand_in) == [(1, "x"), (2, "x")]


def test_what_is_counted(stand_in: StandIn) -> None:
    before = stand_in.control("GET", "stats")
    with stand_in.writing("t", KEY_VALUE) as writing:
        writing.append([a_row(1), a_row(2)])
        writing.append([a_row(1), change("DELETE", "2", k=2)])
        writing.append([change("NONE", "1", k=1)])
        stats = stand_in.control("GET", "stats")

    added = {name: stats[name] - before[name] for name in ("connections_opened", "appends", "refused")}
    assert added == {"connections_opened": 1, "appends": 2, "refused": 1}
    assert stats["connections_open"] >= 1
    counts = stats["tables"][f"{PROJECT}.{stand_in.dataset}.t"]
    assert (counts["appends"], counts["refused"], counts["rows_accepted"], counts["rows"]) == (2, 1, 4, 1)


def test_a_query_sees_every_row_accepted_before_it_however_many_are_being_written(stand_in: StandIn) -> None:
    with stand_in.writing("t", KEY_VALUE) as writing:
        for start in range(0, 20_000, 1_000):
            writing.append([a_row(key) for key in range(start, start + 1_000)])
            assert stand_in.run("SELECT count(*), max(k) FROM t") == [(start + 1_000, start + 999)]


def test_a_broken_client_breaks_nothing(stand_in: StandIn) -> None:
    host, port = stand_in.grpc.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1_000, b""):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(garbage)
    with stand_in.writing("t", KEY_VALUE) as writing:  # answers that nobody waits for
        for _ in range(100):
            writing.requests.put(writing.request([a_row(1)]))
        next(writing.answers)
    with grpc.insecure_channel(stand_in.grpc) as channel:
        raw: Any = channel.stream_stream("/google.cloud.bigquery.storage.v1.BigQueryWrite/AppendRows", bytes, bytes)
        answers = raw(iter([b"\xff\xff"]), metadata=(("x-goog-request-params", "write_stream=projects/p"),))
        with pytest.raises(grpc.RpcError) as closed:
            next(answers)
        assert closed.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    assert not stand_in.append("t", KEY_VALUE, [a_row(2)]).HasField("error")
    assert rows_of(stand_in) == [(1, "x"), (2, "x")]


def test_it_ends_by_itself_on_sigterm_with_connections_open() -> None:
    with a_process(signal.SIGKILL) as (stand_in, process):
        stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        with stand_in.writing("t", KEY_VALUE) as writing:
            writing.append([a_row(1)])
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
