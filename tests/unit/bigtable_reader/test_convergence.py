"""Random histories of a table in two clusters, whatever happens to its partitions and its readers: all is equal.

The images are the rows, and the change log, played back by its sequence, is every cell.
The loop is the real one, and so is all of its core; the ports are in memory, the time is virtual.
"""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.bigtable_reader.world import World, happen

pytestmark = pytest.mark.usefixtures("quiet")

STEPS = (
    *("write",) * 8,
    *("elsewhere",) * 4,
    *("replicate",) * 4,
    *("moment",) * 4,
    *("wait",) * 4,
    *("hand over",) * 3,
    *("pause",) * 2,
    *("pause the stream", "resume the stream"),
    *("garbage", "split", "merge", "kill", "long wait", "go on", "start"),
)


def some_steps(chance: Random) -> Sequence[str]:
    """Return a history."""
    return [chance.choice(STEPS) for _step in range(chance.randint(20, 70))]


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 32), breaks=st.sampled_from((0.0, 0.0, 0.05)))
def test_mirror_and_change_log_are_equal_in_every_history(seed: int, breaks: float) -> None:
    chance = Random(seed)
    run_in_virtual_time(live(some_steps(chance), chance, breaks))


async def live(steps: Sequence[str], chance: Random, breaks: float) -> World:
    world = World(chance, breaks=breaks, with_log=True)
    await world.begin()
    world.start()
    await asyncio.sleep(chance.uniform(0, 20))
    for step in steps:
        await happen(world, step)
    await world.calm_down()
    await world.wait_until_all_is_read()
    await world.end()
    world.check()
    return world
