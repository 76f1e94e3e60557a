"""Owners of the Bigtable reader's partition table in the emulator, whose requests can be made to fail."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from google.cloud.bigtable_v2.types import MutateRowRequest, MutateRowResponse

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Method
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.core.stream.partitions import BigtablePartition
from services.bigtable_reader.ports import KeyRangePartitionStore
from tests.contract.bigtable_partitions import (
    LONG,
    PARTITION_TABLE,
    BreakingChannels,
    Stores,
    a_store,
    a_stream,
    begun,
    child,
    reached,
    take,
)

CHILDREN = [child("-b"), child("b-c")]
RESERVED = 500
MUTATE: Final = Method("MutateRow", MutateRowRequest.pb(), MutateRowResponse.pb())


@dataclass
class Rig:
    """A stream of its own, an owner whose requests can be made to fail, and others that are well."""

    address: str
    stream: str = field(default_factory=a_stream)
    opened: list[BreakingChannels] = field(default_factory=list)
    monotonic: list[float] = field(default_factory=lambda: [1_000.0])

    def owner(
        self, name: str, *, kills: bool = False, timeouts: Any = LONG
    ) -> tuple[KeyRangePartitionStore, BreakingChannels]:
        channels = BreakingChannels(self.address, kills=kills)
        self.opened.append(channels)
        return a_store(channels, self.stream, name, self.monotonic, timeouts=timeouts), channels

    def healthy(self, name: str = "healthy", *, timeouts: Any = LONG) -> KeyRangePartitionStore:
        return self.owner(name, timeouts=timeouts)[0]

    @property
    def stores(self) -> Stores:
        return Stores(lambda owner, **_: self.healthy(owner), self.monotonic)

    @property
    def rows(self) -> PartitionRows:
        return PartitionRows(self.opened[0], PARTITION_TABLE, self.stream)


Make = Callable[[], Rig]


@asynccontextmanager
async def rigs(address: str) -> AsyncIterator[Make]:
    """Give a function that makes as many rigs as are needed."""
    made: list[Rig] = []
    channels = BigtableChannels(address)
    await create_partition_table(channels, PartitionRows(channels, PARTITION_TABLE, "any"))
    await channels.close()

    def make() -> Rig:
        made.append(Rig(address))
        return made[-1]

    try:
        yield make
    finally:
        for rig in made:
            for opened in rig.opened:
                await opened.deliver()
                await opened.close()


async def holding(rig: Rig, store: KeyRangePartitionStore) -> BigtablePartition:
    """Begin, and take the first of two key ranges, with versions up to a reserved upper limit."""
    await begun(store, "-c", "c-")
    (owned,) = await take(store, "a")
    assert await store.advance([reached(owned, reserved_up_to=RESERVED, at="saved")]) == frozenset()
    return owned


async def replace_cell(
    channels: BigtableChannels, key: str, family: str, column: bytes, value: bytes | None, at: int = 0
) -> None:
    """Delete a column of a row of the partition table, or replace it, as no reader does."""
    request: Any = MUTATE.request(table_name=PARTITION_TABLE.name, row_key=key.encode())
    gone = request.mutations.add().delete_from_column
    gone.family_name, gone.column_qualifier = family, column
    if value is not None:
        cell = request.mutations.add().set_cell
        cell.family_name, cell.column_qualifier, cell.value, cell.timestamp_micros = family, column, value, at
    await channels.call(MUTATE, PARTITION_TABLE, request)
