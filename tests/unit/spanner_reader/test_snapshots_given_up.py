"""A snapshot that finds no table is given up, and it alone: not one that was asked for since."""

from services.spanner_reader.core.snapshot.snapshot import RangeState
from services.spanner_reader.ports import CatalogInspection
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.virtual_time import run_in_virtual_time
from tests.worlds.changing_table import PLANES, SECOND, World, until_over


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
