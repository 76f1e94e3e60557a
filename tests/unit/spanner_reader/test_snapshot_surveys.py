"""How often all ranges that are left to read are surveyed: a part of the time that the survey takes itself."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import pytest

from services.spanner_reader.app.snapshot.snapshot_source import SpannerSnapshots
from services.spanner_reader.core.snapshot.snapshot import RangeState
from shared.reading.snapshots import SnapshotOptions
from tests.worlds.changing_table import World, reading

IDLE = SnapshotOptions().idle.total_seconds()


async def survey_times(world: World, reader: SpannerSnapshots, seconds: float) -> list[float]:
    """Let a reader read for a while; return when its surveys began."""
    async with reading(reader):
        await asyncio.sleep(seconds)
    return world.survey_begins


def gaps(begun: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(begun)]


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 1.0), (0.05, 1.0), (0.5, 5.0), (2.0, 20.0)])
async def test_a_survey_takes_a_tenth_of_the_time_at_most(seconds: float, least: float) -> None:
    world = await World.requested(survey_takes=timedelta(seconds=seconds))
    world.trusted = False  # nothing is saved, so the snapshot does not come to its end
    begun = await survey_times(world, world.reader()[0], 200)
    assert len(begun) >= 100 / least
    assert min(gaps(begun)[2:]) >= least - 1e-6


async def test_between_surveys_the_ranges_that_the_last_one_found_are_claimed() -> None:
    world = await World.requested(range(20), survey_takes=timedelta(seconds=2))
    async with reading(world.reader(cuts=range(1, 20))[0]):
        while not world.over:  # noqa: ASYNC110  what it waits for is a table
            await asyncio.sleep(0.5)
        over = asyncio.get_running_loop().time() - world.survey_begins[0]
    assert world.mirrored() == dict.fromkeys(range(20), "a")
    assert over < 4 * 20, "ranges do not wait for a survey each"


@pytest.mark.parametrize("why", ["left out", "paused"])
async def test_a_table_that_is_not_read_here_does_not_keep_the_short_interval(why: str) -> None:
    world = await World.requested(resting={"Planes"} if why == "paused" else set())
    begun = await survey_times(world, world.reader(included=lambda _table: why != "left out")[0], 20 * IDLE)
    assert min(gaps(begun)) >= IDLE
    assert len(begun) >= 19


async def test_a_table_that_is_resumed_is_read_within_the_long_interval() -> None:
    world = await World.requested(resting={"Planes"})
    async with reading(world.reader()[0]):
        await asyncio.sleep(35)
        assert not world.over
        world.resting.clear()
        await asyncio.sleep(2 * IDLE)
    assert world.over


async def test_after_a_survey_that_fails_the_wait_is_as_long_as_after_one_that_answers() -> None:
    world = await World.requested(survey_takes=timedelta(hours=1))
    begun = await survey_times(world, world.reader()[0], 1_000)
    assert len(begun) > 3
    assert min(gaps(begun)) >= 10 * SnapshotOptions().lease.total_seconds() / 2 - 1e-6
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.REQUESTED}
