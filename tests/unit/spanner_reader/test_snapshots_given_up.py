"""A snapshot that finds no table is given up, and it alone: not one that was asked for since."""

import asyncio

from services.spanner_reader.core.schema.shapes import SpannerResyncCause, SpannerResyncKind, SpannerResyncRequest
from services.spanner_reader.core.snapshot.snapshot import KeyText, RangeState
from services.spanner_reader.ports import CatalogInspection
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.snapshots import FakeSnapshotStore
from tests.fakes.virtual_time import run_in_virtual_time
from tests.worlds.changing_table import LEASE, PLANES, SECOND, START, World, until_over


def test_a_reader_that_finds_no_table_gives_up_none_that_was_asked_for_meanwhile() -> None:
    world = World()
    world.write(1, "a")
    world.clock.step(SECOND)
    world.catalog.tables = []  # at that time the stream does not watch it
    look_back = world.catalog.inspect_at
    asked: list[Nanoseconds] = []

    async def then_it_is_watched_and_asked_for(at: Nanoseconds) -> CatalogInspection | None:
        found = await look_back(at)
        world.catalog.tables = [PLANES]
        world.clock.step(SECOND)
        if not asked:
            asked.append(at)
            await world.request(again=True)
        return found

    async def scenario() -> None:
        await world.request()
        world.catalog.inspect_at = then_it_is_watched_and_asked_for  # type: ignore[method-assign]
        await until_over(world, world.reader()[0])

    run_in_virtual_time(scenario())
    assert [(one.run, one.state) for one in world.snapshots.rows.values()] == [(2, RangeState.DONE)]
    assert world.mirrored() == {1: "a"}
    assert len(world.told) == 1


def test_a_table_that_was_made_again_with_another_key_is_given_up_and_its_resync_takes_another_snapshot() -> None:
    """Spanner refuses the old places for ever, and while a snapshot is left to read no other is requested."""
    world = World()
    world.write(1, "a")
    world.clock.step(SECOND)

    async def scenario() -> None:
        await world.request()
        store = FakeSnapshotStore(world.snapshots, "another reader", LEASE)
        (claimed,) = await store.claim([("Planes", 0)])
        assert await store.cut(claimed, [KeyText('["DC-10"]')]) is not None  # its key was a STRING then
        world.clock.step(2 * LEASE)
        found = SpannerResyncCause("Planes", SpannerResyncKind.TABLE_AGAIN, START, world.clock.now())
        world.shapes.requests = {"Planes": SpannerResyncRequest("Planes", (found,))}
        world.clock.step(SECOND)
        reader, _rows = world.reader(automatic=True)
        task = asyncio.create_task(reader.keep_reading())
        async with asyncio.timeout(600):
            while not world.told:  # noqa: ASYNC110  what it waits for is a topic
                await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(scenario())
    assert world.shapes.requests == {}
    assert [(one.run, one.state) for one in world.snapshots.rows.values()] == [(2, RangeState.DONE)]
    assert world.mirrored() == {1: "a"}
