"""A Spanner table on fakes that goes on changing while snapshots of it are read."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.snapshot.snapshot_ends import SpannerSnapshotEnds
from services.spanner_reader.app.snapshot.snapshot_source import SpannerSnapshots, SpannerSnapshotSource
from services.spanner_reader.core.schema.shapes import SpannerResyncCause, SpannerResyncKind, SpannerResyncRequest
from services.spanner_reader.core.snapshot.snapshot import (
    UNFINISHED,
    KeyText,
    RangeState,
    SnapshotRange,
    SnapshotSurvey,
)
from services.spanner_reader.core.stream.changes import ChangeMaker, spanner_sequence
from services.spanner_reader.core.stream.records import SpannerColumnType
from services.spanner_reader.ports import CatalogInspection, RangeProgress, WatchedTable
from shared.contracts.change_sequence import ChangeSequenceNumber, parse_sequence
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds, microseconds, parse_timestamp
from shared.reading.snapshots import SnapshotOptions, Snapshots
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.snapshots import FakeRows, FakeSnapshotStore, SnapshotTable, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore, Shapes

START = parse_timestamp("2026-11-21T12:00:00Z")
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
PLANES = WatchedTable(
    "Planes",
    ("Id",),
    (SpannerColumnType("Id", '{"code":"INT64"}', True, 1), SpannerColumnType("Name", '{"code":"STRING"}', False, 2)),
    "NEW_ROW",
)


class CatalogNow(FakeCatalog):
    """A catalog that reads at Spanner's time."""

    def __init__(self, clock: SteppingClock, *tables: WatchedTable) -> None:
        super().__init__(*tables)
        self._clock = clock

    async def inspect(self) -> CatalogInspection:
        """Return the tables as they are now."""
        self.time = self._clock.now() - 1_000
        return await super().inspect()


@dataclass
class World:
    """A table that goes on changing, what its stream has published of that, and a table of snapshots."""

    clock: SteppingClock = field(default_factory=lambda: SteppingClock(START))
    versions: Versions = field(init=False)
    snapshots: SnapshotTable = field(init=False)
    topic: Topic = field(default_factory=Topic)
    stream: list[tuple[str, int, str | None]] = field(default_factory=list)
    """Sequence, key and value of every change since the start."""
    metrics: FakeMetrics = field(default_factory=FakeMetrics)
    shapes: Shapes = field(default_factory=Shapes)
    streaming: bool = False
    trusted: bool = True
    resting: set[str] = field(default_factory=set)
    surveyed: Callable[[Sequence[SnapshotRange]], None] = lambda _ranges: None
    merges_fail: bool = False
    merges: list[str] = field(default_factory=list)
    """The tables whose ranges were to be merged."""
    survey_takes: timedelta = timedelta()

    def __post_init__(self) -> None:
        self.versions, self.snapshots = Versions(self.clock), SnapshotTable(self.clock)
        self.catalog = CatalogNow(self.clock, PLANES)

    def write(self, key: int, value: str | None) -> None:
        """Commit a change a while after the one before."""
        self.clock.step(SECOND)
        self.versions.write(key, value)
        if self.streaming:
            sequence = str(spanner_sequence(microseconds(self.clock.now()), "0", 0))
            self.stream.append((sequence, key, value))

    def reader(
        self,
        owner: str = "reader",
        *,
        life: Life | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        cuts: Sequence[int] = (),
        publisher: FakePublisher | None = None,
        unconfirmed_bytes: int = 1 << 20,
        automatic: bool = False,
        included: Callable[[str], bool] = lambda _table: True,
    ) -> tuple[SpannerSnapshots, FakeRows]:
        """Return a reader of snapshots, and its way to the rows."""
        life = life or Life()
        rows = FakeRows(self.versions, cuts=cuts, life=life, meanwhile=meanwhile)
        store = WatchedStore(self, owner, life)
        publisher = publisher or FakePublisher(self.topic, life, seed=len(owner))
        tables, stop = MirroredTables(self.catalog, ChangeMaker("source", 4, {}), included), Stop()
        shapes = FakeShapeStore(self.shapes, life)
        source = SpannerSnapshotSource(store, rows, tables, self.resting.__contains__, self.metrics, stop)
        reader = Snapshots(
            source,
            SpannerSnapshotEnds(store, shapes, tables, publisher, self.metrics, automatic=automatic),
            publisher,
            trusted=lambda: self.trusted,
            stop=stop,
            options=SnapshotOptions(save=SECOND, unconfirmed_bytes=unconfirmed_bytes),
        )
        return reader, rows

    async def request(self, *, again: bool = False) -> None:
        """Ask for a snapshot as of now."""
        await FakeSnapshotStore(self.snapshots, "asks", LEASE).request(["Planes"], self.clock.now(), again=again)

    @property
    def over(self) -> bool:
        """Return whether nothing is left to read."""
        return all(one.state not in UNFINISHED for one in self.snapshots.rows.values())

    @property
    def told(self) -> list[str]:
        """Return since when the table is complete, as it was announced."""
        return [header.complete_since for header in self.topic.headers if isinstance(header.complete_since, str)]

    def mirrored(self, ghosts: Collection[int] = (), swept: str = "") -> dict[int, str]:
        """Return the rows as BigQuery holds them: of each key the change with the highest sequence.

        With ``ghosts`` that were there before, of which there is no change, and without what is older than ``swept``.
        """
        oldest = ChangeSequenceNumber((0,))
        newest: dict[int, tuple[ChangeSequenceNumber, str | None]] = dict.fromkeys(ghosts, (oldest, "a ghost"))
        published = [
            (change.sequence, int(change.key.split('"')[3]), None if change.row is None else change.row.split('"')[3])
            for change in self.topic.changes
        ]
        for text, key, value in [*published, *self.stream]:
            sequence = parse_sequence(text)
            if key not in newest or newest[key][0] < sequence:
                newest[key] = sequence, value
        before = parse_sequence(swept) if swept else oldest
        return {key: value for key, (at, value) in sorted(newest.items()) if value is not None and at >= before}


class WatchedStore(FakeSnapshotStore):
    """A store of snapshots whose surveys are seen."""

    def __init__(self, world: World, owner: str, life: Life) -> None:
        super().__init__(world.snapshots, owner, LEASE, life)
        self._world = world

    async def survey(self) -> SnapshotSurvey:
        """Return all ranges."""
        await asyncio.sleep(self._world.survey_takes.total_seconds())
        survey = await super().survey()
        self._world.surveyed(survey.ranges)
        return survey

    async def merge(self, table: str) -> None:
        """Merge a table's ranges, unless all merges fail."""
        self._world.merges.append(table)
        if self._world.merges_fail:
            raise TransientError("ABORTED")
        await super().merge(table)


async def until_over(world: World, *readers: SpannerSnapshots) -> None:
    """Let readers read until nothing is left, and stop them."""
    tasks = [asyncio.create_task(reader.keep_reading()) for reader in readers]
    try:
        while not (world.over and await readers[-1].over()):
            await asyncio.sleep(0.5)
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def a_range(number: int, after: str | None, until: str | None, *, read_at: int = START) -> SnapshotRange:
    return SnapshotRange(
        table="Planes",
        number=number,
        run=1,
        after=None if after is None else KeyText(after),
        until=None if until is None else KeyText(until),
        read_at=Nanoseconds(read_at),
        first_read_at=Nanoseconds(read_at),
        state=RangeState.DONE,
    )


def cut(*keys: str) -> list[SnapshotRange]:
    ends = [None, *keys, None]
    return [a_range(n, ends[n], ends[n + 1], read_at=START + n) for n in range(len(ends) - 1)]


async def half_read_and_lost(world: World) -> None:
    """Let half of a snapshot be confirmed by a topic that then loses it, and request a resync of the table."""
    for key in range(10):
        world.write(key, "a")
    world.clock.step(SECOND)
    await world.request()
    store = FakeSnapshotStore(world.snapshots, "stopped half way", LEASE)
    (claimed,) = await store.claim([("Planes", 0)])
    cut = await store.cut(claimed, [])
    assert cut is not None
    await store.save([RangeProgress(cut, KeyText('["4"]'), 5, cut.read_at)], release=True)
    world.clock.step(SECOND)
    world.shapes.requests = {"Planes": a_loss(world.clock.now())}
    world.clock.step(SECOND)


def a_loss(before: Nanoseconds) -> SpannerResyncRequest:
    return SpannerResyncRequest("Planes", (SpannerResyncCause("Planes", SpannerResyncKind.TABLE_LOST, START, before),))
