"""The append stream against a server that does what real ones do: die unanswered, close, refuse, fall silent."""

import threading
from datetime import timedelta
from typing import Any

import grpc
import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.bigquery.append_connection import AppendLimits, open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.bigquery.row_encoder import message_class, row_descriptor
from services.cdc_consumer.ports import Heard, TableTroubleError
from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop
from tests.integration.append_server import AppendServer, Close, Silence, accepted, bad_rows
from tests.integration.append_streams import PLANES, SMALL, Opened, identities, ids_of, rows_of
from tests.integration.append_streams import channel as channel  # noqa: PLC0414  a fixture
from tests.integration.append_streams import clock as clock  # noqa: PLC0414  a fixture
from tests.integration.append_streams import opened as opened  # noqa: PLC0414  a fixture
from tests.integration.append_streams import server as server  # noqa: PLC0414  a fixture
from tests.integration.append_streams import stop as stop  # noqa: PLC0414  a fixture
from tests.integration.append_streams import streams as streams  # noqa: PLC0414  a fixture
from tests.unit.cdc_consumer.world import SetClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]


def test_the_first_request_names_stream_and_schema_and_the_others_do_not(
    server: AppendServer, streams: AppendStreams
) -> None:
    assert streams.append(PLANES, rows_of(*range(100))).refused() == []

    (connection,) = server.connections
    path = "projects/p/datasets/d/tables/planes/streams/_default"
    assert connection.metadata["x-goog-request-params"] == f"write_stream={path}"
    first, *others = connection.requests
    assert first.write_stream == path
    assert first.proto_rows.writer_schema.proto_descriptor == row_descriptor(PLANES)
    assert len(others) > 5
    assert not any(request.write_stream or request.proto_rows.HasField("writer_schema") for request in others)
    assert identities(server.rows) == list(range(100))


def test_the_connection_stays_open_from_one_append_to_the_next(server: AppendServer, streams: AppendStreams) -> None:
    for identity in range(20):
        assert streams.append(PLANES, rows_of(identity)).refused() == []

    assert (len(server.connections), streams.connections_opened) == (1, 1)


def test_requests_are_cut_by_bytes_and_a_row_too_large_for_any_is_refused_and_never_sent(
    server: AppendServer, streams: AppendStreams
) -> None:
    rows = pa.concat_tables(
        [rows_of(1), rows_of(2, name="x" * 5_000), rows_of(3, name="y" * 30_000), rows_of(*range(4, 40))]
    )
    (error,) = streams.append(PLANES, rows).refused()

    assert (error.index, error.reason) == (2, Reason.TOO_LARGE)
    assert identities(server.rows) == [1, 2, *range(4, 40)]
    sizes = server.connections[0].sizes
    assert max(sizes) < SMALL.largest_request_bytes
    assert sum(size > 1_300 for size in sizes) == 1  # but for the one large row and the opening


def test_no_more_than_the_window_is_in_flight(server: AppendServer, streams: AppendStreams) -> None:
    server.released.clear()
    appending = streams.append(PLANES, rows_of(*range(200)))
    threading.Event().wait(0.2)
    assert sum(len(request.data) for request in appending._sent) <= SMALL.window_bytes
    server.released.set()

    assert appending.refused() == []
    assert identities(server.rows) == list(range(200))


def test_a_server_that_dies_before_it_answers_gets_all_rows_again(server: AppendServer, streams: AppendStreams) -> None:
    answers = iter([accepted(), accepted(), Close(grpc.StatusCode.UNAVAILABLE)])
    server.script = lambda _request: next(answers, accepted())

    assert streams.append(PLANES, rows_of(*range(60))).refused() == []
    first, second = server.connections
    assert len(first.requests) == 3
    resent = [identity for request in second.requests for identity in ids_of(request)]
    answered = [identity for request in first.requests[:2] for identity in ids_of(request)]
    assert answered + resent == list(range(60))  # all that had no answer, in its order, and nothing else
    assert second.requests[0].proto_rows.HasField("writer_schema")


@pytest.mark.parametrize("code", ["ABORTED", "CANCELLED", "INTERNAL", "DEADLINE_EXCEEDED", "UNKNOWN", "OK"])
def test_a_connection_that_ends_in_any_way_is_replaced(server: AppendServer, streams: AppendStreams, code: str) -> None:
    answers = iter([Close(grpc.StatusCode[code])])
    server.script = lambda _request: next(answers, accepted())

    assert streams.append(PLANES, rows_of(*range(50))).refused() == []
    assert sorted(set(identities(server.rows))) == list(range(50))


def test_a_connection_closed_while_idle_is_replaced_without_a_word(
    server: AppendServer, streams: AppendStreams
) -> None:
    for identity in range(10):
        assert streams.append(PLANES, rows_of(identity)).refused() == []
        server.hang_up()

    assert identities(server.rows) == list(range(10))
    assert len(server.connections) == 10


def test_a_connection_that_is_closed_twice_in_a_row_is_for_the_callers_backoff(
    server: AppendServer, streams: AppendStreams
) -> None:
    server.script = lambda request: Close(grpc.StatusCode.ABORTED) if ids_of(request) == [2] else accepted()
    assert streams.append(PLANES, rows_of(1)).refused() == []
    with pytest.raises(TransientError):
        streams.append(PLANES, rows_of(2)).refused()
    server.script = lambda _request: accepted()

    assert streams.append(PLANES, rows_of(3)).refused() == []


def test_a_service_that_stays_unavailable_is_transient_and_the_next_call_sends_only_unanswered_rows(
    server: AppendServer, streams: AppendStreams
) -> None:
    answers = iter([accepted(), *[Close()] * 4])
    server.script = lambda _request: next(answers, accepted())
    appending = streams.append(PLANES, rows_of(*range(30)))
    for _ in range(2):
        with pytest.raises(TransientError) as raised:
            appending.refused()
        assert not isinstance(raised.value, TableTroubleError)

    assert appending.refused() == []
    assert len([row for row in identities(server.rows) if row == 0]) == 1  # was accepted the first time
    assert sorted(set(identities(server.rows))) == list(range(30))


def test_a_port_without_a_listener_is_transient(stop: Stop, clock: SetClock) -> None:
    with open_storage_channel("127.0.0.1:1") as channel:
        streams = AppendStreams(channel, "p", "d", stop, clock, SMALL)
        appending = streams.append(PLANES, rows_of(*range(100)))
        with pytest.raises(TransientError):
            appending.refused()
        assert streams.connections_opened < 5
        streams.close()


def _streams_of_one_that_falls_silent(server: AppendServer, opened: Opened) -> AppendStreams:
    """Return streams whose first row was accepted, and whose next request gets no answer."""
    answers = iter([accepted(), Silence()])
    server.script = lambda _request: next(answers, accepted())
    streams = opened(AppendLimits(answer_within=timedelta(seconds=0.3)))
    assert streams.append(PLANES, rows_of(1)).refused() == []
    return streams


def test_a_server_that_falls_silent_is_left_for_another_connection(server: AppendServer, opened: Opened) -> None:
    streams = _streams_of_one_that_falls_silent(server, opened)
    assert streams.append(PLANES, rows_of(2)).refused() == []
    assert [ids_of(request) for request in server.requests] == [[1], [2], [2]]


def test_a_silent_server_is_left_by_an_append_that_is_heard_a_moment_at_a_time(
    server: AppendServer, opened: Opened
) -> None:
    streams = _streams_of_one_that_falls_silent(server, opened)
    appending, heard = streams.append(PLANES, rows_of(2)), set()
    while (latest := appending.hear(timedelta(seconds=0.02))) is not Heard.ALL:
        heard.add(latest)
    assert Heard.NOTHING in heard
    assert appending.refused() == []
    assert [ids_of(request) for request in server.requests] == [[1], [2], [2]]


def test_a_stop_during_a_wait_ends_the_wait_soon(server: AppendServer, streams: AppendStreams, stop: Stop) -> None:
    server.script = lambda _request: Silence()
    appending = streams.append(PLANES, rows_of(1))
    timer = threading.Timer(0.2, stop.request)
    timer.start()
    with pytest.raises(TransientError, match="asked to stop"):
        appending.refused()
    timer.join()


def test_an_answer_with_a_new_schema_is_an_acceptance(server: AppendServer, streams: AppendStreams) -> None:
    server.script = lambda _request: accepted(updated_schema=True)
    assert streams.append(PLANES, rows_of(1)).refused() == []


def test_two_appends_to_a_table_under_way_at_once_get_each_their_own_answers(
    server: AppendServer, streams: AppendStreams
) -> None:
    server.script = lambda request: bad_rows(0) if ids_of(request) == [100] else accepted()
    one = streams.append(PLANES, rows_of(1))
    two = streams.append(PLANES, rows_of(100))
    three = streams.append(PLANES, rows_of(3))

    assert three.refused() == []
    assert [error.index for error in two.refused()] == [0]
    assert one.refused() == []


def test_deletes_and_nulls_are_sent_as_they_are(server: AppendServer, streams: AppendStreams) -> None:
    streams.append(PLANES, rows_of(5, op="DELETE")).refused()
    parse: Any = message_class(row_descriptor(PLANES))
    row = parse.FromString(server.rows[0])

    assert row._CHANGE_TYPE == "DELETE"
    assert row.id == 5
    assert not row.HasField("name")
    assert row._CHANGE_SEQUENCE_NUMBER.startswith("0000000000000001/")


def test_a_server_that_is_restarted_in_mid_append_gets_what_it_had_not_answered(
    server: AppendServer, streams: AppendStreams
) -> None:
    answers = iter([accepted(), accepted()])
    server.script = lambda _request: next(answers, Silence())
    appending = streams.append(PLANES, rows_of(*range(60)))
    while len(server.requests) < 3:
        threading.Event().wait(0.01)
    server.stop()
    with pytest.raises(TransientError):
        appending.refused()

    again = AppendServer(server.address)
    for attempt in retrying(Stop(), timedelta(seconds=20)):
        with attempt:
            assert appending.refused() == []
    answered = [identity for request in server.requests[:2] for identity in ids_of(request)]
    assert answered + identities(again.rows) == list(range(60))
    again.stop()
