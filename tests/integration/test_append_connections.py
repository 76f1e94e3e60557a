"""Which connections the append stream opens, keeps and closes, with several tables and column lists."""

import gc
import threading
from datetime import timedelta
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.append_connection import AppendLimits
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams, StreamAppend
from services.cdc_consumer.ports import Heard, TableTroubleError
from shared.contracts.errors import TransientError
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop
from tests.builders import a_header, table_definition
from tests.integration.append_server import AppendServer, Close, Silence, accepted, refused
from tests.integration.append_streams import PLANES, WIDER, WIDER_HEADER, Opened, identities, rows_of
from tests.integration.append_streams import channel as channel  # noqa: PLC0414  a fixture
from tests.integration.append_streams import clock as clock  # noqa: PLC0414  a fixture
from tests.integration.append_streams import opened as opened  # noqa: PLC0414  a fixture
from tests.integration.append_streams import server as server  # noqa: PLC0414  a fixture
from tests.integration.append_streams import stop as stop  # noqa: PLC0414  a fixture
from tests.integration.append_streams import streams as streams  # noqa: PLC0414  a fixture
from tests.unit.cdc_consumer.world import SetClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]


def test_another_column_list_opens_another_connection_and_the_older_rides_on_it_once_it_is_taken(
    server: AppendServer, streams: AppendStreams
) -> None:
    assert streams.append(PLANES, rows_of(1)).refused() == []
    assert streams.append(WIDER, rows_of(2, header=WIDER_HEADER, colour="red")).refused() == []
    assert len(server.connections) == 2
    for identity in range(3, 9):
        assert streams.append(PLANES, rows_of(identity)).refused() == []

    assert len(server.connections) == 2
    _narrow, wide = server.connections
    rows = [row for request in wide.requests for row in request.proto_rows.rows.serialized_rows]
    assert identities(rows, WIDER) == [2, 3, 4, 5, 6, 7, 8]


def test_while_a_new_column_is_not_visible_the_older_column_list_keeps_its_connection(
    server: AppendServer, streams: AppendStreams
) -> None:
    def script(request: Any) -> Any:
        descriptor = request.proto_rows.writer_schema.proto_descriptor
        if any(one.name == "colour" for one in descriptor.field):
            return refused(grpc.StatusCode.INVALID_ARGUMENT, "SCHEMA_MISMATCH_EXTRA_FIELDS")
        return accepted()

    server.script = script
    for identity in range(3):
        with pytest.raises(TableTroubleError):
            streams.append(WIDER, rows_of(identity, header=WIDER_HEADER)).refused()
        assert streams.append(PLANES, rows_of(identity)).refused() == []

    assert sorted(len(connection.requests) for connection in server.connections) == [1, 1, 1, 3]


def open_now() -> int:
    return sum(thread.name.startswith("append ") for thread in threading.enumerate())


def one_row(streams: AppendStreams, table: str) -> StreamAppend:
    header = a_header(table)
    return streams.append(table_definition(header), rows_of(1, header=header))


def write(streams: AppendStreams, *tables: str) -> None:
    for table in tables:
        assert one_row(streams, table).refused() == []


def test_a_stream_long_idle_is_closed_and_opened_again_when_it_is_needed(
    streams: AppendStreams, clock: SetClock
) -> None:
    write(streams, *(f"table{number}" for number in range(5)))
    assert open_now() == 5
    clock.pass_time(timedelta(minutes=6))
    write(streams, "table4")
    assert open_now() == 1
    write(streams, "table0")
    assert streams.connections_opened == 6


@pytest.mark.parametrize("taken_at_once", [None, 2])
def test_no_more_connections_than_the_limit_are_open_though_more_tables_are_written_at_once(
    server: AppendServer, opened: Opened, stop: Stop, taken_at_once: int | None
) -> None:
    """The limit is ours, or BigQuery's when it takes fewer: then those that are idle make room for the others."""
    server.taken_at_once = taken_at_once
    limits = AppendLimits(request_bytes=1_000, window_bytes=3_000, largest_request_bytes=20_000, connections=3)
    streams = opened(limits)
    for _round in range(2):
        headers = [a_header(f"table{number}") for number in range(9)]
        appendings = [
            streams.append(table_definition(header), rows_of(*range(30), header=header)) for header in headers
        ]
        for appending in appendings:
            for attempt in retrying(stop, timedelta(seconds=20)):
                with attempt:
                    assert appending.refused() == []

    assert server.most_open <= (taken_at_once or 3)
    assert len(identities(server.rows)) == 2 * 9 * 30


def silent_on(server: AppendServer, table: str) -> None:
    """Let the server give no answer to a table's rows, on connections of which its path is the first that it hears."""
    server.script = lambda request: Silence() if f"/tables/{table}/" in request.write_stream else accepted()


def test_an_append_that_is_left_frees_the_place_of_its_connection(server: AppendServer, opened: Opened) -> None:
    silent_on(server, "table0")
    streams = opened(AppendLimits(connections=1))
    unanswered, other = one_row(streams, "table0"), one_row(streams, "table1")
    assert other.hear(timedelta(seconds=0.2)) is Heard.SOME, "there is no place to send it from"
    assert unanswered.hear(timedelta(seconds=0.2)) is Heard.NOTHING
    unanswered.leave()

    assert other.refused() == []


def test_a_table_without_a_connection_waits_for_whichever_is_idle_first(server: AppendServer, opened: Opened) -> None:
    silent_on(server, "table0")
    streams = opened(AppendLimits(connections=2))
    unanswered = one_row(streams, "table0")
    assert unanswered.hear(timedelta(seconds=0.2)) is not Heard.ALL
    server.released.clear()
    answered_soon = one_row(streams, "table1")
    timer = threading.Timer(0.2, server.released.set)
    timer.start()

    assert one_row(streams, "table2").refused() == []
    assert answered_soon.refused() == []
    timer.join()


def test_a_limit_of_bigquerys_is_tried_again_after_a_while(
    server: AppendServer, streams: AppendStreams, clock: SetClock
) -> None:
    server.taken_at_once = 1
    write(streams, "table0", "table1")
    assert open_now() == 1
    server.taken_at_once = None
    write(streams, "table2")
    assert open_now() == 1
    clock.pass_time(timedelta(minutes=6))
    write(streams, "table3", "table4")
    assert open_now() == 2


def test_a_table_whose_connection_stays_full_gets_another_and_no_row_is_sent_twice(
    server: AppendServer, opened: Opened
) -> None:
    limits = AppendLimits(request_bytes=1_000, window_bytes=3_000, largest_request_bytes=20_000, full_sends=3)
    streams = opened(limits)
    assert streams.append(PLANES, rows_of(*range(3))).refused() == []
    assert streams.connections_opened == 1
    assert streams.append(PLANES, rows_of(*range(3, 400))).refused() == []
    assert streams.connections_opened == 2

    assert sorted(identities(server.rows)) == list(range(400))
    assert all(connection.requests for connection in server.connections)


def test_what_went_over_connections_is_counted_those_that_are_closed_included(
    server: AppendServer, streams: AppendStreams
) -> None:
    for table in ("planes", "pilots"):
        header = a_header(table)
        assert streams.append(table_definition(header), rows_of(*range(40), header=header)).refused() == []
    assert streams.connections_open == 2
    counted = streams.appends
    streams.close()

    assert streams.connections_open == 0
    assert streams.appends == counted
    assert counted.requests == len(server.requests)
    sent = sum(size for connection in server.connections for size in connection.sizes)
    assert sent - 2 * 400 < counted.bytes < sent  # but for the opening of each
    assert counted.seconds > 0


def test_a_stream_that_has_rows_to_send_is_not_dropped_and_leaves_no_connection_open(
    server: AppendServer, streams: AppendStreams, clock: SetClock
) -> None:
    answers = iter([refused(grpc.StatusCode.RESOURCE_EXHAUSTED)])
    server.script = lambda request: next(answers, accepted())
    first = streams.append(PLANES, rows_of(1))
    with pytest.raises(TransientError):
        first.refused()
    clock.pass_time(timedelta(minutes=10))
    write(streams, "airports")

    assert first.refused() == []
    streams.close()
    assert open_now() == 0
    assert streams.connections_opened == 2


def test_a_connection_is_reported_as_opened_once_bigquery_has_accepted_something_on_it(
    server: AppendServer, streams: AppendStreams, stop: Stop
) -> None:
    answers = iter([Close(), Close(), Close()])
    server.script = lambda request: next(answers, accepted())
    with capture_logs() as logs:
        for attempt in retrying(stop):
            with attempt:
                write(streams, "planes")
        write(streams, "planes")

    (line,) = [line for line in logs if line["event"] == "append_connection_opened"]
    assert (line["table"], line["opened"]) == ("planes", 4)


def test_an_abandoned_append_does_not_keep_its_stream(server: AppendServer, opened: Opened, clock: SetClock) -> None:
    answers = iter([refused(grpc.StatusCode.RESOURCE_EXHAUSTED)])
    server.script = lambda request: next(answers, accepted())
    streams = opened(AppendLimits())
    appending = streams.append(PLANES, rows_of(1))
    with pytest.raises(TransientError):
        appending.refused()
    del appending
    gc.collect()  # the error's traceback knows it too
    clock.pass_time(timedelta(minutes=10))
    write(streams, "airports")

    assert open_now() == 1
