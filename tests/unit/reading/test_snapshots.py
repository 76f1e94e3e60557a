"""What any reader of snapshots does: it shares key ranges, saves what is confirmed, and loses no row."""

import asyncio
import contextlib
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.snapshots import SnapshotOptions
from tests.fakes.life import CrashError, Life
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.reading.toy_snapshots import ROW_BYTES, ToySnapshots
from tests.worlds.snapshot_reading import reading

LEASE = SnapshotOptions().lease.total_seconds()
IDLE = SnapshotOptions().idle.total_seconds()
REFUSED = MisconfiguredError("made-up", "grant the right to read")


def an_unconfirmed_world(ranges: int = 1) -> ToySnapshots:
    world = ToySnapshots(ranges)
    world.topic.confirms = False
    return world


# Progress and leases


async def test_the_next_reader_continues_behind_the_last_confirmed_key_and_counts_on() -> None:
    world = an_unconfirmed_world()
    saved, found = world.ranges["0"], []
    async with reading(world.reader("ends without releasing")):
        for confirmed in ((), ("3", "1"), ("0",)):
            world.topic.confirm(*confirmed)
            await asyncio.sleep(2)
            found.append((saved.last, saved.rows))
    assert found == [(None, 0), (None, 0), (1, 2)]
    world.topic.confirms = True
    async with reading(world.reader("next")):
        await asyncio.sleep(LEASE + 5)
    assert world.topic.published == ["0", "1", "2", "3", "2", "3"]
    assert (saved.rows, saved.done) == (4, True)


def test_no_row_is_lost_wherever_a_reader_is_killed() -> None:
    async def scenario(killed_at: int) -> bool:
        world, life = ToySnapshots(2), Life(killed_at)
        with contextlib.suppress(CrashError):
            async with reading(world.reader("killed", life)):
                await asyncio.sleep(5)
        was_killed, life.over = life.over, True
        async with reading(world.reader("next")):
            await asyncio.sleep(LEASE + 20)
        assert {int(key) for key in world.topic.published} == set(range(8)), killed_at
        assert [(one.rows, one.done) for one in world.ranges.values()] == [(4, True)] * 2, killed_at
        return was_killed

    killed_at = 1
    while run_in_virtual_time(scenario(killed_at)):
        killed_at += 1
    assert killed_at > 10


async def test_readers_share_the_ranges_and_a_stop_releases_them_with_their_progress() -> None:
    world = an_unconfirmed_world(ranges=4)
    readers = [world.reader(owner) for owner in ("a", "b")]
    async with reading(*readers):
        await asyncio.sleep(2)
        assert world.owners() == {"a": 2, "b": 2}
        world.topic.confirm("0")
    for reader in readers:
        await reader.release()
    assert world.owners() == {}
    assert world.ranges["0"].rows == 1


async def test_leases_are_renewed_though_surveys_or_announcements_take_longer_than_a_lease() -> None:
    world = an_unconfirmed_world()
    world.announcing_takes = 10 * LEASE
    async with reading(world.reader()):
        await asyncio.sleep(5)
        world.survey_takes = 10 * LEASE
        for _second in range(300):
            await asyncio.sleep(1)
            assert world.owners() == {"a": 1}


async def test_a_range_that_another_reader_has_taken_is_read_no_further() -> None:
    world = ToySnapshots(unconfirmed_bytes=ROW_BYTES)
    world.topic.confirms = False
    with capture_logs() as logs:
        async with reading(world.reader()):
            await asyncio.sleep(2)
            world.ranges["0"].owner = "another"
            await asyncio.sleep(2)
            world.topic.confirm("0")
            await asyncio.sleep(20)
    assert world.topic.published == ["0"]
    assert [line["event"] for line in logs] == ["snapshot_range_lost"]


@pytest.mark.parametrize("releases", [True, False])
async def test_a_paused_range_is_released_and_continued_once_it_is_resumed_at_the_latest_after_its_lease(
    releases: bool,
) -> None:
    world = an_unconfirmed_world()
    async with reading(world.reader()):
        await asyncio.sleep(2)
        world.topic.confirm("0")
        await asyncio.sleep(2)
        world.release_error = None if releases else TransientError("UNAVAILABLE")
        world.paused.add("0")
        await asyncio.sleep(5)
        assert (world.owners() == {}) is releases
        world.topic.confirms = True
        world.paused.clear()
        await asyncio.sleep(IDLE if releases else LEASE + IDLE)
    assert world.topic.published == ["0", "1", "2", "3", "1", "2", "3"]
    assert world.ranges["0"].done


@pytest.mark.parametrize("release_error", [None, TransientError("UNAVAILABLE")])
async def test_while_nothing_can_be_saved_a_paused_range_is_read_no_further(release_error: Exception | None) -> None:
    world = ToySnapshots(rows=100, rows_per_second=1)
    async with reading(world.reader()):
        await asyncio.sleep(2)
        world.save_error, world.release_error = TransientError("UNAVAILABLE"), release_error
        world.paused.add("0")
        await asyncio.sleep(2)
        read = len(world.topic.published)
        await asyncio.sleep(10)
        assert len(world.topic.published) == read


async def test_a_range_that_was_read_before_its_pause_is_saved_as_done() -> None:
    world = ToySnapshots()
    world.save_error = TransientError("UNAVAILABLE")
    with capture_logs() as logs:
        async with reading(world.reader()):
            await asyncio.sleep(2)
            world.paused.add("0")
            await asyncio.sleep(2)
            world.save_error = None
            await asyncio.sleep(2)
    assert world.ranges["0"].done
    assert "snapshot_range_read" in [line["event"] for line in logs]


async def test_while_the_topic_may_lose_messages_nothing_is_saved_and_no_end_announced() -> None:
    world = ToySnapshots()
    world.is_durable = False
    async with reading(world.reader()) as (task,):
        await asyncio.sleep(LEASE + 5)
        assert (world.ranges["0"].rows, world.owners(), task.done()) == (0, {}, False)
        world.ranges["0"].done = True
        await asyncio.sleep(20)
        assert not world.announced
        world.is_durable = True
        await asyncio.sleep(20)
        assert world.announced


async def test_ranges_that_only_wait_for_their_confirmation_hold_up_no_other_until_they_are_very_many() -> None:
    world = ToySnapshots(ranges=150, rows=1, unconfirmed_bytes=1_000_000)
    world.topic.confirms = False
    async with reading(world.reader()):
        await asyncio.sleep(200)
        assert len(world.topic.published) == sum(world.owners().values()) == 100
        assert not any(one.done for one in world.ranges.values())
        world.topic.confirms = True
        world.topic.confirm(*list(world.topic.waiting))
        await asyncio.sleep(60)
    assert sorted(world.topic.published, key=int) == [str(key) for key in range(150)], "each once"
    assert all(one.done for one in world.ranges.values())


async def test_ranges_that_are_read_but_cannot_be_saved_as_done_are_no_more_than_are_read_at_once() -> None:
    world = ToySnapshots(ranges=6)
    world.is_durable = False
    async with reading(world.reader()):
        await asyncio.sleep(LEASE / 2)
    assert len(world.claims) == world.options.ranges


# Publishing


async def test_no_more_bytes_wait_for_their_confirmation_than_all_ranges_may_have() -> None:
    world = ToySnapshots(ranges=2, rows=10, unconfirmed_bytes=3 * ROW_BYTES)
    world.topic.confirms = False
    async with reading(world.reader()):
        while not all(one.done for one in world.ranges.values()):
            await asyncio.sleep(1)
            assert len(world.topic.waiting) <= 4, "each range checks before it publishes one more"
            world.topic.confirm(*world.topic.waiting)
    assert len(world.topic.published) == 20


async def test_rows_pass_at_the_rate_that_is_set_and_no_page_has_more_than_those_of_a_second() -> None:
    world = ToySnapshots(ranges=2, rows=8, rows_per_second=2, page_rows=5)
    async with reading(world.reader()):
        for second in range(7):
            assert len(world.topic.published) <= 2 * (second + 1)
            await asyncio.sleep(0.99)
        assert len(world.topic.published) >= 12
        assert len(world.topic.headers) == len(world.topic.published) / 2


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_publisher_that_has_failed_ends_the_reader(when: str) -> None:
    world = an_unconfirmed_world()
    world.topic.error = REFUSED if when == "at once" else None
    task = asyncio.create_task(world.reader().keep_reading())
    await asyncio.sleep(5)
    for future in world.topic.waiting.values():
        future.set_exception(REFUSED)
    with pytest.raises(MisconfiguredError, match="grant the right"):
        await task


# Errors


@pytest.mark.parametrize(
    ("error", "seconds", "stands_still"), [(TransientError("UNAVAILABLE"), 10, 0), (REFUSED, 130, 2)]
)
async def test_a_reading_that_fails_goes_on_behind_the_last_row_that_was_read(
    error: Exception, seconds: int, stands_still: int
) -> None:
    world = ToySnapshots()
    world.read_errors = [error, error]
    with capture_logs() as logs:
        async with reading(world.reader()):
            await asyncio.sleep(seconds)
    assert [line["event"] for line in logs].count("snapshot_stalled") == stands_still
    assert world.ranges["0"].done
    assert world.topic.published == ["0", "1", "2", "3"]


async def test_more_ranges_that_do_not_get_on_than_are_read_at_once_hold_up_no_other_and_are_tried_until_they_do() -> (
    None
):
    world = ToySnapshots(ranges=6)
    world.failing = {"0", "1", "2"}
    async with reading(world.reader()):
        with capture_logs() as logs:
            await asyncio.sleep(600)
        assert {place for place, one in world.ranges.items() if not one.done} == world.failing
        assert {line["range"] for line in logs if line["event"] == "snapshot_range_released"} == world.failing
        world.failing = set()
        await asyncio.sleep(600)
        assert all(one.done for one in world.ranges.values())
    assert sorted(world.topic.published, key=int) == [str(key) for key in range(24)]


async def test_a_reader_that_can_read_nothing_has_no_more_ranges_than_it_reads_at_once_and_claims_them_seldom() -> None:
    world = ToySnapshots(ranges=6)
    world.failing = set(world.ranges)
    async with reading(world.reader()):
        for _minute in range(60):
            await asyncio.sleep(60)
            assert sum(world.owners().values()) <= world.options.ranges
    assert set(world.claims) == world.failing
    assert len(world.claims) < 60 * 60 / 5  # no more than saves


async def test_what_cannot_be_saved_or_announced_just_now_is_tried_again() -> None:
    world = ToySnapshots()
    world.save_error = TransientError("UNAVAILABLE")
    world.announce_errors = [TransientError("UNAVAILABLE")]
    reader = world.reader()
    with capture_logs() as logs:
        async with reading(reader):
            await asyncio.sleep(10)
            assert not await reader.over()
            world.save_error = None
            await asyncio.sleep(10)
            assert await reader.over()
    assert {"snapshots_not_saved", "snapshot_ends_not_announced"} <= {line["event"] for line in logs}


async def test_an_unknown_error_of_an_announcement_ends_the_reader() -> None:
    world = ToySnapshots()
    world.announce_errors = [RuntimeError("a bug")]
    with pytest.raises(RuntimeError, match="a bug"):
        async with reading(world.reader()):
            await asyncio.sleep(5)


# Surveys


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 1.0), (0.05, 1.0), (0.5, 5.0), (2.0, 20.0), (3_600.0, 150.0)])
async def test_a_survey_takes_a_tenth_of_the_time_at_most_also_one_that_is_not_answered(
    seconds: float, least: float
) -> None:
    world = an_unconfirmed_world()
    world.survey_takes = seconds
    async with reading(world.reader()):
        await asyncio.sleep(100 * least)
    gaps = [later - earlier for earlier, later in pairwise(world.surveys)]
    assert len(gaps) >= 50
    assert min(gaps[2:]) >= least - 1e-6


async def test_surveys_are_seldom_while_nothing_is_to_be_read() -> None:
    world = ToySnapshots()
    world.paused.add("0")
    async with reading(world.reader()):
        await asyncio.sleep(20 * IDLE)
        assert 19 <= len(world.surveys) <= 21
        world.paused.clear()
        await asyncio.sleep(2 * IDLE)
    assert world.ranges["0"].done


async def test_between_surveys_ranges_are_claimed() -> None:
    world = ToySnapshots(ranges=20)
    world.survey_takes = 2.0
    async with reading(world.reader()):
        await asyncio.sleep(60)
    assert all(one.done for one in world.ranges.values()), "ranges do not wait for a survey each"
