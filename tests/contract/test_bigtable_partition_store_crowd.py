"""Several owners at once, some asleep or out of reach, while the service splits and merges: on the fake and for real.

Whatever they do: the key space is covered, and never twice; a later owner's version for a key is above all that
any earlier one made or ever will; and when it is quiet, the key ranges are the service's partitions.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.core.stream.partitions import BigtablePartition
from services.bigtable_reader.core.stream.records import Child, KeyRange, Microseconds, RangeToken
from services.bigtable_reader.core.stream.versions import VersionAllocator
from services.bigtable_reader.ports import KeyRangePartitionStore
from shared.contracts.errors import TransientError
from tests.contract.bigtable_partitions import (
    LEASE,
    PARTITION_TABLE,
    ZERO_TIMEOUTS,
    BreakingChannels,
    Stores,
    When,
    a_store,
    a_stream,
    reached,
    whole,
)
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionedStream, PartitionTable
from tests.seeds import SEEDS

KEYS = [b"", b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
NOON = 1_700_000_000_000_000
SECOND = 1_000_000
Generation = tuple[int, int]
"""Of who makes versions: the topology version that the key range is of, and the fence."""


@dataclass
class Service:
    """The partitions as they truly are."""

    partitions: list[KeyRange]

    def split(self, key: bytes) -> None:
        (found,) = [one for one in self.partitions if key in one]
        if found.start != key:
            self.partitions.remove(found)
            self.partitions += [KeyRange(found.start, key), KeyRange(key, found.end)]

    def merge(self, key: bytes) -> None:
        right = [one for one in self.partitions if one.start == key]
        left = [one for one in self.partitions if one.end == key and key]
        if right and left:
            self.partitions = [one for one in self.partitions if one not in (left[0], right[0])]
            self.partitions.append(KeyRange(left[0].start, right[0].end))

    def children(self, range_: KeyRange) -> list[Child]:
        parts = [(partition, common(partition, range_)) for partition in self.partitions]
        return [Child(RangeToken(part, "true"), partition) for partition, part in parts if part is not None]


@dataclass
class Reading:
    """A partition that a reader claimed at some time, and makes versions for, whether or not it still owns it."""

    partition: BigtablePartition
    versions: VersionAllocator

    @property
    def generation(self) -> Generation:
        return int(self.partition.stream_range.id.split(".")[1]), self.partition.fence


@dataclass
class Crowd:
    """What the owners have in common."""

    chance: Random
    monotonic: list[float]
    service: Service = field(default_factory=lambda: Service([KeyRange(b"", b"c"), KeyRange(b"c", b"")]))
    allocated: dict[bytes, dict[Generation, list[int]]] = field(default_factory=lambda: {key: {} for key in KEYS})
    closed: int = 0

    def allocate(self, reading: Reading, now: int) -> None:
        version = reading.versions.next(Microseconds(now))
        if version is None:
            return
        for key in KEYS:
            if key in reading.partition.stream_range.range:
                self.allocated[key].setdefault(reading.generation, []).append(version)

    def check(self) -> None:
        for generations in self.allocated.values():
            in_turn = [generations[generation] for generation in sorted(generations)]
            for versions in in_turn:
                assert versions == sorted(set(versions))
            for earlier, later in itertools.pairwise(in_turn):
                assert earlier[-1] < later[0]


async def live(crowd: Crowd, store: KeyRangePartitionStore, steps: int, deliver: Callable[[], object]) -> None:
    """Do what a reader does, in any order; and what none should, as one that sleeps and wakes up."""
    chance = crowd.chance
    skew = chance.randint(-3_600, 3_600) * SECOND
    owned: dict[str, Reading] = {}
    ever: list[Reading] = []
    for step in range(steps):
        await asyncio.sleep(0)
        now = NOON + skew + step * chance.choice([1, SECOND])
        if ever:
            crowd.allocate(chance.choice(ever[-6:]), now)
        with suppress(TransientError):
            match chance.randrange(11):
                case 0 | 1:
                    survey = await whole(store)
                    free = [p for p in survey.stream_ranges if p.is_readable and p.id not in owned]
                    asked = chance.sample(free, min(len(free), 2))
                    for partition in await store.claim(asked):
                        owned[partition.stream_range.id] = Reading(
                            partition, VersionAllocator(partition.min_version, partition.reserved_up_to)
                        )
                        ever.append(owned[partition.stream_range.id])
                case 2 | 3 | 4 if owned:
                    some = chance.sample(list(owned.values()), min(len(owned), 3))
                    wanted = [
                        reading.versions.wanted(Microseconds(now), chance.randint(1, 20) * SECOND) for reading in some
                    ]
                    asking = [
                        reached(
                            one.partition,
                            minutes=chance.randint(0, 3),
                            reserved_up_to=reserved_up_to - one.partition.min_version,
                        )
                        for one, reserved_up_to in zip(some, wanted, strict=True)
                    ]
                    lost = await store.advance(asking)
                    for one, reserved_up_to in zip(some, wanted, strict=True):
                        if one.partition.stream_range.id in lost:
                            owned.pop(one.partition.stream_range.id)  # it goes on making versions all the same
                        else:
                            one.versions.raised(reserved_up_to)
                case 5 if owned:
                    one = chance.choice(list(owned.values()))
                    del owned[one.partition.stream_range.id]
                    ever.remove(one)  # it makes no more versions, whatever comes of that
                    await store.advance([reached(one.partition, reserved_up_to=used(one))], release=True)
                case 6 | 7 | 8 if owned:
                    one = chance.choice(list(owned.values()))
                    range_ = one.partition.stream_range.range
                    children = crowd.service.children(range_) if chance.random() < 0.8 else wild(chance)
                    del owned[one.partition.stream_range.id]
                    ever.remove(one)
                    crowd.closed += await store.close(reached(one.partition, reserved_up_to=used(one)), children)
                case 9:
                    await store.tend()
                    crowd.monotonic[0] += LEASE.total_seconds() * chance.choice([0, 0.4, 1.1])
                case _:
                    key = chance.choice(KEYS[1:])
                    if chance.random() < 0.5:
                        crowd.service.split(key)
                    else:
                        crowd.service.merge(key)
                    done = deliver()
                    if asyncio.iscoroutine(done):
                        await done


def used(reading: Reading) -> int:
    """Return how far above its minimum version a reading's last version is."""
    return reading.versions.last - reading.partition.min_version


async def settle(crowd: Crowd, stores: Stores, last: KeyRangePartitionStore) -> None:
    """Let the last one read all there is, until nothing changes; the leases of all others end."""
    for _round in range(20):
        await stores.let_leases_end(last)
        await last.tend()
        survey = await whole(last)
        ranges = [stream_range.range for stream_range in survey.stream_ranges if stream_range.is_readable]
        if ranges == sorted(crowd.service.partitions) and survey.saved.keys() <= {p.id for p in survey.stream_ranges}:
            break
        for partition in await last.claim(survey.stream_ranges):
            if partition.stream_range.range not in crowd.service.partitions:
                await last.close(reached(partition), crowd.service.children(partition.stream_range.range))
    else:
        raise AssertionError("it never comes together")
    for partition in await last.claim(survey.stream_ranges):
        versions = VersionAllocator(partition.min_version, partition.reserved_up_to)
        versions.raised(partition.min_version + 1)
        assert await last.advance([reached(partition, reserved_up_to=1)]) == frozenset()
        crowd.allocate(Reading(partition, versions), 0)
    assert all(max(generations)[0] == max(g[0] for g in generations) for generations in crowd.allocated.values())
    crowd.check()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_in_memory(seed: int) -> None:
    ticks = itertools.count(NOON, 1_000)
    table = PartitionTable(lambda: Microseconds(next(ticks)))
    chance = Random(seed)
    crowd = Crowd(chance, [1_000.0])

    async def step() -> None:
        await asyncio.sleep(0)
        if chance.random() < 0.05:
            raise TransientError("UNAVAILABLE")

    async def no_step() -> None: ...

    def store(owner: str, *, breaks: bool = False, **_: object) -> KeyRangePartitionStore:
        return FakePartitionStore(
            table,
            owner,
            LEASE,
            lambda: crowd.monotonic[0],
            stream=PartitionedStream(retention=timedelta(days=7), merge=ZERO_TIMEOUTS),
            step=step if breaks else no_step,
        )

    last = store("last")
    await last.begin(list(crowd.service.partitions), Microseconds(NOON))
    owners = [store(f"{n}", breaks=True) for n in range(3)]
    await asyncio.gather(*(live(crowd, owner, 150, lambda: None) for owner in owners))
    await settle(crowd, Stores(store, crowd.monotonic), last)
    assert crowd.closed > 5


@pytest.mark.parametrize("seed", range(4))
async def test_in_the_emulator(seed: int, bigtable_emulator: str) -> None:
    chance = Random(seed)
    crowd = Crowd(chance, [1_000.0])
    stream = a_stream()
    healthy = BigtableChannels(bigtable_emulator)
    ways = [RandomlyBreakingChannels(bigtable_emulator, chance) for _ in range(3)]
    try:
        await create_partition_table(healthy, PartitionRows(healthy, PARTITION_TABLE, stream))

        def store(owner: str, channels: BigtableChannels = healthy, **_: object) -> KeyRangePartitionStore:
            return a_store(channels, stream, owner, crowd.monotonic, timeouts=ZERO_TIMEOUTS)

        last = store("last")
        start = (await last.survey()).now
        await last.begin(list(crowd.service.partitions), start)
        owners = [store(f"{n}", way) for n, way in enumerate(ways)]
        await asyncio.gather(*(live(crowd, owner, 150, way.deliver) for owner, way in zip(owners, ways, strict=True)))
        for way in ways:
            await way.deliver()
        await settle(crowd, Stores(store, crowd.monotonic), last)
        assert (await last.survey()).saved.keys() == {
            stream_range.id for stream_range in (await whole(last)).stream_ranges
        }
        assert crowd.closed > 5
    finally:
        for channels in (healthy, *ways):
            await channels.close()


class RandomlyBreakingChannels(BreakingChannels):
    """A connection on which one request in twenty fails, in one of three ways."""

    def __init__(self, emulator_host: str, chance: Random) -> None:
        super().__init__(emulator_host)
        self._chance = chance

    def _next(self, method: object) -> When | None:
        kinds: Sequence[When] = ("before", "after", "late")
        return self._chance.choice(kinds) if self._chance.random() < 0.05 else None


def wild(chance: Random) -> list[Child]:
    def range_() -> KeyRange:
        first, last = sorted(chance.sample(range(len(KEYS) + 1), 2))
        return KeyRange(KEYS[first], KEYS[last] if last < len(KEYS) else b"")

    return [Child(RangeToken(range_(), "wild"), range_()) for _ in range(chance.randint(1, 4))]


def common(one: KeyRange, other: KeyRange) -> KeyRange | None:
    start = max(one.start, other.start)
    ends = [until for until in (one.end, other.end) if until]
    until = min(ends, default=b"")
    return None if until and start >= until else KeyRange(start, until)
