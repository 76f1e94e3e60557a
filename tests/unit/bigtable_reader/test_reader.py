"""The loop around the partitions: shared fairly, stalled without delay, stopped quickly, ended when nothing holds."""

import asyncio
from collections import Counter
from datetime import timedelta
from random import Random

import pytest
from structlog.testing import capture_logs

from services.bigtable_reader.core.stream.records import Microseconds, SetCell
from services.bigtable_reader.settings import Settings
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import read_settings
from tests.fakes.bigtable_table import Bigtable, VirtualClock
from tests.unit.bigtable_reader.world import World

CELL = SetCell("f", b"q", Microseconds(1_000), b"v")
NEEDED = {
    "GOOGLE_CLOUD_PROJECT": "p",
    "BIGTABLE_INSTANCE": "i",
    "BIGTABLE_TABLE": "weather",
    "TOPIC": "changes",
    "DEAD_LETTER_TOPIC": "dead",
}


async def a_world(*cuts: bytes) -> World:
    world = World(Random(0), table=Bigtable(*cuts))
    await world.begin()
    return world


def owners(world: World) -> Counter[str]:
    """Return how many partitions each owner holds."""
    return Counter(row.owner for row in world.partitions.rows.values() if row.state == "RUNNING")


async def test_readers_that_follow_on_each_other_in_order_do_not_drive_versions_away_from_the_time() -> None:
    world = await a_world(b"b")
    for _restart in range(30):
        reader = world.start_steady()
        await asyncio.sleep(12)
        world.table.write(b"a", CELL)
        await world.stop(reader)
    now = VirtualClock().now()
    assert max(row.reserved_up_to for row in world.partitions.rows.values()) <= now


async def test_the_claim_of_each_partition_is_logged_for_debugging_only() -> None:
    world = await a_world(b"b")
    with capture_logs() as logs:
        world.start_steady()
        await asyncio.sleep(12)
        await world.end()
    assert [one["log_level"] for one in logs if one["event"] == "partition_claimed"] == ["debug"] * 2


async def test_streams_are_cancelled_only_by_a_handover_and_a_stop_which_releases_what_is_held() -> None:
    """The audit log has an error for each; heartbeats, renewals, silences, splits and merges cancel none."""
    world = await a_world(b"b", b"c", b"d")
    first = world.start_steady()
    for number in range(60):
        world.table.write(b"%c%d" % (97 + number % 5, number), CELL)
        if number % 6 == 2:
            world.table.split(b"a%02d" % number)
        if number % 6 == 5:
            world.table.merge(number)
        await asyncio.sleep(60)
    await world.wait_until_all_is_read()
    assert (world.table.splits, world.table.merges) == (10, 10)
    assert world.table.cancelled_streams == 0
    assert owners(world) == {"reader 1": 4}

    world.start_steady()
    await asyncio.sleep(600)
    assert owners(world) == {"reader 1": 2, "reader 2": 2}
    assert world.table.cancelled_streams == 2

    assert await world.stop(first) < 10
    await asyncio.sleep(5)  # released: no reader waits for the end of a lease
    assert owners(world) == {"reader 2": 4}
    await world.end()
    assert owners(world) == {}
    assert world.table.cancelled_streams == 2 + 2 + 4


async def test_a_lease_that_was_seen_to_be_over_stays_over_though_its_renewal_was_on_its_way() -> None:
    world = await a_world()
    living = world.start_steady()
    await asyncio.sleep(10)
    (owned,) = living.reader.owned
    owned.trusted_until = asyncio.get_running_loop().time()
    assert not owned.ours  # as after a pause: seen before any timer, and what was read for it is dropped
    owned.trusted_until += 1_000
    assert not owned.ours
    world.table.write(b"a", CELL)
    await asyncio.sleep(10)
    assert owned.over
    assert owned.task is not None
    assert owned.task.done()
    await asyncio.sleep(60)
    assert [change.key for change in world.topic.changes] == ['{"row_key":"a"}']
    await world.end()


@pytest.mark.parametrize("silent", ["all", "the partition table", "all but the partition table"])
@pytest.mark.parametrize("waits_for", [0.0, 30.0])
async def test_when_nothing_answers_any_more_a_stop_is_over_in_less_than_ten_seconds(
    silent: str, waits_for: float
) -> None:
    world = await a_world(b"b", b"c")
    living = world.start_steady()
    await asyncio.sleep(10)
    if silent != "all but the partition table":
        living.to_store.hold_up()
    if silent != "the partition table":
        living.way.hold_up()
    for row_key in (b"a", b"b", b"c"):
        world.table.write(row_key, CELL)
    await asyncio.sleep(waits_for)
    assert await world.stop(living) < 10


async def test_a_stop_waits_a_moment_for_the_dead_letters_that_are_under_way_so_that_none_is_made_twice() -> None:
    world = await a_world()
    living = world.start_steady()
    await asyncio.sleep(10)
    world.dead_letters.open.clear()
    world.table.write(b"\xff", CELL)
    await asyncio.sleep(10)
    asyncio.get_running_loop().call_later(1, world.dead_letters.open.set)
    await world.stop(living)
    assert len(world.dead_letters.kept) == 1
    world.start_steady()
    await asyncio.sleep(60)
    await world.end()
    assert len(world.dead_letters.kept) == 1


async def test_a_low_watermark_that_stands_still_is_shown_and_delays_no_change() -> None:
    world = await a_world()
    world.start(slowest=0.02)
    await asyncio.sleep(10)
    world.table.write(b"late", CELL, cluster="c2")  # on its way for a long time
    await asyncio.sleep(600)
    assert world.metrics.stalled_for > timedelta(minutes=5)
    world.table.write(b"a", CELL)
    await asyncio.sleep(5)
    assert [change.key for change in world.topic.changes] == ['{"row_key":"a"}']
    world.table.replicate()
    await asyncio.sleep(20)
    assert world.metrics.stalled_for < timedelta(seconds=20)
    assert len(world.topic.changes) == 2
    await world.end()


async def test_a_partition_table_without_stream_ranges_is_refused_with_what_to_do() -> None:
    reader = World(Random(0)).start()
    with pytest.raises(MisconfiguredError, match="CHANGE_STREAM_NAME"):
        await reader.task


def test_settings_name_every_mistake_and_the_stream_is_called_as_the_table_unless_it_has_a_name() -> None:
    settings = read_settings(Settings, NEEDED)
    assert settings.stream_name == "weather"
    assert settings.source == "//bigtable.googleapis.com/projects/p/instances/i/changeStreams/weather"
    assert read_settings(Settings, NEEDED | {"CHANGE_STREAM_NAME": "blue"}).stream_name == "blue"
    mistakes = {
        "CHANGE_STREAM_NAME": "a#b",
        "RESUME": "maybe",
        "PARTITION_TABLE": "not a table",
        "HEARTBEAT_INTERVAL": "1ms",
        "LEASE_DURATION": "11m",
    }
    with pytest.raises(MisconfiguredError) as refused:
        read_settings(Settings, NEEDED | mistakes)
    assert all(name in str(refused.value) for name in mistakes)
    with pytest.raises(MisconfiguredError, match="PARTITION_TABLE is the watched table"):
        read_settings(Settings, NEEDED | {"PARTITION_TABLE": "weather"})
