"""Where the promises of the Bigtable reader's PartitionStore are kept: in memory, and in the emulator."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.core.stream.topology import MergeTimeouts
from services.bigtable_reader.ports import KeyRangePartitionStore
from tests.contract.bigtable_partitions import (
    LEASE,
    LONG,
    PARTITION_TABLE,
    Stores,
    a_store,
    a_stream,
)
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable

NOON = 1_700_000_000_000_000


class Promises:
    """Promises. A subclass opens the stores."""

    def open(self) -> AbstractAsyncContextManager[Stores]:
        raise NotImplementedError

    def run(self, promise: Callable[[Stores], Awaitable[None]]) -> None:
        async def scenario() -> None:
            async with self.open() as stores:
                await promise(stores)

        asyncio.run(scenario())


class InMemory(Promises):
    """In the fake."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stores]:
        ticks = itertools.count(NOON, 1_000)
        table = PartitionTable(lambda: Microseconds(next(ticks)))

        def store(owner: str, *, timeouts: MergeTimeouts = LONG, source: str | None = None) -> KeyRangePartitionStore:
            return FakePartitionStore(
                table, owner, LEASE, lambda: stores.monotonic[0], source=source or "t", timeouts=timeouts
            )

        stores = Stores(store)
        yield stores


class InEmulator(Promises):
    """In the Bigtable emulator."""

    @pytest.fixture(autouse=True)
    def _emulator(self, bigtable_emulator: str) -> None:
        self.address = bigtable_emulator

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stores]:
        channels = BigtableChannels(self.address)
        stream = a_stream()

        def store(owner: str, *, timeouts: MergeTimeouts = LONG, source: str | None = None) -> KeyRangePartitionStore:
            return a_store(channels, stream, owner, stores.monotonic, timeouts=timeouts, source=source)

        stores = Stores(store)
        try:
            await create_partition_table(channels, PartitionRows(channels, PARTITION_TABLE, stream))
            yield stores
        finally:
            await channels.close()
