"""Before a Spanner that takes calls and answers none of them, only some, or late: a stop, a caller that is gone, and
what a reader does by itself.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from google.cloud.spanner_v1 import Mutation, PartialResultSet
from prometheus_client import CollectorRegistry

from services.spanner_reader.adapters.snapshot import rows
from services.spanner_reader.adapters.snapshot.rows import SpannerRows
from services.spanner_reader.adapters.spanner.connection import Row, SpannerChannels, SpannerDatabaseClient, Statement
from services.spanner_reader.adapters.stream import change_stream
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.stream.records import ROOT, HeartbeatRecord, SpannerStreamQuery, StreamRecord
from services.spanner_reader.ports import WatchedTable
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.service import read
from shared.contracts.errors import TransientError
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.runtime.health import Health
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from shared.streams import connections
from tests.fakes.spanner_reader import one_by_one
from tests.integration.scripted_spanner import ScriptedSpanner
from tests.integration.scripted_spanner_world import DATABASE, FIRST, START, a_world, until
from tests.integration.silent_server import SpannerServer, serving_spanner, stopped_before_a_silent_server
from tests.unit.spanner_reader.scripts import COLUMNS

pytestmark = pytest.mark.integration

QUERY = SpannerStreamQuery(ROOT, START, None, 1_000)
BEAT = HeartbeatRecord(FIRST)
DELETION = Mutation(delete=Mutation.Delete(table="t"))


def test_what_spanner_does_not_answer_at_the_start_is_cancelled() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        needed = {
            "GOOGLE_CLOUD_PROJECT": "p",
            "SPANNER_INSTANCE": "i",
            "SPANNER_DATABASE": "d",
            "CHANGE_STREAM": "Everything",
            "TOPIC": "changes",
            "DEAD_LETTER_TOPIC": "dead",
            "SPANNER_EMULATOR_HOST": address,
        }
        subscriptions = TopicSubscriptions(address, [], timedelta(days=1))
        metrics = SpannerReaderMetrics(CollectorRegistry(), "s")
        await read(read_settings(Settings, needed), stop, Health(), metrics, subscriptions)

    stopped_before_a_silent_server(scenario)


class Endless(SpannerServer):
    """Begins transactions, and never ends one: of commits and rollbacks it notes how much time they have."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.given: dict[str, float] = {}
        """Seconds that a call was given."""
        self.left: dict[str, float] = {}
        """Seconds that a call still had when it was over."""
        self.moved = asyncio.Event()

    def service(self, handler_call_details: Any) -> Any:
        self.calls[handler_call_details.method.rpartition("/")[2]] += 1
        return super().service(handler_call_details)

    async def _execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield PartialResultSet.pb()(metadata={"transaction": {"id": b"transaction"}})

    async def _other(self, name: str, _request: Any, context: Any) -> Any:
        self.given[name] = context.time_remaining()
        self.moved.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left[name] = context.time_remaining()
            self.moved.set()

    async def has(self, *names: str) -> None:
        """Wait until these calls have come."""
        while not self.given.keys() >= set(names):
            self.moved.clear()
            await self.moved.wait()


def test_an_abandoned_transaction_is_rolled_back_soon_and_those_behind_it_never_begin() -> None:
    def decide(_rows: list[Row]) -> tuple[None, list[Mutation]]:
        return None, [DELETION]

    async def scenario() -> None:
        endless = Endless()
        async with serving_spanner(endless) as database:
            first = asyncio.create_task(database.read_then_write(Statement("SELECT 1"), decide))
            await endless.has("Commit")
            behind = [
                asyncio.create_task(database.read_then_write(Statement("SELECT 1"), decide)) for _number in range(3)
            ]
            await asyncio.sleep(0)
            for task in (first, *behind):
                task.cancel()
            await asyncio.gather(first, *behind, return_exceptions=True)
            assert first.cancelled()
            assert all(task.cancelled() for task in behind)
        assert endless.calls == {"CreateSession": 1, "ExecuteStreamingSql": 1, "Commit": 1, "Rollback": 1}
        assert endless.left["Commit"] > 1  # given up before its own time was over
        assert endless.given["Rollback"] < 1  # and what is left of the caller's second is for this

    asyncio.run(asyncio.wait_for(scenario(), 120))


async def first_record(stream: SpannerChangeStream) -> StreamRecord:
    async with aclosing(one_by_one(stream.read(QUERY))) as records:
        return await anext(records)


def before_a_scripted_spanner(scenario: Callable[[ScriptedSpanner, SpannerDatabaseClient], Awaitable[None]]) -> None:
    """Run a scenario before a stream that has one heartbeat to tell."""

    async def running(server: ScriptedSpanner) -> None:
        channels = SpannerChannels(server.address)
        try:
            await scenario(server, SpannerDatabaseClient(DATABASE, channels))
        finally:
            await channels.close()

    with a_world() as world:
        world.stream.add(ROOT, BEAT)
        asyncio.run(asyncio.wait_for(running(world.server), 60))


def test_a_query_that_is_taken_and_never_answered_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "_STUCK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(change_stream, "_STUCK_AFTER_HEARTBEATS", 0.3)

    async def scenario(server: ScriptedSpanner, database: SpannerDatabaseClient) -> None:
        monkeypatch.setattr(connections, "_OPENING_SECONDS", 1.0)
        server.silent_for = None
        stream = SpannerChangeStream(database, "Everything")
        with pytest.raises(TransientError, match="no record and no heartbeat in time"):
            await first_record(stream)
        await until(lambda: server.given_up == ["ExecuteStreamingSql"])

        monkeypatch.setattr(connections, "_OPENING_SECONDS", 30.0)
        server.silent_for = 0.0
        assert await first_record(stream) == BEAT

    before_a_scripted_spanner(scenario)


def test_a_service_that_always_needs_long_for_its_first_record_is_read_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_stream, "_STUCK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(change_stream, "_STUCK_AFTER_HEARTBEATS", 0)
    monkeypatch.setattr(connections, "_OPENING_SECONDS", 0.2)
    given_up = 0

    async def scenario(server: ScriptedSpanner, database: SpannerDatabaseClient) -> None:
        nonlocal given_up
        server.silent_for = 2.0
        stream = SpannerChangeStream(database, "Everything")
        while True:
            try:
                assert await first_record(stream) == BEAT
            except TransientError:
                given_up += 1
            else:
                return

    before_a_scripted_spanner(scenario)
    assert given_up >= 1


def test_a_reading_of_rows_that_is_taken_and_never_answered_is_given_up_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW")

    async def scenario(server: ScriptedSpanner, database: SpannerDatabaseClient) -> None:
        reader = SpannerRows(database, data_boost=False)

        async def read() -> list[object]:
            async with aclosing(reader.read(table, START, after=None, until=None)) as batches:
                return [row async for some in batches for row in some]

        monkeypatch.setattr(rows, "_OPENING_TIMEOUT", timedelta(seconds=1))
        server.silent_for = None
        with pytest.raises(TransientError, match="no rows in time"):
            await read()
        await until(lambda: server.given_up == ["StreamingRead"])

        monkeypatch.setattr(rows, "_OPENING_TIMEOUT", timedelta(seconds=30))
        server.silent_for = 0.0
        assert await read() == []

    before_a_scripted_spanner(scenario)
