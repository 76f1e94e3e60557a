"""A first start, while tables are made and whoever starts is killed: each table is in the snapshot or in the stream."""

import contextlib
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from services.spanner_reader.app.stream.first_start import first_start
from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.snapshot.snapshot import RangeState
from services.spanner_reader.core.stream.records import ROOT
from services.spanner_reader.ports import CatalogInspection, WatchedTable
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile, read_tables_file
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.life import CrashError, Life
from tests.fakes.snapshots import FakeSnapshotStore, SnapshotTable
from tests.fakes.spanner_reader import FakePartitionStore, SteppingClock, Table
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore, Shapes
from tests.unit.spanner_reader.scripts import COLUMNS, LEASE, at

SINGERS = WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW")
ALBUMS = replace(SINGERS, name="Albums")
LAST_STEP = 30


class Making(Life):
    """A life in which time passes at every step, and a table is made, and filled at once, before one of them."""

    def __init__(self, world: "World", killed_at: int | None) -> None:
        super().__init__(killed_at)
        self.world = world

    def step(self) -> None:
        self.world.pass_time()
        super().step()


@dataclass
class World:
    """A database, its stream, and what outlives a start."""

    everything: bool
    made_before: int
    clock: SteppingClock = field(default_factory=lambda: SteppingClock(at("09:00:00")))
    shapes: Shapes = field(default_factory=Shapes)
    file: TablesFile = field(default_factory=TablesFile)
    steps: int = 0
    made_at: Nanoseconds | None = None

    def __post_init__(self) -> None:
        self.snapshots, self.partitions = SnapshotTable(self.clock), Table(self.clock)
        self.catalog = CatalogNow(self, Life())

    def pass_time(self) -> None:
        self.steps += 1
        self.clock.step(timedelta(milliseconds=1))
        if self.steps == self.made_before:
            self.made_at = self.clock.now()
            self.clock.step(timedelta(milliseconds=1))

    async def start(self, killed_at: int | None = None, wanted: Nanoseconds | None = None) -> None:
        life = Making(self, killed_at)
        await first_start(
            catalog=CatalogNow(self, life),
            shapes=FakeShapeStore(self.shapes, life),
            partitions=FakePartitionStore(self.partitions, "o", LEASE, life),
            snapshots=FakeSnapshotStore(self.snapshots, "o", LEASE, life),
            included=self.file.included,
            table_options=self.file.options,
            wanted=wanted,
            end=None,
            check=self.check,
        )

    async def check(self, start: Nanoseconds, now: Nanoseconds) -> None:
        if start > now:
            raise MisconfiguredError("made-up", "still to come")


class CatalogNow(FakeCatalog):
    """The tables at the database's own time."""

    def __init__(self, world: World, life: Life) -> None:
        super().__init__(everything=world.everything)
        self._world, self._life = world, life

    async def inspect(self) -> CatalogInspection:
        self._life.step()
        made = self._world.made_at is not None
        self.tables, self.time = [SINGERS, *([ALBUMS] if made else [])], self._world.clock.now() - 1_000
        found = await super().inspect()
        self._life.step()
        return found


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("made_before", range(1, LAST_STEP))
async def test_a_table_made_at_any_time_is_in_the_snapshot_or_in_the_stream_or_pending_resync(
    everything: bool, made_before: int
) -> None:
    for killed_at in (None, *range(1, 12)):
        world = World(everything, made_before)
        with contextlib.suppress(CrashError):
            await world.start(killed_at)
        if not world.partitions.rows:
            await world.start()
        if world.made_at is None:
            world.made_at = world.clock.now()
        await FakeShapeStore(world.shapes).compare((await world.catalog.inspect()).shapes, ())
        begins = world.partitions.rows[ROOT].start
        read = {one.table: one.read_at for one in world.snapshots.rows.values()}
        assert read["Singers"] >= begins
        kinds = [found.kind for request in world.shapes.requests.values() for found in request.findings]
        if world.made_at <= begins:
            assert read["Albums"] >= begins
        elif everything:
            assert kinds == [], "all of it is in the stream"
        else:
            assert kinds == [SpannerResyncKind.TABLE_WATCHED], "what was in it when the stream took it up is nowhere"


async def test_where_a_time_is_asked_for_the_stream_begins_there_and_every_table_is_read_as_it_was_then() -> None:
    world = World(everything=True, made_before=1)
    wanted = world.clock.now()
    world.clock.step(timedelta(seconds=1))
    await world.start(wanted=wanted)
    assert world.partitions.rows[ROOT].start == wanted
    assert {one.table: one.read_at for one in world.snapshots.rows.values()} == {"Albums": wanted, "Singers": wanted}
    assert world.shapes.inspection is not None
    assert world.shapes.inspection.at == wanted


async def test_a_beginning_that_is_refused_leaves_nothing_behind() -> None:
    world = World(everything=True, made_before=1)
    with pytest.raises(MisconfiguredError, match="still to come"):
        await world.start(wanted=Nanoseconds(world.clock.now() + 60_000_000_000))
    assert (world.partitions.rows, world.snapshots.rows, world.shapes.inspection) == ({}, {}, None)


async def test_what_the_tables_file_says_is_remembered_from_the_first_start_on() -> None:
    file = read_tables_file("[tables.Singers]\nignored_columns = ['Name']\n[tables.Albums]\nmode = 'history'")
    world = World(everything=True, made_before=1, file=file)
    await world.start()
    assert world.shapes.inspection is not None
    tables = world.shapes.inspection.tables
    assert [one.name for one in tables["Singers"].columns if one.ignored] == ["Name"]
    assert [name for name, table in tables.items() if table.history] == ["Albums"]


@pytest.mark.parametrize("state", [RangeState.CUT, RangeState.DONE, RangeState.CANCELLED])
async def test_a_stream_that_begins_again_beside_an_earlier_snapshot_reads_all_rows_again(state: RangeState) -> None:
    """The partitions were deleted by hand: what was committed between the two beginnings is in no record."""
    world = World(True, LAST_STEP)
    await world.start()
    for place, one in world.snapshots.rows.items():
        world.snapshots.rows[place] = replace(one, state=state, rows=7)
    world.partitions.rows.clear()
    world.clock.step(timedelta(days=30))
    await world.start()
    begins = world.partitions.rows[ROOT].start
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.REQUESTED}
    assert all(one.read_at >= begins for one in world.snapshots.rows.values())


@pytest.mark.parametrize("state", [RangeState.REQUESTED, RangeState.CUT, RangeState.DONE])
async def test_a_snapshot_of_who_began_the_stream_stays_though_a_slower_start_asks_after_it(state: RangeState) -> None:
    """The slower one has looked at the schema before: at its time the stream does not begin."""
    world = World(True, LAST_STEP)

    async def slow(start: Nanoseconds, now: Nanoseconds) -> None:
        del start, now
        del world.__dict__["check"]
        world.clock.step(timedelta(seconds=5))
        await world.start()
        for place, one in world.snapshots.rows.items():
            world.snapshots.rows[place] = replace(one, state=state, owner="o", rows=7)

    world.check = slow  # type: ignore[method-assign]
    await world.start()
    begins = world.partitions.rows[ROOT].start
    assert [(one.run, one.state) for one in world.snapshots.rows.values()] == [(1, state)] * len(world.snapshots.rows)
    assert all(one.read_at >= begins for one in world.snapshots.rows.values())
