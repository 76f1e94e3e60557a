"""A Spanner table on fakes that goes on changing while snapshots of it are read."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

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
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.records import SpannerColumnType
from services.spanner_reader.ports import RangeProgress, WatchedTable
from shared.contracts.change_sequence import ChangeSequenceNumber, parse_sequence
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.reading.snapshots import SnapshotOptions, Snapshots
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.snapshots import FakeRows, FakeSnapshotStore, SnapshotTable, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore, Shapes
from tests.worlds.snapshot_reading import reading

START = parse_timestamp("2026-11-21T12:00:00Z")
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
PLANES = WatchedTable(
    "Planes",
    ("Id",),
    (SpannerColumnType("Id", '{"code":"INT64"}', True, 1), SpannerColumnType("Name", '{"code":"STRING"}', False, 2)),
    "NEW_ROW",
)


@dataclass
class World:
    """A table that goes on changing, and a table of snapshots of it."""

    clock: SteppingClock = field(default_factory=lambda: SteppingClock(START))
    versions: Versions = field(init=False)
    snapshots: SnapshotTable = field(init=False)
    topic: Topic = field(default_factory=Topic)
    metrics: SpannerMetrics = field(default_factory=SpannerMetrics)
    shapes: Shapes = field(default_factory=Shapes)
    trusted: bool = True
    resting: set[str] = field(default_factory=set)
    surveyed: Callable[[Sequence[SnapshotRange]], None] = lambda _ranges: None
    merges_fail: bool = False
    merges: list[str] = field(default_factory=list)
    """The tables whose ranges were to be merged."""
    survey_takes: timedelta = timedelta()
    survey_begins: list[float] = field(default_factory=list)
    """When surveys began, by the event loop's clock."""

    def __post_init__(self) -> None:
        self.versions, self.snapshots = Versions(self.clock), SnapshotTable(self.clock)
        self.catalog = FakeCatalog(PLANES, clock=self.clock)

    def write(self, key: int, value: str | None) -> None:
        """Commit a change a while after the one before."""
        self.clock.step(SECOND)
        self.versions.write(key, value)

    @classmethod
    def filled(cls, keys: Iterable[int] = (1,), **settings: Any) -> "World":
        """Return a world whose table has some rows."""
        world = cls(**settings)
        for key in keys:
            world.write(key, "a")
        world.clock.step(SECOND)
        return world

    @classmethod
    async def requested(cls, keys: Iterable[int] = (1,), **settings: Any) -> "World":
        """Return a world whose table has some rows, of which a snapshot is requested."""
        world = cls.filled(keys, **settings)
        await world.request()
        return world

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
    def announced(self) -> list[str]:
        """Return since when the table is complete, as it was announced."""
        return [header.complete_since for header in self.topic.headers if isinstance(header.complete_since, str)]

    def mirrored(self) -> dict[int, str]:
        """Return the rows as BigQuery holds them: of each key the change with the highest sequence."""
        newest: dict[int, tuple[ChangeSequenceNumber, str | None]] = {}
        for change in self.topic.changes:
            key, sequence = int(change.key.split('"')[3]), parse_sequence(change.sequence)
            if key not in newest or newest[key][0] < sequence:
                newest[key] = sequence, None if change.row is None else change.row.split('"')[3]
        return {key: value for key, (_sequence, value) in sorted(newest.items()) if value is not None}


class WatchedStore(FakeSnapshotStore):
    """A store of snapshots whose surveys are seen."""

    def __init__(self, world: World, owner: str, life: Life) -> None:
        super().__init__(world.snapshots, owner, LEASE, life)
        self._world = world

    async def survey(self) -> SnapshotSurvey:
        """Return all ranges."""
        self._world.survey_begins.append(asyncio.get_running_loop().time())
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
    async with reading(*readers) as tasks:
        while not (world.over and await readers[-1].over()):
            await asyncio.sleep(0.5)
            for task in tasks:
                if task.done():
                    task.result()


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


async def half_read_and_lost() -> World:
    """Return a world with a snapshot, half of which a topic confirmed and then lost, and with a mark that says so."""
    world = await World.requested(range(10))
    store = FakeSnapshotStore(world.snapshots, "stopped half way", LEASE)
    (claimed,) = await store.claim([("Planes", 0)])
    cut = await store.cut(claimed, [])
    assert cut is not None
    await store.save([RangeProgress(cut, KeyText('["4"]'), 5, cut.read_at)], release=True)
    world.clock.step(SECOND)
    world.shapes.requests = a_request(world.clock.now(), SpannerResyncKind.TABLE_LOST)
    world.clock.step(SECOND)
    return world


async def read_and_not_announced(world: World) -> None:
    """Let a snapshot be read by a reader that is killed before it could announce that it is complete."""
    store = FakeSnapshotStore(world.snapshots, "killed before it could announce", LEASE)
    (claimed,) = await store.claim([("Planes", 0)])
    await store.save([RangeProgress(claimed, None, 1, claimed.read_at, done=True)])


def a_request(
    before: int, kind: SpannerResyncKind = SpannerResyncKind.TABLE_AGAIN
) -> Mapping[str, SpannerResyncRequest]:
    """Return a resync request for what happened before a time."""
    found = SpannerResyncCause("Planes", kind, START, Nanoseconds(before))
    return {"Planes": SpannerResyncRequest("Planes", (found,))}
