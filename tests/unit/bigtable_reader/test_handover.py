"""A reader joins a thousand partitions: how long each is read by nobody, and which leases are lost; in virtual time.

Each partition is claimed, renewed and released by one CheckAndMutateRow, fifty of them at once, as in
`BigtablePartitionStore`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from random import Random

import pytest

from services.bigtable_reader.app.stream.owned_partition import BigtableReaderOptions
from services.bigtable_reader.core.stream.partitions import (
    BigtablePartition,
    BigtableProgress,
    StreamRange,
    StreamRangeId,
)
from services.bigtable_reader.core.stream.records import (
    BigtableStreamQuery,
    Heartbeat,
    KeyRange,
    Microseconds,
    StreamRecord,
)
from tests.fakes.bigtable_partitions import FakePartitionStore
from tests.fakes.bigtable_reader import FakeChangeStream
from tests.fakes.bigtable_table import Bigtable
from tests.unit.bigtable_reader.world import World

PARTITIONS = 1_000
AT_ONCE = 50


@pytest.mark.parametrize("seconds", [0.03, 0.1])
async def test_a_reader_that_joins_leaves_no_partition_unread_for_five_seconds_and_no_lease_is_lost(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, advance = FakePartitionStore.claim, FakePartitionStore.advance

    async def slow_claim(
        store: FakePartitionStore, stream_ranges: Collection[StreamRange]
    ) -> Sequence[BigtablePartition]:
        await asyncio.sleep(seconds * (1 + -(-len(stream_ranges) // AT_ONCE)))
        return await claim(store, stream_ranges)

    async def slow_advance(
        store: FakePartitionStore, progress: Sequence[BigtableProgress], *, release: bool = False
    ) -> Collection[StreamRangeId]:
        await asyncio.sleep(seconds * -(-len(progress) // AT_ONCE))
        return await advance(store, progress, release=release)

    unread: dict[KeyRange, float] = {}
    longest = [0.0]

    async def read(
        _stream: FakeChangeStream, query: BigtableStreamQuery
    ) -> AsyncGenerator[Sequence[StreamRecord], None]:
        now = asyncio.get_running_loop().time
        if query.range in unread:
            longest[0] = max(longest[0], now() - unread.pop(query.range))
        try:
            await asyncio.Event().wait()
            yield ()
        finally:
            unread[query.range] = now()

    monkeypatch.setattr(FakePartitionStore, "claim", slow_claim)
    monkeypatch.setattr(FakePartitionStore, "advance", slow_advance)
    monkeypatch.setattr(FakeChangeStream, "read", read)

    def owned(world: World) -> list[int]:
        owners = [row.owner for row in world.partitions.rows.values() if row.state == "RUNNING"]
        return sorted(owners.count(owner) for owner in set(owners))

    world = World(Random(0), table=Bigtable(*(b"%04d" % number for number in range(1, PARTITIONS))))
    await world.begin()
    world.start(slowest=seconds, kind=BigtableReaderOptions)
    await asyncio.sleep(20)
    assert owned(world) == [PARTITIONS]
    assert not unread
    world.start(slowest=seconds, kind=BigtableReaderOptions)
    await asyncio.sleep(30)
    assert owned(world) == [PARTITIONS // 2, PARTITIONS // 2]
    assert not unread
    await world.end()
    assert longest[0] <= 5
    assert world.metrics.leases_lost == 0


async def test_a_reader_that_joins_gets_half_of_the_load_and_not_half_of_the_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = {b"", b"0001", b"0002", b"0003"}
    """Where the ranges begin that have twenty records in each second."""

    async def read(
        _stream: FakeChangeStream, query: BigtableStreamQuery
    ) -> AsyncGenerator[Sequence[StreamRecord], None]:
        number = 0
        while True:
            await asyncio.sleep(1)
            if query.range.start in busy:
                number += 20
                yield [Heartbeat(f"{number + place}", Microseconds(number + place)) for place in range(20)]

    monkeypatch.setattr(FakeChangeStream, "read", read)

    world = World(Random(0), table=Bigtable(*(b"%04d" % number for number in range(1, 10))))
    await world.begin()
    for _reader in range(2):
        world.start_steady()
        await asyncio.sleep(300)
    rows = [row for row in world.partitions.rows.values() if row.state == "RUNNING"]
    owned = Counter(row.owner for row in rows)
    assert sorted(owned.values()) == [3, 7]  # the six quiet ones weigh as much as two busy ones
    one, other = (sum(10 + row.load for row in rows if row.owner == owner) for owner in owned)
    assert abs(one - other) <= 20
    await world.end()
