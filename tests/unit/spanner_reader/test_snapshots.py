"""What a reader of snapshots does by itself and beside others. That mirrors end up equal: test_snapshot_convergence."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from services.spanner_reader.core.snapshot.snapshot import OLDEST_READ, KeyText, RangeState, SnapshotRange
from services.spanner_reader.ports import CatalogInspection, NotReadableError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.fakes.snapshots import FakeSnapshotStore
from tests.fakes.spanner_reader import FakePublisher
from tests.worlds.changing_table import LEASE, PLANES, SECOND, START, World, a_request, until_over
from tests.worlds.snapshot_reading import reading


async def test_of_what_is_read_one_row_is_kept_and_seldom_inspected_until_something_is_asked_for_again() -> None:
    world = await World.requested(range(20))
    reader, _rows = world.reader(cuts=[4, 9, 14])
    surveys: list[int] = []
    async with reading(reader):
        while not (world.over and len(world.snapshots.rows) == 1 and await reader.over()):  # noqa: ASYNC110  a table
            await asyncio.sleep(0.5)
        (kept,) = world.snapshots.rows.values()
        assert (kept.state, kept.rows, len(world.announced)) == (RangeState.DONE, 20, 1)
        world.surveyed = lambda ranges: surveys.append(len(ranges))
        await asyncio.sleep(100)
        assert 2 <= len(surveys) <= 12
        assert set(surveys) == {1}
        await world.request(again=True)
        await asyncio.sleep(60)
        assert len(world.announced) == 2


def read_in_parts(world: World, table: str, parts: int) -> None:
    """Store a snapshot of a table that has been read to its end in parts."""
    for number in range(parts):
        until = None if number == parts - 1 else KeyText(f'["{number}"]')
        one = SnapshotRange(
            table=table,
            number=number,
            run=1,
            after=KeyText(f'["{number - 1}"]') if number else None,
            until=until,
            last=until,
            read_at=START,
            first_read_at=START,
            rows=1,
            state=RangeState.DONE,
        )
        world.snapshots.rows[one.place] = one


async def test_a_requested_snapshot_is_read_though_no_ranges_of_finished_ones_can_be_merged() -> None:
    world = await World.requested(range(20), merges_fail=True)
    for table in ("A", "B", "C"):
        read_in_parts(world, table, 3)
    async with asyncio.timeout(600):
        await until_over(world, world.reader()[0])
    assert {"A", "B", "C"} <= set(world.merges), "each has its turn"
    assert world.mirrored() == world.versions.at(world.clock.now())


async def test_ranges_of_one_table_are_merged_in_a_round() -> None:
    world = World()
    merges: list[int] = []
    world.surveyed = lambda _ranges: merges.append(len(world.merges))

    for number in range(4):
        read_in_parts(world, f"T{number}", 2)
    async with reading(world.reader()[0]):
        await asyncio.sleep(100)
    assert merges[:5] == [0, 1, 2, 3, 4]
    assert len(world.snapshots.rows) == 4


async def test_between_surveys_the_ranges_that_the_last_one_found_are_claimed() -> None:
    world = await World.requested(range(20), survey_takes=timedelta(seconds=2))
    async with reading(world.reader(cuts=range(1, 20))[0]):
        await asyncio.sleep(4 * 20)
    assert world.over, "ranges do not wait for a survey each"


async def test_no_more_than_its_share_waits_for_confirmation() -> None:
    world = await World.requested(range(40))
    publisher = FakePublisher(world.topic, by_hand=True)
    reader, _rows = world.reader(publisher=publisher, unconfirmed_bytes=1_000)
    async with reading(reader):
        confirmed = 0
        while not world.over:
            await asyncio.sleep(1)
            assert len(publisher.waiting) <= 3
            for future in list(publisher.waiting):
                publisher.confirm(future)
                confirmed += 1
    assert confirmed >= 20  # of the rows; and there is one of the end
    assert world.metrics.values("reader_snapshot_rows_total") == {"Planes": 40}


async def test_what_one_readers_tables_file_leaves_out_is_left_to_a_reader_that_mirrors_it() -> None:
    world = await World.requested()
    without, _rows = world.reader("without", included=lambda _table: False)
    async with reading(without):
        await asyncio.sleep(60)
        (left,) = world.snapshots.rows.values()
        assert (left.state, left.owner) == (RangeState.REQUESTED, None)
        assert len(world.survey_begins) <= 8, "what is not read here is seldom surveyed"
        assert await without.over(), "what is others' keeps nobody from ending"
        await until_over(world, world.reader("with")[0])
    assert world.mirrored() == {1: "a"}
    assert len(world.announced) == 1


async def test_a_table_that_is_gone_is_over_and_its_rows_are_not_taken_to_be_gone() -> None:
    world = await World.requested(())
    world.catalog.tables = []
    await until_over(world, world.reader()[0])
    assert (world.topic.changes, world.announced) == ([], [])
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.CANCELLED}


async def test_what_may_not_be_read_is_read_once_it_may() -> None:
    world = await World.requested()
    reader, rows = world.reader()
    rows.refusals = [MisconfiguredError("made-up", "PERMISSION_DENIED: grant spanner.databases.read")] * 2
    await until_over(world, reader)
    assert rows.refusals == []
    assert world.mirrored() == {1: "a"}


async def test_no_row_is_published_under_a_time_nearly_as_old_as_deletes_are_remembered() -> None:
    world = await World.requested(range(20))
    world.versions.remembers, requested_at = timedelta(days=7), world.clock.now()
    world.clock.step(OLDEST_READ + SECOND)
    await until_over(world, world.reader()[0])
    assert {change.commit_timestamp for change in world.topic.changes} == {format_timestamp(world.clock.now())}
    (done,) = world.snapshots.rows.values()
    assert (done.read_at, done.first_read_at) == (world.clock.now(), requested_at)


# Given up: a snapshot that finds no table, and it alone


async def test_a_reader_that_finds_no_table_gives_up_none_that_was_asked_for_meanwhile() -> None:
    world = await World.requested()
    world.catalog.tables = []  # at that time the stream does not watch it
    inspect_at = world.catalog.inspect_at
    asked: list[Nanoseconds] = []

    async def then_it_is_watched_and_asked_for(at: Nanoseconds) -> CatalogInspection | None:
        found = await inspect_at(at)
        world.catalog.tables = [PLANES]
        world.clock.step(SECOND)
        if not asked:
            asked.append(at)
            await world.request(again=True)
        return found

    world.catalog.inspect_at = then_it_is_watched_and_asked_for  # type: ignore[method-assign]
    await until_over(world, world.reader()[0])
    assert [(one.run, one.state) for one in world.snapshots.rows.values()] == [(2, RangeState.DONE)]
    assert world.mirrored() == {1: "a"}
    assert len(world.announced) == 1


async def test_a_table_that_was_made_again_with_another_key_is_given_up_and_its_resync_takes_another_snapshot() -> None:
    """Spanner refuses the old places for ever, and while a snapshot is left to read no other is requested."""
    world = await World.requested()
    store = FakeSnapshotStore(world.snapshots, "another reader", LEASE)
    (claimed,) = await store.claim([("Planes", 0)])
    assert await store.cut(claimed, [KeyText('["DC-10"]')]) is not None  # its key was a STRING then
    world.clock.step(2 * LEASE)
    world.shapes.requests = a_request(world.clock.now())
    world.clock.step(SECOND)
    async with asyncio.timeout(600), reading(world.reader(automatic=True)[0]):
        while not world.announced:  # noqa: ASYNC110  what it waits for is a topic
            await asyncio.sleep(1)
    assert world.shapes.requests == {}
    assert [(one.run, one.state) for one in world.snapshots.rows.values()] == [(2, RangeState.DONE)]
    assert world.mirrored() == {1: "a"}


# Ranges that take longer than their time can be read


@pytest.mark.parametrize("boost", [False, True])
async def test_a_range_that_takes_hours_ends_and_its_progress_is_no_standstill(boost: bool) -> None:
    world = await World.requested(range(40))
    with capture_logs() as logs:
        reader, rows = world.reader(meanwhile=lambda: world.clock.step(timedelta(minutes=13)))
        rows.in_key_order = not boost
        await asyncio.wait_for(until_over(world, reader), 900)
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.DONE}
    assert world.mirrored() == dict.fromkeys(range(40), "a")
    events = [line["event"] for line in logs]
    assert events.count("snapshot_goes_on_at_a_new_time") > 1
    assert events.count("snapshot_stalled") == 0
    assert events.count("snapshot_range_read_without_data_boost") == int(boost)


async def test_a_reader_that_takes_over_what_was_read_in_key_order_goes_on_behind_it() -> None:
    world = await World.requested(range(40))
    reader, rows = world.reader("first", meanwhile=lambda: world.clock.step(timedelta(minutes=13)))
    rows.in_key_order = False
    async with reading(reader):
        while not any(one.last for one in world.snapshots.rows.values()):  # noqa: ASYNC110  what it waits for is a table
            await asyncio.sleep(0.1)
        await reader.release()
    (saved,) = world.snapshots.rows.values()
    second, rows = world.reader("second")
    rows.in_key_order = False
    await until_over(world, second)
    assert rows.read_from == [saved.last]
    assert world.mirrored() == dict.fromkeys(range(40), "a")
    assert [one.rows for one in world.snapshots.rows.values()] == [40]


async def test_a_range_in_no_order_that_breaks_off_at_another_row_each_time_does_not_get_on_and_is_released() -> None:
    world = await World.requested(range(40))
    calls = 0

    def break_off() -> None:
        nonlocal calls
        calls += 1
        if calls % 4 == 0 or calls % 7 == 0:
            raise TransientError("UNAVAILABLE")

    reader, rows = world.reader(meanwhile=break_off)
    rows.in_key_order = False
    with capture_logs() as logs:
        async with reading(reader):
            await asyncio.sleep(600)
    assert "snapshot_range_released" in {line["event"] for line in logs}


async def test_a_time_that_was_too_old_before_any_row_came_is_no_reason_to_read_without_data_boost() -> None:
    world = await World.requested()
    with capture_logs() as logs:
        world.clock.step(timedelta(hours=2))
        reader, rows = world.reader()
        rows.in_key_order = False
        await until_over(world, reader)
    assert world.mirrored() == {1: "a"}
    events = [line["event"] for line in logs]
    assert events.count("snapshot_goes_on_at_a_new_time") == 1
    assert events.count("snapshot_range_read_without_data_boost") == 0


async def test_what_cannot_be_read_at_a_new_time_either_is_reported() -> None:
    world = await World.requested()
    reader, rows = world.reader()
    rows.refusals = [NotReadableError("made-up", "not then")] * 3
    with capture_logs() as logs:
        await until_over(world, reader)
    assert world.mirrored() == {1: "a"}
    assert [line["event"] for line in logs].count("snapshot_stalled") == 2
