"""Random histories of a table in two clusters, whatever happens to its partitions and its readers: the mirror is equal.

The loop is the real one, and so is all of its core; the ports are in memory, the time is virtual. What is published is
folded by sequence, twice and in any order, as the consumer does it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.core.records import DeleteCells, DeleteFamily, Entry, Microseconds, SetCell
from services.bigtable_reader.held import Options
from services.bigtable_reader.reader import Reader
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import (
    EPOCH,
    Bigtable,
    FakeCatalog,
    FakeChangeStream,
    FakeLetters,
    FakeMetrics,
    FakePublisher,
    FakeRows,
    Topic,
    Vector,
    VirtualClock,
    Way,
)
from tests.fakes.spanner_reader import CrashError, FakeSubscriptions, Life
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.bigtable_reader.readings import FAMILIES, folded, image_of, outputs

LEASE = timedelta(seconds=10)
KEYS = (b"a", b"b", b"d")
CUTS = (b"b", b"c", b"d")


@pytest.fixture(autouse=True)
def _without_logs() -> Iterator[None]:
    """Let hundreds of histories say nothing."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@dataclass
class Living:
    """A reader that runs."""

    way: Way
    stop: Stop
    task: "asyncio.Task[None]"


@dataclass
class World:
    """What outlives the readers."""

    chance: Random
    table: Bigtable = field(default_factory=lambda: Bigtable(b"c"))
    partitions: PartitionTable = field(default_factory=lambda: PartitionTable(VirtualClock().now))
    topic: Topic = field(default_factory=Topic)
    metrics: FakeMetrics = field(default_factory=FakeMetrics)
    readers: list[Living] = field(default_factory=list)
    started: int = 0
    breaks: float = 0.0

    def start(self) -> Living:
        """Start a reader, whose clock is wrong, on a way that is slow."""
        self.started += 1
        owner = f"reader {self.started}"
        way = Way(
            Random(self.chance.random()),
            Life(),
            slowest=self.chance.choice((0.02, 0.5, 1.0)),
            breaks=self.breaks,
        )
        wrong_by = timedelta(seconds=self.chance.uniform(-60, 60))
        reader = Reader(
            stream=FakeChangeStream(self.table, way),
            store=FakePartitionStore(self.partitions, owner, LEASE, asyncio.get_running_loop().time, step=way.step),
            rows=FakeRows(self.table, way),
            publisher=FakePublisher(self.topic, way),
            letters=FakeLetters(),
            subscriptions=FakeSubscriptions(),
            catalog=FakeCatalog(*FAMILIES),
            outputs=outputs(),
            clock=VirtualClock(wrong_by),
            metrics=self.metrics,
            health=Health(),
            options=Options(owner=owner, lease=LEASE, heartbeat=timedelta(seconds=5)),
        )
        stop = Stop()
        living = Living(way, stop, asyncio.create_task(reader.run(stop)))
        self.readers.append(living)
        return living

    async def kill(self, reader: Living) -> None:
        """End a reader between two effects; what it had under way comes to nothing, or had come to something."""
        self.readers.remove(reader)
        reader.way.life.over = True
        reader.way.let_go()
        reader.task.cancel()
        with contextlib.suppress(CrashError, asyncio.CancelledError):
            await reader.task

    async def end(self) -> None:
        """Ask all readers to stop, and wait for them."""
        for reader in self.readers:
            reader.way.let_go()
            reader.stop.request()
        for reader in self.readers:
            await reader.task

    def is_all_read(self) -> bool:
        """Tell whether the position of every piece is behind everything in the log."""
        topology = self.partitions.topology
        assert topology is not None
        for piece in topology.pieces:
            row = self.partitions.rows.get(piece.id)
            if row is None or not row.position.tokens or row.state == "CLOSING":
                return False
            tokens = [msgspec.json.decode(one.token, type=Vector) for one in row.position.tokens]
            seen = min(seen for token in tokens for _part, seen in token.parts)
            if any(change.row_key in piece.range for change in self.table.log[seen:]):
                return False
        return True


def entries(chance: Random) -> Sequence[Entry]:
    """Return the entries of one call."""
    found: list[Entry] = []
    for _number in range(chance.randint(1, 3)):
        family, qualifier = chance.choice(FAMILIES), chance.choice((b"q", b"r"))
        timestamp = Microseconds(chance.randint(1, 3) * 1_000)
        match chance.randrange(5):
            case 0:
                found.append(DeleteFamily(family))
            case 1:
                found.append(
                    DeleteCells(family, qualifier, Microseconds(chance.choice((0, timestamp))), Microseconds(0))
                )
            case _:
                found.append(SetCell(family, qualifier, timestamp, b"%d" % chance.randrange(1_000_000)))
    return found


STEPS = (
    *("write",) * 8,
    *("elsewhere",) * 4,
    *("replicate",) * 4,
    *("moment",) * 4,
    *("wait",) * 4,
    *("hand over",) * 3,
    *("pause",) * 2,
    *("garbage", "split", "merge", "kill", "long wait", "go on", "start"),
)


def some_steps(chance: Random) -> Sequence[str]:
    """Return a history."""
    return [chance.choice(STEPS) for _step in range(chance.randint(20, 70))]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 32), breaks=st.sampled_from((0.0, 0.0, 0.05)))
def test_the_mirror_is_equal_in_every_history(seed: int, breaks: float) -> None:
    chance = Random(seed)
    run_in_virtual_time(live(some_steps(chance), chance, breaks))


async def live(steps: Sequence[str], chance: Random, breaks: float) -> World:
    world = World(chance, breaks=breaks)
    store = FakePartitionStore(world.partitions, "setup", LEASE, asyncio.get_running_loop().time)
    await store.begin(world.table.partitions, Microseconds(EPOCH - 60_000_000))
    world.start()
    await asyncio.sleep(chance.uniform(0, 20))
    for step in steps:
        await happen(world, step)
    world.table.replicate(len(world.table.on_the_way))
    for reader in world.readers:
        reader.way.let_go()
        reader.way.breaks = 0.0
    if not world.readers:
        world.start()
    async with asyncio.timeout(3_600):
        while not world.is_all_read():
            for reader in world.readers:
                if reader.task.done():
                    await reader.task
            await asyncio.sleep(5)
    await world.end()
    changes = [(header, [change]) for header, batch in world.topic.batches for change in batch]
    delivered = changes * 2
    chance.shuffle(delivered)
    newest = folded(delivered)
    for row_key in world.table.row_keys:
        wanted, found = image_of(world.table.row(row_key)), newest.get(row_key)
        assert found is not None, f"nothing was published of {row_key!r}"
        assert found.row == wanted, row_key
    return world


async def happen(world: World, step: str) -> None:
    chance = world.chance
    match step:
        case "write":
            world.table.write(chance.choice(KEYS), *entries(chance))
        case "elsewhere":
            world.table.write(chance.choice(KEYS), *entries(chance), cluster="c2", behind=chance.randrange(30_000_000))
        case "replicate":
            world.table.replicate(chance.randint(1, 3))
        case "moment":
            await asyncio.sleep(chance.random())
        case "wait":
            await asyncio.sleep(chance.uniform(1, 8))
        case "long wait":
            await asyncio.sleep(chance.uniform(20, 200))
        case "garbage":
            world.table.collect_garbage(chance.choice(KEYS))
        case "split":
            world.table.split(chance.choice(CUTS))
        case "merge":
            world.table.merge(chance.randrange(10))
        case "start" if len(world.readers) < 3:
            world.start()
        case "kill" if world.readers:
            await world.kill(chance.choice(world.readers))
        case "hand over":  # one goes, and another, whose clock is another, has all of it
            world.start()
            await world.kill(world.readers[0])
            await asyncio.sleep(chance.uniform(15, 30))
        case "pause" if world.readers:  # as a machine that stands still; what it had is taken over
            world.readers[0].way.hold_up()
            world.start()
            await asyncio.sleep(chance.uniform(0, 30))
        case "go on":
            for reader in world.readers:
                reader.way.let_go()
        case _:  # nobody is there to whom it could happen
            pass
