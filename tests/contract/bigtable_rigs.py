"""Owners of the Bigtable reader's partition table in the emulator, whose requests can be made to fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
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

    def well(self, name: str = "well", *, timeouts: Any = LONG) -> KeyRangePartitionStore:
        return self.owner(name, timeouts=timeouts)[0]

    @property
    def stores(self) -> Stores:
        return Stores(lambda owner, **_: self.well(owner), self.monotonic)

    @property
    def rows(self) -> PartitionRows:
        return PartitionRows(self.opened[0], PARTITION_TABLE, self.stream)


def run_rigs(address: str, scenario: Callable[[Callable[[], Rig]], Awaitable[None]]) -> None:
    """Run a scenario, which makes as many rigs as it needs."""

    async def go() -> None:
        async with rigs(address) as make:
            await scenario(make)

    asyncio.run(go())


Run = Callable[[Callable[[Callable[[], Rig]], Awaitable[None]]], None]


@asynccontextmanager
async def rigs(address: str) -> AsyncIterator[Callable[[], Rig]]:
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
    (held,) = await take(store, "a")
    assert await store.advance([reached(held, reserved_up_to=RESERVED, at="saved")]) == frozenset()
    return held
