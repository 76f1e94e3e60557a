"""What the append stream makes of refusals: which rows are to blame, which table, or nobody."""

from typing import Any

import grpc
import pytest

from services.cdc_consumer.adapters.bigquery.append_connection import AppendLimits
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.ports import RowError, TableTroubleError
from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason
from tests.integration.append_server import AppendServer, Close, Late, a_status, accepted, bad_rows, refused
from tests.integration.append_streams import PLANES, Opened, identities, ids_of, rows_of
from tests.integration.append_streams import channel as channel  # noqa: PLC0414  a fixture
from tests.integration.append_streams import clock as clock  # noqa: PLC0414  a fixture
from tests.integration.append_streams import opened as opened  # noqa: PLC0414  a fixture
from tests.integration.append_streams import server as server  # noqa: PLC0414  a fixture
from tests.integration.append_streams import stop as stop  # noqa: PLC0414  a fixture
from tests.integration.append_streams import streams as streams  # noqa: PLC0414  a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]


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


@pytest.mark.parametrize("bad", [17, 39], ids=["in the middle", "the last"])
def test_a_request_refused_without_a_row_named_is_halved_down_to_the_row_while_the_table_takes_another(
    server: AppendServer, streams: AppendStreams, bad: int
) -> None:
    taken: list[int] = []

    def script(request: Any) -> Any:
        if bad in ids_of(request):
            return refused(grpc.StatusCode.INVALID_ARGUMENT, message="something is wrong")
        taken.extend(ids_of(request))
        return accepted()

    server.script = script
    errors = streams.append(PLANES, rows_of(*range(40))).refused()

    assert errors == [RowError(bad, Reason.REFUSED_BY_BIGQUERY, "something is wrong")]
    assert set(taken) == set(range(40)) - {bad}
    assert ids_of(server.requests[-1]) != [bad]


@pytest.mark.parametrize("index", [-1, 40])
def test_where_bigquery_blames_a_row_that_was_not_sent_the_bad_one_is_found_all_the_same(
    server: AppendServer, streams: AppendStreams, index: int
) -> None:
    taken: set[int] = set()

    def script(request: Any) -> Any:
        if 17 in ids_of(request):
            return bad_rows(index)
        taken.update(ids_of(request))
        return accepted()

    server.script = script
    errors = streams.append(PLANES, rows_of(*range(40))).refused()

    assert errors == [RowError(17, Reason.REFUSED_BY_BIGQUERY, "refused")]
    assert taken == {*range(40)} - {17}


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
    ("code", "storage"), [("PERMISSION_DENIED", ""), ("INVALID_ARGUMENT", "SCHEMA_MISMATCH_EXTRA_FIELDS")]
)
@pytest.mark.parametrize("closing", [False, True])
def test_an_error_of_one_table_names_that_table(
    server: AppendServer, streams: AppendStreams, code: str, storage: str, closing: bool
) -> None:
    status = grpc.StatusCode[code]
    server.script = lambda _request: (
        Close(status, a_status(status, storage).details) if closing else refused(status, storage)
    )
    with pytest.raises(TableTroubleError, match="table planes"):
        streams.append(PLANES, rows_of(1, 2)).refused()


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


def test_a_row_whose_connection_ends_over_the_one_behind_it_is_not_to_blame(
    server: AppendServer, opened: Opened
) -> None:
    """The call may end with the first request that is read and is wrong, while rows before it are still written."""
    taken: list[int] = []

    def script(request: Any) -> Any:
        (identity,) = ids_of(request)
        if identity == 2:
            return Close(grpc.StatusCode.INVALID_ARGUMENT)
        if identity == 1 and len(server.connections) == 1:
            return Late()
        taken.append(identity)
        return accepted()

    server.script = script
    limits = AppendLimits(request_bytes=100, window_bytes=100_000, largest_request_bytes=20_000)
    errors = opened(limits).append(PLANES, rows_of(1, 2, 3, 4)).refused()

    assert [error.index for error in errors] == [1]
    assert set(taken) == {1, 3, 4}


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
