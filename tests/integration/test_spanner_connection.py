"""The connections to Spanner, against a server that holds its streams open and sees who asks for what."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from google.cloud.spanner_v1 import ExecuteSqlRequest, PartialResultSet

from services.spanner_reader.adapters.spanner.connection import SpannerChannels
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.core.stream.records import PartitionToken, SpannerStreamQuery
from shared.contracts.timestamps import Nanoseconds
from shared.reading.byte_budget import ByteBudget
from shared.streams.connections import STREAMS_PER_CONNECTION
from tests.fakes.spanner_reader import one_by_one
from tests.integration.silent_server import SpannerServer, serving, serving_spanner

pytestmark = pytest.mark.integration

STREAMS = 2 * STREAMS_PER_CONNECTION + 1


class Server(SpannerServer):
    """Makes sessions, and keeps streams open without a word; counts these by connection."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.moved = asyncio.Event()

    async def _execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.open[context.peer()] += 1
        self.moved.set()
        try:
            await asyncio.Event().wait()
            yield PartialResultSet.pb()()
        finally:
            self.open[context.peer()] -= 1
            self.moved.set()

    async def has(self, streams: int) -> None:
        """Wait until so many are open."""
        async with asyncio.timeout(60):
            while self.open.total() != streams:
                self.moved.clear()
                await self.moved.wait()


async def first_record(stream: SpannerChangeStream, number: int) -> None:
    """Read a partition that says nothing."""
    query = SpannerStreamQuery(PartitionToken(f"p{number}"), Nanoseconds(1_700_000_000 * 10**9), None, 300_000)
    records: AsyncGenerator[Any, None] = one_by_one(stream.read(query))
    async with aclosing(records):
        await anext(records)


async def scenario() -> tuple[dict[str, int], int, dict[str, int]]:
    """Read more partitions than two connections carry; give most up, and read some more."""
    handler = Server()
    async with serving_spanner(handler) as database:
        stream = SpannerChangeStream(database, "everything")
        readers = [asyncio.create_task(first_record(stream, number)) for number in range(STREAMS)]
        await handler.has(STREAMS)
        all_open = +handler.open
        for reader in readers[1:]:
            reader.cancel()
        await handler.has(1)
        peers = len(all_open)
        readers += [asyncio.create_task(first_record(stream, number)) for number in range(STREAMS - 1)]
        await handler.has(STREAMS)
        again = +handler.open
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        return dict(all_open), peers, dict(again)


def test_no_connection_carries_more_partitions_than_it_can_and_room_is_used_again() -> None:
    first, peers, again = asyncio.run(scenario())

    assert sum(first.values()) == STREAMS
    assert max(first.values()) <= STREAMS_PER_CONNECTION
    assert peers == 3
    assert again.keys() == first.keys()
    assert max(again.values()) <= STREAMS_PER_CONNECTION


class Endless(SpannerServer):
    """Answers a query without end, as fast as it is taken."""

    def __init__(self) -> None:
        self.sent = 0

    async def _execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        response = PartialResultSet.pb()(resume_token=bytes(100_000))
        while True:
            yield response
            self.sent += response.ByteSize()

    async def rests(self) -> None:
        """Wait until nothing more is taken."""
        before = -1
        while before != self.sent:
            before = self.sent
            await asyncio.sleep(0.3)  # nothing shows that no more is taken


async def unasked(taken: int, others: int) -> int:
    """Take so much of an endless answer beside others, and then nothing; return how much more the server could send."""
    server, budget = Endless(), ByteBudget(200_000)
    async with (
        serving(server) as address,
        SpannerChannels(address, budget=budget) as channels,
        AsyncExitStack() as ends,
    ):
        request = ExecuteSqlRequest.pb()(session="projects/p/instances/i/databases/d/sessions/s")
        calls = [channels.portions("ExecuteStreamingSql", request, ()) for _ in range(others + 1)]
        for one in calls:
            await ends.enter_async_context(aclosing(one))
            await anext(one)
        await server.rests()
        before, found = server.sent, 0
        while found < taken:
            found += sum(map(len, await anext(calls[-1])))
        await server.rests()
        return server.sent - before - found


@pytest.mark.parametrize(("others", "most"), [(0, 9_000_000), (4, 1_000_000)])
def test_of_a_partition_that_is_not_taken_little_is_read_ahead_however_fast_the_network_is(
    others: int, most: int
) -> None:
    assert asyncio.run(unasked(30_000_000, others)) < most
