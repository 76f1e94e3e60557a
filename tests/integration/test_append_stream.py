"""The append stream against a server that does what real ones do: die unanswered, close, refuse, fall silent."""

import gc
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import grpc
import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.append_stream import AppendStreams
from services.cdc_consumer.adapters.connection_pool import Limits
from services.cdc_consumer.adapters.row_encoder import message_class, row_descriptor
from services.cdc_consumer.adapters.storage_channel import open_storage_channel
from services.cdc_consumer.core.columns import decode_messages
from services.cdc_consumer.core.tables import TableDefinition, table_definition
from services.cdc_consumer.ports import RowError, TableTroubleError
from shared.contracts.change_batch import Header
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message, messages_table
from tests.integration.append_server import AppendServer, Close, Silence, a_status, accepted, bad_rows, refused

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]

PLANES = table_definition(a_header())
WIDER_HEADER = a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING")))
WIDER = table_definition(WIDER_HEADER)
SMALL = Limits(request_bytes=1_000, window_bytes=3_000, largest_request_bytes=20_000, connections_of_table=1)


class SetClock:
    def __init__(self) -> None:
        self.time = Nanoseconds(1)

    def now(self) -> Nanoseconds:
        return self.time

    def advance(self, by: timedelta) -> None:
        self.time = Nanoseconds(self.time + int(by.total_seconds() * 1e9))


@pytest.fixture
def server() -> Iterator[AppendServer]:
    server = AppendServer()
    yield server
    server.stop()


@pytest.fixture
def stop() -> Stop:
    return Stop()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def channel(server: AppendServer) -> Iterator[grpc.Channel]:
    with open_storage_channel(server.address) as channel:
        yield channel


@pytest.fixture
def streams(channel: grpc.Channel, stop: Stop, clock: SetClock) -> Iterator[AppendStreams]:
    before = set(threading.enumerate())
    streams = AppendStreams(channel, "p", "d", stop, clock, SMALL)
    yield streams
    streams.close()
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("append")]
    assert left == [], "a connection's thread outlives it"


def rows_of(*identities: int, header: Header | None = None, **values: object) -> pa.Table:
    header = header or a_header()
    changes = [a_change(identity, **values) for identity in identities]  # type: ignore[arg-type]
    (table,) = decode_messages(messages_table(a_message(*changes, header=header)), Nanoseconds(0)).tables
    return table.rows


def identities(rows: Sequence[bytes], definition: TableDefinition = PLANES) -> list[int]:
    parse: Any = message_class(row_descriptor(definition))
    return [parse.FromString(row).id for row in rows]


def ids_of(request: Any) -> list[int]:
    return identities(request.proto_rows.rows.serialized_rows)


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


def test_a_server_that_dies_after_accepting_without_a_word_gets_it_all_again(
    server: AppendServer, streams: AppendStreams
) -> None:
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
def test_any_end_of_a_connection_is_mended_by_another(server: AppendServer, streams: AppendStreams, code: str) -> None:
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


def test_a_service_that_stays_away_is_transient_and_calling_again_sends_only_what_is_left(
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


def test_nobody_listening_is_transient(stop: Stop, clock: SetClock) -> None:
    with open_storage_channel("127.0.0.1:1") as channel:
        streams = AppendStreams(channel, "p", "d", stop, clock, SMALL)
        appending = streams.append(PLANES, rows_of(*range(100)))
        with pytest.raises(TransientError):
            appending.refused()
        assert streams.connections_opened < 5
        streams.close()


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "ABORTED", "UNAVAILABLE", "INTERNAL"])
def test_a_refusal_that_may_pass_is_for_the_callers_backoff_and_the_connection_stays(
    server: AppendServer, streams: AppendStreams, code: str
) -> None:
    answers = iter([refused(grpc.StatusCode[code])])
    server.script = lambda _request: next(answers, accepted())
    appending = streams.append(PLANES, rows_of(*range(40)))
    with pytest.raises(TransientError, match=code):
        appending.refused()

    assert appending.refused() == []
    assert len(server.connections) == 1
    assert sorted(identities(server.rows)) == sorted([*range(40), *ids_of(server.requests[0])])


def test_bad_rows_are_returned_by_index_and_the_rest_of_their_request_is_sent_again(
    server: AppendServer, streams: AppendStreams
) -> None:
    bad = {7, 8, 33}
    taken: list[int] = []

    def script(request: Any) -> Any:
        found = [index for index, identity in enumerate(ids_of(request)) if identity in bad]
        if found:
            return bad_rows(*found)
        taken.extend(ids_of(request))
        return accepted()

    server.script = script
    errors = streams.append(PLANES, rows_of(*range(50))).refused()

    assert [(error.index, error.reason) for error in errors] == [(i, Reason.REFUSED_BY_BIGQUERY) for i in (7, 8, 33)]
    assert errors[0].detail.endswith("is bad")
    assert sorted(taken) == sorted(set(range(50)) - bad)


def test_a_request_of_nothing_but_bad_rows_is_not_sent_again(server: AppendServer, streams: AppendStreams) -> None:
    server.script = lambda _request: bad_rows(0, 1)
    errors = streams.append(PLANES, rows_of(1, 2)).refused()

    assert [error.index for error in errors] == [0, 1]
    assert len(server.requests) == 1


def test_a_request_refused_without_a_row_named_is_halved_down_to_the_row_that_provokes_it(
    server: AppendServer, streams: AppendStreams
) -> None:
    taken: list[int] = []

    def script(request: Any) -> Any:
        if 17 in ids_of(request):
            return refused(grpc.StatusCode.INVALID_ARGUMENT, message="something is wrong")
        taken.extend(ids_of(request))
        return accepted()

    server.script = script
    errors = streams.append(PLANES, rows_of(*range(40))).refused()

    assert errors == [RowError(17, Reason.REFUSED_BY_BIGQUERY, "something is wrong")]
    assert sorted(taken) == [n for n in range(40) if n != 17]


@pytest.mark.parametrize("rows", [1, 5, 500])
def test_a_table_that_refuses_every_half_is_in_trouble_and_no_row_is_to_blame(
    server: AppendServer, streams: AppendStreams, rows: int
) -> None:
    server.script = lambda _request: refused(grpc.StatusCode.INVALID_ARGUMENT, message="something is wrong")
    with pytest.raises(TableTroubleError, match="something is wrong"):
        streams.append(PLANES, rows_of(*range(rows))).refused()
    assert len(server.requests) < 60

    server.script = lambda _request: accepted()
    assert streams.append(PLANES, rows_of(*range(rows))).refused() == []


@pytest.mark.parametrize(
    ("code", "storage"),
    [
        ("NOT_FOUND", "TABLE_NOT_FOUND"),
        ("INVALID_ARGUMENT", "SCHEMA_MISMATCH_EXTRA_FIELDS"),
        ("PERMISSION_DENIED", ""),
        ("NOT_FOUND", ""),
        ("INVALID_ARGUMENT", "KMS_PERMISSION_DENIED"),
    ],
)
@pytest.mark.parametrize("closing", [False, True])
def test_what_is_one_tables_trouble_is_said_so(
    server: AppendServer, streams: AppendStreams, code: str, storage: str, closing: bool
) -> None:
    status = grpc.StatusCode[code]
    server.script = lambda _request: (
        Close(status, a_status(status, storage).details) if closing else refused(status, storage)
    )
    with pytest.raises(TableTroubleError, match="table planes"):
        streams.append(PLANES, rows_of(1, 2)).refused()


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "UNIMPLEMENTED"])
def test_what_nobody_but_a_person_can_mend_is_misconfigured(
    server: AppendServer, streams: AppendStreams, code: str
) -> None:
    server.script = lambda _request: Close(grpc.StatusCode[code])
    with pytest.raises(MisconfiguredError, match=code):
        streams.append(PLANES, rows_of(1)).refused()


def test_a_server_that_falls_silent_is_left_for_another_connection(
    server: AppendServer, channel: grpc.Channel, stop: Stop, clock: SetClock
) -> None:
    answers = iter([accepted(), Silence()])
    server.script = lambda _request: next(answers, accepted())
    streams = AppendStreams(channel, "p", "d", stop, clock, Limits(answer_within=timedelta(seconds=0.3)))
    assert streams.append(PLANES, rows_of(1)).refused() == []

    assert streams.append(PLANES, rows_of(2)).refused() == []
    assert [ids_of(request) for request in server.requests] == [[1], [2], [2]]
    streams.close()


def test_asked_to_stop_while_it_waits_it_waits_a_little_longer_and_no_more(
    server: AppendServer, streams: AppendStreams, stop: Stop
) -> None:
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


def test_a_refused_opening_is_sent_again_with_the_next_request(server: AppendServer, streams: AppendStreams) -> None:
    answers = iter([refused(grpc.StatusCode.INVALID_ARGUMENT), refused(grpc.StatusCode.RESOURCE_EXHAUSTED)])
    server.script = lambda _request: next(answers, accepted())
    appending = streams.append(PLANES, rows_of(1, 2))
    with pytest.raises(TransientError):
        appending.refused()
    assert appending.refused() == []

    opened = [request.proto_rows.HasField("writer_schema") for request in server.requests]
    assert opened[:3] == [True, True, False]
    assert len(server.connections) == 1


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


def open_now() -> int:
    return sum(thread.name.startswith("append ") for thread in threading.enumerate())


def test_a_stream_long_idle_is_closed_and_opened_again_when_it_is_needed(
    server: AppendServer, channel: grpc.Channel, stop: Stop, clock: SetClock
) -> None:
    streams = AppendStreams(channel, "p", "d", stop, clock, SMALL)

    def write(table: str) -> None:
        header = a_header(table)
        assert streams.append(table_definition(header), rows_of(1, header=header)).refused() == []

    for number in range(5):
        write(f"table{number}")
    assert open_now() == 5
    clock.advance(timedelta(minutes=6))
    write("table4")
    assert open_now() == 1
    write("table0")
    assert streams.connections_opened == 6
    streams.close()
    assert open_now() == 0


@pytest.mark.parametrize("taken_at_once", [None, 2])
def test_no_more_connections_than_the_limit_are_open_though_more_tables_are_written_at_once(
    server: AppendServer, channel: grpc.Channel, stop: Stop, clock: SetClock, taken_at_once: int | None
) -> None:
    """The limit is ours, or BigQuery's when it takes fewer: then those that are idle make room for the others."""
    server.taken_at_once = taken_at_once
    limits = Limits(request_bytes=1_000, window_bytes=3_000, largest_request_bytes=20_000, connections=3)
    streams = AppendStreams(channel, "p", "d", stop, clock, limits)
    for _round in range(2):
        headers = [a_header(f"table{number}") for number in range(9)]
        appendings = [
            streams.append(table_definition(header), rows_of(*range(30), header=header)) for header in headers
        ]
        for appending in appendings:
            for attempt in retrying(stop, timedelta(seconds=20)):
                with attempt:
                    assert appending.refused() == []
    streams.close()

    assert server.most_open <= (taken_at_once or 3)
    assert len(identities(server.rows)) == 2 * 9 * 30


def test_a_limit_of_bigquerys_is_tried_again_after_a_while(
    server: AppendServer, streams: AppendStreams, clock: SetClock
) -> None:
    def write(table: str) -> None:
        header = a_header(table)
        assert streams.append(table_definition(header), rows_of(1, header=header)).refused() == []

    server.taken_at_once = 1
    write("table0")
    write("table1")
    assert open_now() == 1
    server.taken_at_once = None
    write("table2")
    assert open_now() == 1
    clock.advance(timedelta(minutes=6))
    write("table3")
    write("table4")
    assert open_now() == 2


def test_a_table_whose_connection_stays_full_gets_another_and_no_row_is_sent_twice(
    server: AppendServer, channel: grpc.Channel, stop: Stop, clock: SetClock
) -> None:
    limits = Limits(request_bytes=1_000, window_bytes=3_000, largest_request_bytes=20_000, full_sends=3)
    streams = AppendStreams(channel, "p", "d", stop, clock, limits)
    assert streams.append(PLANES, rows_of(*range(3))).refused() == []
    assert streams.connections_opened == 1
    assert streams.append(PLANES, rows_of(*range(3, 400))).refused() == []
    assert streams.connections_opened == 2
    streams.close()

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


def test_deletes_and_nulls_are_sent_as_they_are(server: AppendServer, streams: AppendStreams) -> None:
    streams.append(PLANES, rows_of(5, op="DELETE")).refused()
    parse: Any = message_class(row_descriptor(PLANES))
    row = parse.FromString(server.rows[0])

    assert row._CHANGE_TYPE == "DELETE"
    assert row.id == 5
    assert not row.HasField("name")
    assert row._CHANGE_SEQUENCE_NUMBER.startswith("0000000000000001/")


def test_trouble_that_begins_in_mid_append_blames_no_row(server: AppendServer, streams: AppendStreams) -> None:
    """The first requests are accepted, then the table takes nothing more, and few rows are left to be refused."""
    count = iter(range(1_000))
    server.script = lambda _request: (
        accepted() if next(count) < 2 else refused(grpc.StatusCode.INVALID_ARGUMENT, message="not any more")
    )
    appending = streams.append(PLANES, rows_of(*range(25)))
    with pytest.raises(TableTroubleError, match="not any more") as raised:
        appending.refused()
    assert raised.value.shown == "INVALID_ARGUMENT"

    server.script = lambda _request: accepted()
    assert appending.refused() == []
    assert set(identities(server.rows)) == set(range(25))


def test_the_last_row_is_blamed_only_when_the_table_still_takes_another(
    server: AppendServer, streams: AppendStreams
) -> None:
    def script(request: Any) -> Any:
        return refused(grpc.StatusCode.INVALID_ARGUMENT, message="bad") if 24 in ids_of(request) else accepted()

    server.script = script
    errors = streams.append(PLANES, rows_of(*range(25))).refused()

    assert errors == [RowError(24, Reason.REFUSED_BY_BIGQUERY, "bad")]
    assert ids_of(server.requests[-1]) != [24]


def test_a_stream_that_has_rows_to_send_is_not_dropped_and_leaves_no_connection_that_nobody_closes(
    server: AppendServer, channel: grpc.Channel, stop: Stop, clock: SetClock
) -> None:
    answers = iter([refused(grpc.StatusCode.RESOURCE_EXHAUSTED)])
    server.script = lambda request: next(answers, accepted())
    streams = AppendStreams(channel, "p", "d", stop, clock, SMALL)
    first = streams.append(PLANES, rows_of(1))
    with pytest.raises(TransientError):
        first.refused()
    clock.advance(timedelta(minutes=10))
    other = a_header("airports")
    assert streams.append(table_definition(other), rows_of(2, header=other)).refused() == []

    assert first.refused() == []
    streams.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("append ")]
    assert streams.connections_opened == 2


def test_an_append_that_nobody_waits_for_any_more_does_not_keep_its_stream(
    server: AppendServer, channel: grpc.Channel, stop: Stop, clock: SetClock
) -> None:
    answers = iter([refused(grpc.StatusCode.RESOURCE_EXHAUSTED)])
    server.script = lambda request: next(answers, accepted())
    streams = AppendStreams(channel, "p", "d", stop, clock, Limits())
    appending = streams.append(PLANES, rows_of(1))
    with pytest.raises(TransientError):
        appending.refused()
    del appending
    gc.collect()  # the error's traceback knows it too
    clock.advance(timedelta(minutes=10))
    other = a_header("airports")
    assert streams.append(table_definition(other), rows_of(2, header=other)).refused() == []

    open_now = [thread.name for thread in threading.enumerate() if thread.name.startswith("append ")]
    assert len(open_now) == 1
    streams.close()


def test_what_is_logged_of_a_refusal_holds_no_words_of_bigquery(server: AppendServer, streams: AppendStreams) -> None:
    server.script = lambda _request: refused(grpc.StatusCode.INTERNAL, message="value 'secret'")
    with pytest.raises(TransientError) as transient:
        streams.append(PLANES, rows_of(1)).refused()
    server.script = lambda _request: refused(grpc.StatusCode.NOT_FOUND, "TABLE_NOT_FOUND", message="value 'secret'")
    with pytest.raises(TableTroubleError) as trouble:
        streams.append(PLANES, rows_of(1)).refused()

    assert str(transient.value) == "table planes: append refused, INTERNAL"
    assert trouble.value.shown == "NOT_FOUND TABLE_NOT_FOUND"


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
    streams.close()
    again.stop()
