"""Kill the reader at each effect in turn, through a split and a merge: another goes on, and the mirror is equal."""

import asyncio
import contextlib
from datetime import timedelta
from random import Random

import pytest

from services.bigtable_reader.app.stream.owned_partition import BigtableReaderOptions
from services.bigtable_reader.core.stream.records import Microseconds, SetCell
from tests.fakes.bigtable_table import Bigtable
from tests.fakes.life import CrashError, Life
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.bigtable_reader.world import KEYS, Trusting, World

pytestmark = pytest.mark.usefixtures("quiet")


async def live_through(killed_at: int | None, seed: int = 0) -> tuple[World, int]:
    """Write, split, write, merge; return the steps that the first reader took until all was read."""
    world = World(Random(seed), table=Bigtable(b"c"))
    await world.begin()
    life = Life(killed_at)
    first = world.start(life, slowest=0.5)
    await asyncio.sleep(5)
    for round_, change in enumerate((None, b"b", None, 0)):
        for row_key in KEYS:  # rows of this round's own: what is lost of them, nothing brings again
            world.table.write(row_key + b"%d" % round_, SetCell("f", b"q", Microseconds(1_000), b"v"))
        await asyncio.sleep(1)  # they are read, and being published, when the partitions change
        if isinstance(change, bytes):
            world.table.split(change)
        elif change is not None:
            world.table.merge(change)
        await asyncio.sleep(7)
    steps = life.steps
    if life.over:
        world.readers.remove(first)
        with contextlib.suppress(CrashError):
            await first.task
        world.start()
    await world.wait_until_all_is_read()
    with contextlib.suppress(CrashError):  # killed as it stopped
        await world.end()
    world.check()
    return world, steps


@pytest.mark.parametrize("seed", [0])
def test_killed_at_each_step_in_turn_nothing_is_lost_and_nothing_goes_back(seed: int) -> None:
    world, steps = run_in_virtual_time(live_through(None, seed))
    assert world.table.splits == world.table.merges == 1
    assert world.metrics.value("partitions_split_total") >= 1
    assert world.metrics.value("partitions_merged_total") >= 1
    assert steps > 100
    for killed_at in range(1, steps + 1):
        run_in_virtual_time(live_through(killed_at, seed))


async def test_an_owner_that_does_not_know_that_it_is_one_no_more_publishes_only_what_loses() -> None:
    world = World(Random(1))
    await world.begin()
    zombie = world.start(slowest=0.02, wrong_by=timedelta(minutes=5), kind=Trusting)
    await asyncio.sleep(10)
    world.table.write(b"a", SetCell("f", b"q", Microseconds(1_000), b"1"))
    await asyncio.sleep(2)
    zombie.to_store.hold_up()  # it reads and publishes on, and hears no more of who owns what
    world.start(slowest=0.02, wrong_by=timedelta(minutes=-5), kind=BigtableReaderOptions)
    await asyncio.sleep(60)
    published = len(world.topic.changes)
    world.table.write(b"a", SetCell("f", b"q", Microseconds(1_000), b"2"))
    await asyncio.sleep(2)
    assert len(world.topic.changes) == published + 2  # by both, each under versions of its own
    await world.kill(zombie)
    world.table.write(b"a", SetCell("f", b"q", Microseconds(1_000), b"3"))  # of which the zombie knows nothing
    await world.wait_until_all_is_read()
    await world.end()
    world.check()
