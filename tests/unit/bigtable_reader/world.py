"""A table, its partition table and a topic, which outlive readers: the real loop with its ports in memory."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import msgspec

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.app.snapshot.snapshot_source import BigtableSnapshots
from services.bigtable_reader.app.stream.owned_partition import BigtableReaderOptions
from services.bigtable_reader.app.stream.reader import BigtableOutput, BigtableReader, BigtableStores, SourceTable
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.stream.records import (
    DeleteCells,
    DeleteFamily,
    Entry,
    KeyRange,
    Microseconds,
    SetCell,
)
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import (
    FakeCatalog,
    FakeChangeStream,
    FakeDeadLetterSink,
    FakePublisher,
    FakeRows,
    Topic,
)
from tests.fakes.bigtable_table import EPOCH, Bigtable, Vector, VirtualClock, loop_time
from tests.fakes.life import CrashError, Life, Way
from tests.fakes.reader_metrics import BigtableMetrics
from tests.fakes.subscriptions import FakeSubscriptions
from tests.unit.bigtable_reader.published import LOSSLESS, cells_of, rows_of_entries
from tests.unit.bigtable_reader.readings import FAMILIES, folded, image_of, outputs

LEASE = timedelta(seconds=10)
KEYS = (b"a", b"b", b"d")
CUTS = (b"b", b"c", b"d")


MakeSnapshots = Callable[[DeadLettering, Callable[[KeyRange, int], None], Callable[[], bool]], BigtableSnapshots]


class Trusting(BigtableReaderOptions):
    """Of a reader that goes on when its lease is over: what it publishes then has to lose by its versions alone."""

    @property
    def trust(self) -> timedelta:
        """Return how long an owner goes on after its last renewal."""
        return timedelta(days=1)


@dataclass
class Living:
    """A reader that runs."""

    way: Way
    to_store: Way
    """The partition table's own way: it may be out of reach while all else is not."""
    stop: Stop
    task: "asyncio.Task[None]"
    reader: BigtableReader


@dataclass
class World:
    """What outlives the readers."""

    chance: Random
    table: Bigtable = field(default_factory=lambda: Bigtable(b"c"))
    partitions: PartitionTable = field(default_factory=PartitionTable)
    topic: Topic = field(default_factory=Topic)
    metrics: BigtableMetrics = field(default_factory=BigtableMetrics)
    dead_letters: FakeDeadLetterSink = field(default_factory=FakeDeadLetterSink)
    subscriptions: FakeSubscriptions = field(default_factory=FakeSubscriptions)
    readers: list[Living] = field(default_factory=list)
    started: int = 0
    breaks: float = 0.0
    with_log: bool = False
    """Whether a change log is published beside the images."""
    catalog: FakeCatalog = field(default_factory=lambda: FakeCatalog(*FAMILIES))

    async def begin(self) -> None:
        """Remember the first key ranges, as a first start does; late changes are older than that."""
        await self.by_hand.begin(self.table.partitions, Microseconds(EPOCH - 60_000_000))

    @property
    def by_hand(self) -> FakePartitionStore:
        """Return what a command beside the readers has."""
        return FakePartitionStore(self.partitions, "", LEASE)

    def start_steady(self, kind: type[BigtableReaderOptions] = BigtableReaderOptions) -> Living:
        """Start a reader whose calls are fast, and whose clock is right."""
        return self.start(slowest=0.02, wrong_by=timedelta(0), kind=kind)

    def start(
        self,
        life: Life | None = None,
        slowest: float | None = None,
        wrong_by: timedelta | None = None,
        kind: type[BigtableReaderOptions] | None = None,
    ) -> Living:
        """Start a reader, whose clock is wrong, on a way that is slow; some never notice that a lease is over."""
        self.started += 1
        owner = f"reader {self.started}"
        way = Way(
            Random(self.chance.random()),
            life or Life(),
            slowest=self.chance.choice((0.02, 0.5, 1.0)) if slowest is None else slowest,
            breaks=self.breaks,
        )
        to_store = Way(way.chance, way.life, slowest=way.slowest, breaks=way.breaks)

        async def step() -> None:
            await way.passable()
            await to_store.step()

        kind = kind or self.chance.choice((BigtableReaderOptions, Trusting))
        publisher = FakePublisher(self.topic, way)
        skew = timedelta(seconds=self.chance.uniform(-60, 60)) if wrong_by is None else wrong_by
        stop = Stop()
        reader = BigtableReader(
            SourceTable(
                stream=FakeChangeStream(self.table, way),
                rows=FakeRows(self.table, way),
                catalog=self.catalog,
                clock=VirtualClock(skew),
            ),
            BigtableStores(
                partitions=FakePartitionStore(self.partitions, owner, LEASE, step=step),
                resync_requests=self.marking(step),
            ),
            BigtableOutput(
                publisher=publisher,
                dead_letters=self.dead_letters,
                subscriptions=self.subscriptions,
                outputs=self._outputs(),
            ),
            Monitoring(self.metrics, Health()),
            kind(owner=owner, lease=LEASE, heartbeat=timedelta(seconds=5)),
            snapshots=self.reading_snapshots(owner, way, publisher, step, stop),
        )
        living = Living(way, to_store, stop, asyncio.create_task(reader.run(stop)), reader)
        self.readers.append(living)
        return living

    def reading_snapshots(
        self, owner: str, way: Way, publisher: FakePublisher, step: Callable[[], Awaitable[None]], stop: Stop
    ) -> MakeSnapshots | None:
        """Return what makes a reader's part that reads snapshots; None where there are none."""
        return None

    def marking(self, step: Callable[[], Awaitable[None]]) -> ResyncRequests | None:
        """Return what marks the table; None where nothing does."""
        return None

    async def kill(self, reader: Living) -> None:
        """End a reader between two effects; what it had under way comes to nothing, or had come to something."""
        self.readers.remove(reader)
        reader.way.life.over = True
        reader.way.let_go()
        reader.to_store.let_go()
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
        """Return whether the position of every key range is behind everything in the log."""
        topology = self.partitions.topology
        assert topology is not None
        for stream_range in topology.stream_ranges:
            row = self.partitions.rows.get(stream_range.id)
            if row is None or not row.position.tokens or row.state == "CLOSING":
                return False
            tokens = [msgspec.json.decode(one.token, type=Vector) for one in row.position.tokens]
            seen = min(seen for token in tokens for _part, seen in token.parts)
            if any(change.row_key in stream_range.range for change in self.table.log[seen:]):
                return False
        return True

    async def wait_until(self, condition: Callable[[], bool], every: float = 5) -> None:
        """Wait for something to come true; what ends a reader is raised."""
        async with asyncio.timeout(3_600):
            while not condition():
                for reader in self.readers:
                    if reader.task.done():
                        await reader.task
                await asyncio.sleep(every)

    async def wait_until_all_is_read(self) -> None:
        """Wait for it."""
        await self.wait_until(self.is_all_read)

    async def stop(self, reader: Living) -> float:
        """Ask one reader to stop, and wait for it; return how many seconds that took."""
        self.readers.remove(reader)
        stopped_at = loop_time()
        reader.stop.request()
        async with asyncio.timeout(60):
            await reader.task
        return loop_time() - stopped_at

    async def calm_down(self) -> None:
        """Let all go well from now on: nothing is held up, breaks, or is paused, and somebody reads."""
        self.table.replicate(len(self.table.on_the_way))
        for reader in self.readers:
            reader.way.let_go()
            reader.way.breaks = 0.0
        await self.by_hand.resume()
        if not self.readers:
            self.start()

    def check(self) -> None:
        """Fold what was published, twice and in any order, as a consumer does: it is what the table holds.

        So are the lines of the change log, played back by sequence.
        """
        changes = [(header, [change]) for header, batch in self.topic.batches for change in batch]
        delivered = changes * 2
        self.chance.shuffle(delivered)
        newest = folded(delivered)
        for row_key in self.table.row_keys:
            wanted, found = image_of(self.table.row(row_key)), newest.get(row_key)
            assert found is not None, f"nothing was published of {row_key!r}"
            assert found.row == wanted, row_key
        if self.with_log:
            logged, repeated = rows_of_entries(delivered)
            assert logged == {key: cells for key in self.table.row_keys if (cells := cells_of(self.table.row(key)))}
            assert repeated > 0

    def _outputs(self) -> Outputs:
        both = outputs(entries=self.with_log)
        if not self.with_log:
            return both
        return Outputs(both.watched, both.images, outputs(images=False, entries=True, options=LOSSLESS).entries)


def entries(chance: Random, families: Sequence[str] = FAMILIES) -> Sequence[Entry]:
    """Return the entries of one call, of families that are there."""
    found: list[Entry] = []
    for _number in range(chance.randint(1, 3)):
        family, qualifier = chance.choice(families), chance.choice((b"q", b"r"))
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


async def happen(world: World, step: str) -> None:
    chance = world.chance
    match step:
        case "write" if families := sorted(world.catalog.found.families):
            world.table.write(chance.choice(KEYS), *entries(chance, families))
        case "elsewhere":
            key, log = chance.choice(KEYS), world.table.log
            # Sometimes just when the other cluster took a change of the row: the tiebreaker decides.
            commits = [one.commit for one in log if one.row_key == key and one.cluster == "c1"]
            commit = chance.choice(commits) if commits and chance.random() < 0.3 else None
            behind = chance.randrange(30_000_000)
            world.table.write(key, *entries(chance), cluster="c2", behind=behind, commit=commit)
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
        case "pause the stream":
            await world.by_hand.pause()
        case "resume the stream":
            await world.by_hand.resume()
        case "pause" if world.readers:  # as a machine that stands still; what it had is taken over
            world.readers[0].way.hold_up()
            world.start()
            await asyncio.sleep(chance.uniform(0, 30))
        case "go on":
            for reader in world.readers:
                reader.way.let_go()
        case _:  # nobody is there to whom it could happen
            pass
