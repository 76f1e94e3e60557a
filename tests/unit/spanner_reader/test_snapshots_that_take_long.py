"""A range that takes longer than its time can be read: it ends all the same, and nobody is alarmed."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from services.spanner_reader.core.snapshot.snapshot import RangeState
from services.spanner_reader.ports import NotReadableError
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.virtual_time import run_in_virtual_time
from tests.worlds.changing_table import World, until_over

KEYS = 40


@pytest.mark.parametrize("boost", [False, True])
def test_a_range_that_takes_hours_ends_and_its_progress_is_no_standstill(boost: bool) -> None:
    world = World()
    for key in range(KEYS):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        reader, rows = world.reader(meanwhile=lambda: world.clock.step(timedelta(minutes=13)))
        rows.in_key_order = not boost
        await asyncio.wait_for(until_over(world, reader), 900)

    with capture_logs() as logs:
        run_in_virtual_time(scenario())
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.DONE}
    assert world.mirrored() == dict.fromkeys(range(KEYS), "a")
    events = [line["event"] for line in logs]
    assert events.count("snapshot_goes_on_at_a_new_time") > 1
    assert events.count("snapshot_stands_still") == 0
    assert events.count("snapshot_range_read_without_data_boost") == int(boost)


def test_whoever_takes_over_what_was_read_in_key_order_goes_on_behind_it() -> None:
    world = World()
    for key in range(KEYS):
        world.write(key, "a")

    async def scenario() -> None:
        await world.request()
        reader, rows = world.reader("first", meanwhile=lambda: world.clock.step(timedelta(minutes=13)))
        rows.in_key_order = False
        task = asyncio.create_task(reader.keep_reading())
        while not any(one.last for one in world.snapshots.rows.values()):  # noqa: ASYNC110  what it waits for is a table
            await asyncio.sleep(0.1)
        await reader.let_go()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (saved,) = world.snapshots.rows.values()
        second, rows = world.reader("second")
        rows.in_key_order = False
        await until_over(world, second)
        assert rows.read_from == [saved.last]

    run_in_virtual_time(scenario())
    assert world.mirrored() == dict.fromkeys(range(KEYS), "a")


def test_a_time_that_was_too_old_before_any_row_came_is_no_reason_to_read_without_data_boost() -> None:
    world = World()
    world.write(1, "a")

    async def scenario() -> None:
        await world.request()
        world.clock.step(timedelta(hours=2))
        reader, rows = world.reader()
        rows.in_key_order = False
        await until_over(world, reader)

    with capture_logs() as logs:
        run_in_virtual_time(scenario())
    assert world.mirrored() == {1: "a"}
    events = [line["event"] for line in logs]
    assert events.count("snapshot_goes_on_at_a_new_time") == 1
    assert events.count("snapshot_range_read_without_data_boost") == 0


def test_what_cannot_be_read_at_a_new_time_either_is_told() -> None:
    world = World()
    world.write(1, "a")
    refused = [NotReadableError("made-up", "not then")] * 3

    def refuse(at: Nanoseconds) -> None:
        if refused:
            raise refused.pop()

    async def scenario() -> None:
        await world.request()
        reader, rows = world.reader()
        rows.check = refuse  # type: ignore[method-assign]
        await until_over(world, reader)

    with capture_logs() as logs:
        run_in_virtual_time(scenario())
    assert world.mirrored() == {1: "a"}
    assert [line["event"] for line in logs].count("snapshot_stands_still") == 2
