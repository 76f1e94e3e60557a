"""Snapshots and the stream at once, whatever happens to readers, to time and to messages: the mirrors end up equal.

The readers are the real ones, with all of their core; the ports are in memory, the time is virtual.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.spanner_reader.snapshot_world import ALBUMS, KEYS, SINGERS, TABLES, SnapshotWorld

pytestmark = pytest.mark.usefixtures("quiet")

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
READING = (
    *("write",) * 3,
    *("moment",) * 3,
    *("wait",) * 5,
    *("kill soon", "start") * 4,
    *("minutes", "hours", "kill", "hand over", "hold up", "go on") * 2,
    "nobody reads",
)
ASKING = ("snapshot", "some keys", "cancel", "pause", "resume", "resume")
"""What heals what went wrong before it, too, so half of the histories go without."""


def some_steps(chance: Random) -> Sequence[str]:
    """Return a history."""
    steps = chance.choice((READING, (*READING, *ASKING)))
    begin = ("wait", "kill", "minutes", "start") * chance.randint(0, 6)  # which resumes what is half read
    return [*begin, *(chance.choice(steps) for _step in range(chance.randint(5, 50)))]


@settings(max_examples=examples(400))
@given(
    seed=st.integers(0, 1 << 32),
    retention=st.sampled_from((HOUR, WEEK)),
    late=st.sampled_from((False, False, True)),
    in_key_order=st.sampled_from((True, True, False)),
    breaks=st.sampled_from((0.0, 0.0, 0.05)),
    cuts=st.lists(st.sampled_from(KEYS), unique=True, max_size=2).map(sorted),
)
def test_whatever_happens_before_during_and_after_the_mirrors_end_up_equal(
    seed: int, retention: timedelta, late: bool, in_key_order: bool, breaks: float, cuts: list[int]
) -> None:
    chance = Random(seed)
    world = SnapshotWorld(chance, retention, late, in_key_order, breaks, {SINGERS: cuts})
    run_in_virtual_time(live(world, some_steps(chance)))


async def live(world: SnapshotWorld, steps: Sequence[str]) -> None:
    for table in TABLES:
        for key in world.chance.sample(KEYS, world.chance.randint(0, len(KEYS))):
            world.write(table, key, "a row of before", streamed=False)
    await world.request(TABLES, again=False)
    world.start()
    for step in steps:
        await happen(world, step)
        await world.bury()
    await world.wait_until_all_is_read()
    needing_another = world.needing_another()
    world.late = False
    if needing_another:
        await world.request(needing_another)
        await world.wait_until_all_is_read()
    for reader in list(world.readers):
        await world.stop(reader, killed=False)
    assert world.needing_another() == []
    mirror = world.mirror()
    assert {table: mirror.rows(table) for table in TABLES} == {table: world.source(table) for table in TABLES}


async def happen(world: SnapshotWorld, step: str) -> None:
    chance = world.chance
    match step:
        case "write":
            value = chance.choice((None, f"value {chance.randrange(1_000)}"))
            world.write(chance.choice(TABLES), chance.choice(KEYS), value)
        case "moment":
            await asyncio.sleep(chance.random())
        case "wait":
            await asyncio.sleep(chance.uniform(1, 8))
        case "minutes":
            await world.leap(timedelta(minutes=chance.uniform(1, 59)))
        case "hours":
            await world.leap(timedelta(hours=chance.uniform(1, 20)))
        case "nobody reads":
            for reader in list(world.readers):
                await world.stop(reader, killed=True)
            await world.leap(timedelta(hours=chance.uniform(10, 60)))
        case "start" if len(world.readers) < 3:
            world.start()
        case "kill" if world.readers:
            await world.stop(chance.choice(world.readers), killed=True)
        case "kill soon" if world.readers:
            life = chance.choice(world.readers).way.life
            life.killed_at = life.steps + chance.randint(1, 30)
        case "hand over" if world.readers:
            world.start()
            await world.stop(world.readers[0], killed=False)
        case "hold up" if world.readers:  # as a machine that stands still; what it had is taken over
            world.readers[0].way.hold_up()
            world.start()
        case "go on":
            for reader in world.readers:
                reader.way.let_go()
        case "snapshot":
            await world.request([chance.choice(TABLES)])
        case "some keys":
            after, until = sorted(chance.sample(KEYS, 2))
            await world.request_keys(chance.choice(TABLES), after, until)
        case "cancel":
            await world.cancel(chance.choice(TABLES))
        case "pause":
            world.resting.add(ALBUMS)
        case "resume":
            world.resting.clear()
        case _:  # nobody is there to whom it could happen
            pass
