"""Queries of a change stream on the Spanner emulator: where they start and end, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerDatabase, SpannerInstance
from services.spanner_reader.adapters.schema.catalog import SpannerCatalog, check_start
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartitionsRecord,
    HeartbeatRecord,
    PartitionToken,
    SpannerStreamQuery,
    StreamRecord,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.spanner_reader import one_by_one
from tests.worlds.spanner_source import TABLES, Source, a_source, changes_of, singer

pytestmark = pytest.mark.integration


@pytest.fixture
def source(database: Callable[..., SpannerDatabase]) -> Source:
    return a_source(database)


@asynccontextmanager
async def connected(
    source: Source, suffix: str = ""
) -> AsyncIterator[tuple[SpannerDatabaseClient, SpannerChangeStream]]:
    channels = SpannerChannels(source.database.instance.address)
    try:
        database = SpannerDatabaseClient(source.database.path + suffix, channels)
        yield database, SpannerChangeStream(database, "Everything")
    finally:
        await channels.close()  # at once: leaving a block has ended the query


def test_start_and_end_are_inclusive(source: Source) -> None:
    times = [source.commit(("insert", "Singers", singer(n))) for n in range(4)]
    source.started = times[1]
    topic = source.read_all(end=times[2])
    assert [json.loads(change.key)["Id"] for change in changes_of(topic, "Singers")] == ["1", "2"]


async def test_a_start_before_the_stream_was_made_is_refused_with_the_range_and_the_choices(source: Source) -> None:
    early = Nanoseconds(source.started - 3_600 * 1_000_000_000)
    async with connected(source) as (_database, stream):
        with pytest.raises(MisconfiguredError, match=r"earliest read timestamp[\s\S]*START_TIMESTAMP"):
            await check_start(stream, early, None, timedelta(seconds=1))


async def test_a_partition_that_the_stream_does_not_know_is_refused_with_what_to_do(source: Source) -> None:
    query = SpannerStreamQuery(PartitionToken("not-a-token"), source.started, None, 1_000)
    async with connected(source) as (_database, stream):
        with pytest.raises(MisconfiguredError, match="another PARTITION_TABLE"):
            await anext(one_by_one(stream.read(query)))


def test_the_first_query_names_partitions_and_a_quiet_one_sends_heartbeats_until_it_is_left(source: Source) -> None:
    async def scenario() -> None:
        first_query = SpannerStreamQuery(ROOT, source.started, None, 1_000)
        async with connected(source) as (_database, stream):
            found: list[StreamRecord] = [record async for record in one_by_one(stream.read(first_query))]
            assert found
            tokens: list[PartitionToken] = []
            for record in found:
                assert isinstance(record, ChildPartitionsRecord)
                assert all(child.parents == frozenset() for child in record.children)
                tokens += [child.token for child in record.children]
            quiet = SpannerStreamQuery(tokens[0], source.started, None, 1_000)
            async with aclosing(one_by_one(stream.read(quiet))) as records:
                first, second = await anext(records), await anext(records)
            assert isinstance(first, HeartbeatRecord)
            assert isinstance(second, HeartbeatRecord)
            assert source.started <= first.timestamp < second.timestamp

    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.fixture
def mortal_emulator(new_processes: Processes) -> Iterator[str]:
    """Return ``host:port`` of an emulator that a test may kill."""
    with emulators.spanner_emulator(new_processes, enable_change_stream_churning="false") as address:
        yield address


async def test_a_query_whose_server_dies_is_to_be_tried_again(mortal_emulator: str, new_processes: Processes) -> None:
    made = SpannerInstance.create(mortal_emulator, "millrace-test", "mortal").create_database(TABLES)
    source = Source(made, made.now())
    async with connected(source) as (_database, stream):
        first_query = SpannerStreamQuery(ROOT, source.started, None, 1_000)
        children = [record async for record in one_by_one(stream.read(first_query))]
        assert isinstance(children[0], ChildPartitionsRecord)
        query = SpannerStreamQuery(children[0].children[0].token, source.started, None, 1_000)
        async with aclosing(one_by_one(stream.read(query))) as records:
            await anext(records)
            new_processes.end_all()
            with pytest.raises(TransientError):
                await asyncio.wait_for(_exhaust(records), 20)


async def test_a_database_without_the_stream_is_refused_with_the_statement_that_makes_it(source: Source) -> None:
    message = r"set CHANGE_STREAM to one that it has \(Everything.*CREATE CHANGE STREAM Nothing"
    async with connected(source) as (database, _stream):
        with pytest.raises(MisconfiguredError, match=message):
            await SpannerCatalog(database, "Nothing").definition()
    async with connected(source, "-not") as (database, _stream):
        with pytest.raises(MisconfiguredError, match="Database not found"):
            await SpannerCatalog(database, "Everything").definition()


async def _exhaust(records: Any) -> None:
    async for _record in records:
        pass
