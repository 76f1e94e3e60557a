"""Two tables that go on changing while readers read snapshots of them, and messages that arrive when they like."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.snapshot.snapshot_ends import SpannerSnapshotEnds
from services.spanner_reader.app.snapshot.snapshot_source import SpannerSnapshots, SpannerSnapshotSource
from services.spanner_reader.core.snapshot.snapshot import UNFINISHED, KeyText
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.ports import CatalogInspection, WatchedTable
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import ChangeSequenceNumber, four_sections
from shared.contracts.errors import TransientError
from shared.contracts.safe_age import SNAPSHOT_END_AGE
from shared.contracts.timestamps import Nanoseconds, microseconds
from shared.reading.snapshots import SnapshotOptions, Snapshots
from shared.runtime.stop import Stop
from tests.fakes.life import CrashError, Life, Way
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.snapshots import FakeRows, FakeSnapshotStore, SnapshotTable, Versions
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore, Shapes
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.unit.spanner_reader.forgetful_mirror import Arrival, Mirror
from tests.unit.spanner_reader.scripts import COLUMNS, LiveClock, a_write

SINGERS, ALBUMS = TABLES = "Singers", "Albums"
KEYS = range(24)
GHOSTS = range(-2, len(KEYS))
LEASE = timedelta(seconds=30)
LONGEST_OF_A_CHANGE = timedelta(hours=40)
"""How long one is under way; a consumer that is away for longer has its deletes waiting, too."""
LATE = timedelta(days=4)
_TO_THE_END = timedelta(hours=1)


class LiveCatalog(FakeCatalog):
    """A catalog whose looks are at Spanner's time, and no further back than it remembers."""

    def __init__(self, clock: LiveClock, retention: timedelta) -> None:
        super().__init__(*(WatchedTable(name, ("Id",), COLUMNS, "NEW_ROW") for name in TABLES), clock=clock)
        self._now = clock.now
        self._remembers = retention // timedelta(microseconds=1) * 1_000

    async def inspect_at(self, at: Nanoseconds) -> CatalogInspection | None:
        """Return the tables as they were; None where that is not remembered."""
        return None if self._now() - at > self._remembers else await super().inspect_at(at)


class SlowStore(FakeSnapshotStore):
    """A store of snapshots whose calls take their time, and fail."""

    def __init__(self, table: SnapshotTable, owner: str, way: Way) -> None:
        super().__init__(table, owner, LEASE, way.life)
        self._way = way

    async def _before(self) -> None:
        await self._way.step()


class SlowRows:
    """The rows of both tables, which come slowly, and in key order or not."""

    def __init__(self, world: "SnapshotWorld", way: Way) -> None:
        self.in_key_order = world.in_key_order
        self._way = way
        self._tables = {
            name: FakeRows(versions, cuts=world.cuts.get(name, ()), life=way.life)
            for name, versions in world.versions.items()
        }

    async def read(
        self,
        table: WatchedTable,
        at: Nanoseconds,
        *,
        after: KeyText | None,
        until: KeyText | None,
        in_key_order: bool = False,
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield rows as they were."""
        rows = self._tables[table.name]
        reading = rows.read(table, at, after=after, until=until, in_key_order=in_key_order)
        batches = [batch async for batch in reading]
        if not (in_key_order or self.in_key_order):
            self._way.chance.shuffle(batches)
        for batch in batches:
            await self._way.step()
            rows.check(at)
            yield batch

    def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield the rows that there are under some keys."""
        return self._tables[table.name].read_keys(table, at, keys)

    async def cuts(self, table: WatchedTable, at: Nanoseconds) -> Sequence[KeyText]:
        """Return keys that cut the table."""
        await self._way.step()
        return await self._tables[table.name].cuts(table, at)


class SlowPublisher:
    """Confirms seconds later, in any order. Of what a reader had handed over when it died, some is published."""

    def __init__(self, world: "SnapshotWorld", way: Way) -> None:
        self._world = world
        self._way = way

    async def publish(self, header: Header, changes: Sequence[tuple[str, Change]]) -> "asyncio.Future[None]":
        """Take changes."""
        self._way.life.step()
        loop, taken = asyncio.get_running_loop(), [change for _key, change in changes]
        future: asyncio.Future[None] = loop.create_future()
        later = self._way.chance.uniform(0, 3 * self._way.slowest)
        loop.call_later(later, self._confirm, header, taken, self._world.clock.now(), future)
        return future

    def hurry(self, seconds: float = 0.0) -> None:
        """Let nothing wait longer than it does."""

    async def close(self) -> None:
        """End."""

    def _confirm(
        self, header: Header, changes: Sequence[Change], taken_at: Nanoseconds, future: "asyncio.Future[None]"
    ) -> None:
        if self._way.life.over and self._way.chance.random() < 0.7:
            return
        self._world.send(header, changes, taken_at, LATE if self._world.late else SNAPSHOT_END_AGE)
        try:
            self._way.life.step()
        except CrashError as error:
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be left to ask for it
        else:
            if not future.done():
                future.set_result(None)


@dataclass(frozen=True)
class RunningReader:
    """A reader of snapshots, and its way to the world."""

    snapshots: SpannerSnapshots
    way: Way
    task: "asyncio.Task[None]"


@dataclass
class SnapshotWorld:
    """What outlives a reader."""

    chance: Random
    retention: timedelta = timedelta(hours=1)
    """How far back the tables can be read."""
    late: bool = False
    """Whether messages may come later than a snapshot's rows may."""
    in_key_order: bool = True
    breaks: float = 0.0
    cuts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    clock: LiveClock = field(default_factory=LiveClock)
    readers: list[RunningReader] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    resting: set[str] = field(default_factory=set)
    """Tables that are paused: their changes are dropped."""
    dropped: dict[str, Nanoseconds] = field(default_factory=dict)
    """When the last change of a table that was dropped was committed."""

    def __post_init__(self) -> None:
        self.versions = {name: Versions(self.clock, remembers=self.retention) for name in TABLES}
        self.snapshots = SnapshotTable(self.clock)
        self.catalog = LiveCatalog(self.clock, self.retention)
        self.changes = ChangeMaker("source", 4, {})
        self._started = 0

    def write(self, table: str, key: int, value: str | None, *, streamed: bool = True) -> None:
        """Commit a row, or its deletion, now; the stream has it unless it began later, or the table is paused."""
        self.clock.step(timedelta(microseconds=1))
        self.versions[table].write(key, value)
        if table in self.resting:
            self.dropped[table] = self.clock.now()
        elif streamed:
            header, changes = self.changes.changes(a_write(self.clock.now(), table, key, value))
            self.send(header, [change for _key, change in changes], self.clock.now(), LONGEST_OF_A_CHANGE)

    def send(self, header: Header, changes: Sequence[Change], taken_at: Nanoseconds, longest: timedelta) -> None:
        """Publish now what was taken before; it arrives once or twice, so long after that at most."""
        for _copy in range(self.chance.choice((1, 1, 2))):
            delay = self.chance.uniform(0, self.chance.choice((10, 3_600, longest.total_seconds())))
            at = Nanoseconds(max(self.clock.now(), taken_at + int(delay * 1e9)))
            self.arrivals.append(Arrival(at, self.clock.now(), header, changes))

    async def leap(self, time: timedelta) -> None:
        """Let time pass in which nobody does anything, and then what was due meanwhile."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.leap(time.total_seconds())
        await asyncio.sleep(1)

    async def request(self, tables: Collection[str], *, again: bool = True) -> None:
        """Ask for a snapshot of each as of now."""
        await self._asking.request(list(tables), self.clock.now(), again=again)

    async def request_keys(self, table: str, after: int, until: int) -> None:
        """Ask for some keys of a table."""
        keys = [KeyText(f'["{key}"]') for key in (after, until)]
        await self._asking.request_keys(table, self.clock.now(), keys[0], keys[1])

    async def cancel(self, table: str) -> None:
        """Give up what is left of a table's snapshots."""
        await self._asking.cancel([table])

    @property
    def _asking(self) -> FakeSnapshotStore:
        return FakeSnapshotStore(self.snapshots, "asks", LEASE)

    def start(self) -> RunningReader:
        """Start one more reader."""
        self._started += 1
        life = Life()
        slowest = self.chance.choice((1.0, 3.0, 9.0))
        way = Way(Random(self.chance.random()), life, slowest=slowest, breaks=self.breaks)
        store, publisher = SlowStore(self.snapshots, f"reader {self._started}", way), SlowPublisher(self, way)
        tables = MirroredTables(self.catalog, self.changes, lambda _table: True)
        shapes, metrics, stop = FakeShapeStore(Shapes(), life), SpannerMetrics(), Stop()
        snapshots = Snapshots(
            SpannerSnapshotSource(
                store, SlowRows(self, way), tables, is_paused=self.resting.__contains__, metrics=metrics, stop=stop
            ),
            SpannerSnapshotEnds(store, shapes, tables, publisher, metrics, automatic=False),
            publisher,
            trusted=lambda: True,
            stop=stop,
            options=SnapshotOptions(save=timedelta(seconds=1), unconfirmed_bytes=self.chance.choice((500, 1 << 20))),
        )
        reader = RunningReader(snapshots, way, asyncio.create_task(snapshots.keep_reading()))
        self.readers.append(reader)
        return reader

    async def stop(self, reader: RunningReader, *, killed: bool) -> None:
        """Kill a reader, or let it end as it should."""
        self.readers.remove(reader)
        reader.way.life.over |= killed
        reader.task.cancel()
        (result,) = await asyncio.gather(reader.task, return_exceptions=True)
        assert isinstance(result, CrashError | asyncio.CancelledError), result
        if not killed:
            reader.way.let_go()
            with contextlib.suppress(CrashError, TransientError):
                await reader.snapshots.release()

    async def bury(self) -> None:
        """Take away the readers that were killed; what ended one otherwise is raised."""
        for reader in [one for one in self.readers if one.task.done()]:
            await self.stop(reader, killed=True)

    async def wait_until_all_is_read(self) -> None:
        """Let everything go well until nothing is left to read, and nothing to say of that."""
        self.resting.clear()
        async with asyncio.timeout(_TO_THE_END.total_seconds()):
            while True:
                await self.bury()
                if not self.readers:
                    self.start()
                for reader in self.readers:
                    reader.way.breaks = 0.0
                    reader.way.life.killed_at = None
                    reader.way.let_go()
                with contextlib.suppress(CrashError):  # one that is dead already, and not buried
                    if not self.is_left and await self.readers[-1].snapshots.over():
                        return
                await asyncio.sleep(2)

    @property
    def is_left(self) -> bool:
        """Return whether anything is left to read."""
        return any(one.state in UNFINISHED for one in self.snapshots.rows.values())

    def mirror(self) -> Mirror:
        """Return what the mirrors are once everything has arrived."""
        return Mirror(TABLES, GHOSTS).take(self.arrivals)

    def needing_another(self) -> Collection[str]:
        """Return the tables that need a snapshot more, as anybody can see: none ended well since changes were dropped.

        Where messages may come too late, those of which something was refused need one, too.
        """
        mirror = self.mirror()
        refused = {one.header.table for one in mirror.refused} if self.late else set()
        dropped = {table: four_sections(microseconds(self.dropped.get(table, Nanoseconds(1_000)))) for table in TABLES}
        nothing = ChangeSequenceNumber((0,))
        return [
            table for table in TABLES if table in refused or mirror.complete_since.get(table, nothing) < dropped[table]
        ]

    def source(self, table: str) -> Mapping[int, str]:
        """Return a table's rows as they are now."""
        return self.versions[table].at(self.clock.now())
