"""Results of queries: larger than one answer may be, cut anywhere, and broken off in the middle."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
import pytest
from google.cloud.spanner_v1 import PartialResultSet, Session

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.spanner.connection import Row, SpannerChannels, SpannerDatabaseClient, Statement
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds
from tests.integration.scripted_spanner import ScriptedSpanner, ScriptedStream
from tests.integration.silent_server import SpannerServer, serving_spanner

pytestmark = pytest.mark.integration

TWO_COLUMNS: Final = {"row_type": {"fields": [{"name": "a"}, {"name": "b"}]}}
RESPONSES: Final[Sequence[dict[str, Any]]] = (
    {"metadata": TWO_COLUMNS, "values": ["1", "on"], "chunked_value": True},
    {"values": ["e", "2"], "resume_token": b"after one"},
    {"values": ["t"], "chunked_value": True, "resume_token": b"within two"},
    {"values": ["w"], "chunked_value": True},
    {"values": ["o", "3", "three"]},
)
ROWS: Final = [["1", "one"], ["2", "two"], ["3", "three"]]


class Results(SpannerServer):
    """Answers every query with the same rows, from the resume token on, and breaks off where it is told."""

    def __init__(self, *breaks: int) -> None:
        """Take how many responses come before each break."""
        self.resumed_at: list[bytes] = []
        self._breaks = list(breaks)

    async def _execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.resumed_at.append(request.resume_token)
        tokens = [b"", *(one.get("resume_token") for one in RESPONSES)]
        before = self._breaks.pop(0) if self._breaks else len(RESPONSES)
        for response in RESPONSES[tokens.index(request.resume_token) :][:before]:
            part = PartialResultSet.pb(
                PartialResultSet({name: value for name, value in response.items() if name != "values"})
            )
            for text in response["values"]:
                part.values.add().string_value = text
            yield part
        if before < len(RESPONSES):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "GOAWAY received")


async def answer(results: Results) -> list[Row]:
    async with serving_spanner(results) as database:
        return await database.query(Statement("SELECT a, b FROM t"))


@pytest.mark.parametrize(
    ("breaks", "resumed_at"),
    [
        ((), [b""]),
        ((2,), [b"", b"after one"]),
        ((4,), [b"", b"within two"]),
        ((2, 2), [b"", b"after one", b"within two"]),
    ],
)
def test_a_result_that_breaks_off_goes_on_where_its_token_says(breaks: Sequence[int], resumed_at: list[bytes]) -> None:
    results = Results(*breaks)
    assert asyncio.run(answer(results)) == ROWS
    assert results.resumed_at == resumed_at


@pytest.mark.parametrize("breaks", [(1,), (3, 1)])
def test_a_result_that_came_no_further_than_before_is_for_the_caller_to_ask_for_again(breaks: Sequence[int]) -> None:
    with pytest.raises(TransientError, match="GOAWAY"):
        asyncio.run(answer(Results(*breaks)))


async def test_a_schema_too_large_for_one_answer_is_read(database: Callable[..., SpannerDatabase]) -> None:
    made = database("CREATE TABLE t (id INT64, v STRING(MAX)) PRIMARY KEY (id)", "CREATE CHANGE STREAM s FOR t")
    server = ScriptedSpanner("s", ScriptedStream(Nanoseconds(made.now())), made.instance.address)
    server.largest_result = 20  # ten MiB are for the service
    channels = SpannerChannels(server.address)
    inspection = await SpannerCatalog(SpannerDatabaseClient(made.path, channels), "s").inspect()
    assert [column.name for column in inspection.watched[0].column_types] == ["id", "v"]
    await channels.close()
    server.stop()


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("postgresql", [False, True])
async def test_columns_are_read_of_the_streams_tables_alone_and_of_all_where_it_watches_everything(
    database: Callable[..., SpannerDatabase], postgresql: bool, everything: bool
) -> None:
    table = (
        "CREATE TABLE {0} (a bigint, z varchar, id bigint, PRIMARY KEY (z, a))"
        if postgresql
        else "CREATE TABLE {0} (a INT64, z STRING(9), id INT64) PRIMARY KEY (z, a)"
    )
    watching = "ALL" if everything else "t(id)"
    made = database(
        *(table.format(name) for name in ("t", "u")), f"CREATE CHANGE STREAM s FOR {watching}", postgresql=postgresql
    )
    channels = SpannerChannels(made.instance.address)
    reading = SpannerDatabaseClient(made.path, channels)
    await reading.learn_dialect()
    inspection = await SpannerCatalog(reading, "s").inspect()
    shapes = inspection.shapes.tables
    assert {name: one.watched for name, one in shapes.items()} == {"t": True, "u": everything}
    assert [column.name for column in shapes["t"].columns] == ["a", "z", "id"]
    assert [column.name for column in shapes["u"].columns] == (["a", "z", "id"] if everything else [])
    assert (inspection.watched[0].name, inspection.watched[0].primary_key) == ("t", ("z", "a"))
    await channels.close()


class DroppedSession(Results):
    """Has dropped the first session: each query in it is told so, and the one with a comment not before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def _session(self, request: Any, _context: Any) -> Any:
        self.made += 1
        return Session.pb()(name=f"{request.database}/sessions/s{self.made}", multiplexed=True)

    async def _execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.session.endswith("/s1"):
            if "late" in request.sql:
                self.asked.set()
                await self.go_on.wait()
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Session not found: {request.session}")
        async for response in super()._execute(request, context):
            yield response


async def test_a_session_that_was_dropped_is_replaced_once_however_many_calls_hear_of_it() -> None:
    server = DroppedSession()
    async with serving_spanner(server) as database:
        late = asyncio.create_task(database.query(Statement("SELECT a, b FROM t -- late")))
        await server.asked.wait()
        with pytest.raises(TransientError, match="Session not found"):
            await database.query(Statement("SELECT a, b FROM t"))
        assert await database.query(Statement("SELECT a, b FROM t")) == ROWS
        server.go_on.set()
        with pytest.raises(TransientError, match="Session not found"):
            await late
        assert await database.query(Statement("SELECT a, b FROM t")) == ROWS
        assert server.made == 2
