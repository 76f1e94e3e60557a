"""What a reader of snapshots does by itself and beside others. That mirrors end up equal: test_snapshot_convergence."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.spanner_reader.core.changes import ChangeMaker, spanner_sequence
from services.spanner_reader.core.records import ColumnType
from services.spanner_reader.core.snapshot import OLDEST_READ, UNFINISHED, ConfirmedKeys, KeyText, RangeState
from services.spanner_reader.ports import CatalogLook, WatchedTable
from services.spanner_reader.snapshot_ends import SnapshotEnds
from services.spanner_reader.snapshots import SnapshotOptions, Snapshots
from shared.contracts.change_sequence import ChangeSequenceNumber, parse_sequence
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds, parse_timestamp
from shared.runtime.stop import Stop
from tests.fakes.life import CrashError, Life
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.snapshots import FakeRows, FakeSnapshotStore, SnapshotTable, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore, Shapes
from tests.fakes.virtual_time import run_in_virtual_time

START = parse_timestamp("2026-11-21T12:00:00Z")
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
PLANES = WatchedTable(
    "Planes",
    ("Id",),
    (ColumnType("Id", '{"code":"INT64"}', True, 1), ColumnType("Name", '{"code":"STRING"}', False, 2)),
    "NEW_ROW",
)


class CatalogNow(FakeCatalog):
    """A catalog whose looks are at Spanner's time."""

    def __init__(self, clock: SteppingClock, *tables: WatchedTable) -> None:
        super().__init__(*tables)
        self._clock = clock

    async def look(self) -> CatalogLook:
        """Return the tables as they are now."""
        self.time = self._clock.now() - 1_000
        return await super().look()


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
    ) -> tuple[Snapshots, FakeRows]:
        """Return a reader of snapshots, and its way to the rows."""
        life = life or Life()
        rows = FakeRows(self.versions, cuts=cuts, life=life, meanwhile=meanwhile)
        store = FakeSnapshotStore(self.snapshots, owner, LEASE, life)
        publisher = publisher or FakePublisher(self.topic, life, seed=len(owner))
        changes = ChangeMaker("source", 4, {})
        ends = SnapshotEnds(
            store=store,
            shapes=FakeShapeStore(self.shapes, life),
            catalog=self.catalog,
            publisher=publisher,
            changes=changes,
            included=included,
            trusted=lambda: self.trusted,
            metrics=self.metrics,
            automatic=automatic,
            every=5 * SECOND,
        )
        reader = Snapshots(
            ends=ends,
            store=store,
            rows=rows,
            catalog=self.catalog,
            publisher=publisher,
            changes=changes,
            included=included,
            trusted=lambda: self.trusted,
            rests=lambda table: table in self.resting,
            metrics=self.metrics,
            stop=Stop(),
            options=SnapshotOptions(save=SECOND, unconfirmed_bytes=unconfirmed_bytes),
        )
        return reader, rows

    async def request(self, *, again: bool = False) -> None:
        """Ask for a snapshot as of now."""
        await FakeSnapshotStore(self.snapshots, "asks", LEASE).request(["Planes"], self.clock.now(), again=again)

    @property
    def over(self) -> bool:
        """Tell whether nothing is left to read."""
        return all(one.state not in UNFINISHED for one in self.snapshots.rows.values())

    @property
    def told(self) -> list[str]:
        """Return since when the table is complete, as was said of it."""
        return [header.complete_since for header in self.topic.headers if isinstance(header.complete_since, str)]

    def mirrored(self, ghosts: Collection[int] = (), swept: str = "") -> dict[int, str]:
        """Return the rows as BigQuery holds them: of each key the change with the highest sequence.

        With ``ghosts`` that were there before, of which no change tells, and without what is older than ``swept``.
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


async def until_over(world: World, *readers: Snapshots) -> None:
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


def test_it_goes_on_behind_the_last_confirmed_key_and_counts_what_it_read() -> None:
    world = World()
    for key in range(20):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        life = Life(killed_at=45)
        reader, _rows = world.reader("first", life=life)
        with contextlib.suppress(CrashError):
            await until_over(world, reader)
        (saved,) = world.snapshots.rows.values()
        assert 0 < saved.rows < 20
        world.clock.step(2 * LEASE)
        second, rows = world.reader("second")
        await until_over(world, second)
        assert rows.read_from == [saved.last]

    run_in_virtual_time(scenario())
    (done,) = world.snapshots.rows.values()
    assert (done.rows, len(world.mirrored())) == (20, 20)


def test_two_readers_share_the_parts_of_a_table_and_a_stop_gives_them_back() -> None:
    world = World()
    for key in range(40):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        readers = [world.reader(owner, cuts=[9, 19, 29])[0] for owner in ("one", "another")]
        tasks = [asyncio.create_task(reader.keep_reading()) for reader in readers]
        await asyncio.sleep(2)
        assert {"one", "another"} <= {one.owner for one in world.snapshots.rows.values()}
        for task, reader in zip(tasks, readers, strict=True):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await reader.let_go()
        assert all(one.lease_until is None for one in world.snapshots.rows.values())
        await until_over(world, world.reader("third")[0])

    run_in_virtual_time(scenario())
    assert world.mirrored() == world.versions.at(world.clock.now())
    assert all(header.origin == "snapshot" for header in world.topic.headers)


def test_no_more_than_its_share_waits_for_confirmation() -> None:
    world = World()
    for key in range(40):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        publisher = FakePublisher(world.topic, by_hand=True)
        reader, _rows = world.reader(publisher=publisher, unconfirmed_bytes=1_000)
        task = asyncio.create_task(reader.keep_reading())
        confirmed = 0
        while not world.over:
            await asyncio.sleep(1)
            assert len(publisher.waiting) <= 3
            for future in list(publisher.waiting):
                publisher.confirm(future)
                confirmed += 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert confirmed >= 20  # of the rows; and there is one of the end

    run_in_virtual_time(scenario())
    assert world.metrics.snapshot_rows == 40


def test_what_one_readers_tables_file_leaves_out_is_left_to_a_reader_that_mirrors_it() -> None:
    world = World()
    world.write(1, "a")

    async def scenario() -> None:
        await world.request()
        without, _rows = world.reader("without", included=lambda _table: False)
        task = asyncio.create_task(without.keep_reading())
        await asyncio.sleep(60)
        (left,) = world.snapshots.rows.values()
        assert (left.state, left.owner) == (RangeState.REQUESTED, None)
        assert await without.over(), "what is others' keeps nobody from ending"
        await until_over(world, world.reader("with")[0])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(scenario())
    assert world.mirrored() == {1: "a"}
    assert len(world.told) == 1


def test_a_table_that_is_gone_is_over_and_what_nobody_may_read_holds_up_nobody() -> None:
    world = World()
    world.catalog.tables = []

    async def gone() -> None:
        await world.request()
        await until_over(world, world.reader()[0])

    run_in_virtual_time(gone())
    assert world.topic.changes == []
    assert world.told == [], "of a table that was not read nobody may take it that its rows are gone"
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.CANCELLED}

    world = World()
    world.write(1, "a")

    async def forbidden() -> None:
        await world.request()
        reader, rows = world.reader()
        refused = [MisconfiguredError("PERMISSION_DENIED: grant spanner.databases.read")] * 2

        def refuse(at: Nanoseconds) -> None:
            if refused:
                raise refused.pop()

        rows.check = refuse  # type: ignore[method-assign]
        await until_over(world, reader)
        assert refused == []

    run_in_virtual_time(forbidden())
    assert world.mirrored() == {1: "a"}


@given(st.permutations(range(8)))
def test_a_key_counts_as_confirmed_with_all_before_it(order: list[int]) -> None:
    keys = ConfirmedKeys(None)
    taken = [keys.add(KeyText(str(number)), 2, 10) for number in range(8)]
    confirmed: set[int] = set()
    for number in order:
        keys.confirm(taken[number])
        confirmed.add(number)
        whole = next(count for count in range(9) if count not in confirmed)
        assert keys.last == (KeyText(str(whole - 1)) if whole else None)
        assert (keys.rows, keys.outstanding_bytes) == (2 * whole, 10 * (8 - len(confirmed)))
    assert keys.all_confirmed


def test_no_row_is_published_under_a_time_nearly_as_old_as_deletes_are_remembered() -> None:
    world = World()
    world.versions.remembers = timedelta(days=7)
    for key in range(20):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        world.clock.step(OLDEST_READ + SECOND)
        await until_over(world, world.reader()[0])

    run_in_virtual_time(scenario())
    assert {change.commit_timestamp for change in world.topic.changes} == {format_timestamp(world.clock.now())}
    (done,) = world.snapshots.rows.values()
    assert (done.read_at, done.first_read_at) == (world.clock.now(), START + 20 * 1_000_000_000)


def test_a_publisher_that_has_failed_ends_it() -> None:
    world = World()
    world.write(1, "a")

    async def scenario() -> None:
        await world.request()
        publisher = FakePublisher(world.topic)
        publisher.error = MisconfiguredError("the topic is gone")
        reader, _rows = world.reader(publisher=publisher)
        with pytest.raises(MisconfiguredError, match="the topic is gone"):
            await asyncio.wait_for(reader.keep_reading(), 600)

    run_in_virtual_time(scenario())
