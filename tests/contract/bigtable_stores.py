"""Where the promises of the Bigtable reader's PartitionStore are kept: in memory, and in the emulator."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.core.stream.topology import MergeTimeouts
from services.bigtable_reader.ports import KeyRangePartitionStore
from tests.contract.bigtable_partitions import LEASE, LONG, PARTITION_TABLE, Stores, a_store, a_stream
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionedStream, PartitionTable

NOON = 1_700_000_000_000_000


class InMemory:
    """In the fake."""

    @pytest.fixture
    def stores(self) -> Stores:
        ticks = itertools.count(NOON, 1_000)
        table = PartitionTable(lambda: Microseconds(next(ticks)))

        def store(owner: str, *, timeouts: MergeTimeouts = LONG, source: str | None = None) -> KeyRangePartitionStore:
            stream = PartitionedStream(source=source or "t", merge=timeouts)
            return FakePartitionStore(table, owner, LEASE, lambda: stores.monotonic[0], stream=stream)

        stores = Stores(store)
        return stores


class InEmulator:
    """In the Bigtable emulator."""

    @pytest.fixture
    @asynccontextmanager
    async def stores(self, bigtable_emulator: str) -> AsyncIterator[Stores]:
        channels = BigtableChannels(bigtable_emulator)
        stream = a_stream()

        def store(owner: str, *, timeouts: MergeTimeouts = LONG, source: str | None = None) -> KeyRangePartitionStore:
            return a_store(channels, stream, owner, stores.monotonic, timeouts=timeouts, source=source)

        stores = Stores(store)
        try:
            await create_partition_table(channels, PartitionRows(channels, PARTITION_TABLE, stream))
            yield stores
        finally:
            await channels.close()
