"""How often all ranges that are left to read are surveyed: a part of the time that the survey takes itself."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import pytest

from services.spanner_reader.app.snapshot.snapshot_source import SpannerSnapshots
from services.spanner_reader.core.snapshot.snapshot import RangeState, SnapshotRange, SnapshotSurvey
from shared.reading.snapshots import SnapshotOptions
from tests.fakes.virtual_time import run_in_virtual_time
from tests.worlds.changing_table import World

KEYS = 20
IDLE = SnapshotOptions().idle.total_seconds()


def slow_surveys(reader: SpannerSnapshots, seconds: float) -> list[float]:
    """Let each survey of a reader take so long; return when they begin, which grows."""
    begun: list[float] = []
    survey = reader._source.survey

    async def slow() -> SnapshotSurvey:
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(seconds)
        return await survey()

    reader._source.survey = slow  # type: ignore[method-assign]
    return begun


async def reading_for(reader: SpannerSnapshots, seconds: float) -> None:
    task = asyncio.create_task(reader.keep_reading())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def gaps(begun: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(begun)]


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 1.0), (0.05, 1.0), (0.5, 5.0), (2.0, 20.0)])
def test_a_survey_takes_a_tenth_of_the_time_at_most(seconds: float, least: float) -> None:
    world = World()
    world.write(1, "a")

    async def scenario() -> list[float]:
        await world.request()
        reader, _rows = world.reader()
        world.trusted = False  # nothing is saved, so the snapshot does not come to its end
        begun = slow_surveys(reader, seconds)
        await reading_for(reader, 200)
        return begun

    begun = run_in_virtual_time(scenario())
    assert len(begun) >= 100 / least
    assert min(gaps(begun)[2:]) >= least - 1e-6


def test_between_surveys_the_ranges_that_the_last_one_found_are_claimed() -> None:
    world = World()
    for key in range(KEYS):
        world.write(key, "a")

    async def scenario() -> float:
        await world.request()
        reader, _rows = world.reader(cuts=range(1, KEYS))
        begun = slow_surveys(reader, 2.0)
        task = asyncio.create_task(reader.keep_reading())
        while not world.over:  # noqa: ASYNC110  what it waits for is a table
            await asyncio.sleep(0.5)
        over = asyncio.get_running_loop().time() - begun[0]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return over

    over = run_in_virtual_time(scenario())
    assert world.mirrored() == dict.fromkeys(range(KEYS), "a")
    assert over < 4 * 20, "ranges do not wait for a survey each"


def test_the_leases_are_renewed_between_surveys() -> None:
    world = World()
    world.write(1, "a")
    saved: list[float] = []

    async def scenario() -> list[float]:
        await world.request()
        reader, rows = world.reader()
        save = reader._source.save

        async def seen(*given: object, **more: object) -> object:
            saved.append(asyncio.get_running_loop().time())
            return await save(*given, **more)  # type: ignore[arg-type]

        reader._source.save = seen  # type: ignore[method-assign,assignment]
        begun = slow_surveys(reader, 2.0)
        held = asyncio.Event()
        read = rows.read

        def reading(*given: object, **more: object) -> object:
            async def waits() -> object:
                await held.wait()
                async for batch in read(*given, **more):  # type: ignore[arg-type]
                    yield batch

            return waits()

        rows.read = reading  # type: ignore[method-assign,assignment]
        await reading_for(reader, 100)
        return begun

    begun = run_in_virtual_time(scenario())
    assert len(saved) > 4 * len(begun)
    assert max(gaps(saved)) <= 2.0 + 1.0 + 1e-6


@pytest.mark.parametrize("why", ["left out", "paused"])
def test_a_table_that_is_not_read_here_does_not_keep_the_short_interval(why: str) -> None:
    world = World(resting={"Planes"} if why == "paused" else set())
    world.write(1, "a")

    async def scenario() -> list[float]:
        await world.request()
        reader, _rows = world.reader(included=lambda _table: why != "left out")
        begun = slow_surveys(reader, 0.0)
        await reading_for(reader, 20 * IDLE)
        return begun

    begun = run_in_virtual_time(scenario())
    assert min(gaps(begun)) >= IDLE
    assert len(begun) >= 19


def test_a_table_that_is_resumed_is_read_within_the_long_interval() -> None:
    world = World(resting={"Planes"})
    world.write(1, "a")

    async def scenario() -> None:
        await world.request()
        reader, _rows = world.reader()
        task = asyncio.create_task(reader.keep_reading())
        await asyncio.sleep(35)
        assert not world.over
        world.resting.clear()
        await asyncio.sleep(2 * IDLE)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(scenario())
    assert world.over


def test_whoever_fails_to_survey_waits_as_long_as_after_one_that_answers() -> None:
    world = World()
    world.write(1, "a")

    async def scenario() -> list[float]:
        await world.request()
        reader, _rows = world.reader()
        begun = slow_surveys(reader, timedelta(hours=1).total_seconds())
        await reading_for(reader, 1_000)
        return begun

    begun = run_in_virtual_time(scenario())
    assert len(begun) > 3
    assert min(gaps(begun)) >= 10 * SnapshotOptions().lease.total_seconds() / 2 - 1e-6
    assert {one.state for one in _ranges(world)} == {RangeState.REQUESTED}


def _ranges(world: World) -> Sequence[SnapshotRange]:
    return list(world.snapshots.rows.values())
