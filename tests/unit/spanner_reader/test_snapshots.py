"""What a reader of snapshots does by itself and beside others. That mirrors end up equal: test_snapshot_convergence."""

import asyncio
import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.spanner_reader.core.snapshot.snapshot import (
    OLDEST_READ,
    KeyText,
    RangeState,
    SnapshotRange,
)
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.confirmed_keys import ConfirmedKeys
from tests.fakes.life import CrashError, Life
from tests.fakes.spanner_reader import FakePublisher
from tests.fakes.virtual_time import run_in_virtual_time
from tests.worlds.changing_table import LEASE, SECOND, START, World, until_over


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


def test_of_what_is_read_one_row_is_kept_and_seldom_looked_at_until_something_is_asked_for_again() -> None:
    world = World()
    for key in range(20):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        reader, _rows = world.reader(cuts=[4, 9, 14])
        surveys: list[int] = []
        task = asyncio.create_task(reader.keep_reading())
        while not (world.over and len(world.snapshots.rows) == 1 and await reader.over()):
            await asyncio.sleep(0.5)
            if task.done():
                task.result()
        (kept,) = world.snapshots.rows.values()
        assert (kept.state, kept.rows, len(world.told)) == (RangeState.DONE, 20, 1)
        world.surveyed = lambda ranges: surveys.append(len(ranges))
        await asyncio.sleep(100)
        assert 2 <= len(surveys) <= 12
        assert set(surveys) == {1}
        await world.request(again=True)
        await asyncio.sleep(60)
        assert len(world.told) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(scenario())


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


def test_a_requested_snapshot_is_read_though_no_ranges_of_finished_ones_can_be_merged() -> None:
    world = World(merges_fail=True)
    for key in range(20):
        world.write(key, "a")

    async def scenario() -> None:
        for table in ("A", "B", "C"):
            read_in_parts(world, table, 3)
        await world.request()
        async with asyncio.timeout(600):
            await until_over(world, world.reader()[0])
        assert {"A", "B", "C"} <= set(world.merges), "each has its turn"

    run_in_virtual_time(scenario())
    assert world.mirrored() == world.versions.at(world.clock.now())


def test_ranges_of_one_table_are_merged_in_a_round() -> None:
    world = World()
    merges: list[int] = []
    world.surveyed = lambda _ranges: merges.append(len(world.merges))

    async def scenario() -> None:
        for number in range(4):
            read_in_parts(world, f"T{number}", 2)
        task = asyncio.create_task(world.reader()[0].keep_reading())
        await asyncio.sleep(100)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(scenario())
    assert merges[:5] == [0, 1, 2, 3, 4]
    assert len(world.snapshots.rows) == 4


def test_leases_are_renewed_though_surveys_take_longer_than_a_lease() -> None:
    world = World()
    for key in range(40):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        publisher = FakePublisher(world.topic, by_hand=True)
        store_clock = asyncio.get_running_loop()
        began, start = store_clock.time(), world.clock.time
        task = asyncio.create_task(world.reader(publisher=publisher)[0].keep_reading())
        await asyncio.sleep(5)
        world.survey_takes = timedelta(minutes=10)
        for _second in range(300):
            await asyncio.sleep(1)
            world.clock.time = Nanoseconds(start + int((store_clock.time() - began) * 1e9))
            (held,) = world.snapshots.rows.values()
            assert held.lease_until is not None
            assert held.lease_until > world.clock.time, "another reader may take it"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(scenario())


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
        refused = [MisconfiguredError("made-up", "PERMISSION_DENIED: grant spanner.databases.read")] * 2

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
    keys: ConfirmedKeys[KeyText] = ConfirmedKeys(None)
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
        publisher.error = MisconfiguredError("made-up", "the topic is gone")
        reader, _rows = world.reader(publisher=publisher)
        with pytest.raises(MisconfiguredError, match="the topic is gone"):
            await asyncio.wait_for(reader.keep_reading(), 600)

    run_in_virtual_time(scenario())
