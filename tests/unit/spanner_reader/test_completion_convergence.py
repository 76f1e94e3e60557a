"""Updates that hold only what changed, whatever happens to rows, columns, readers and versions: what is published is
true, or says that it is not, and the mirror ends up equal.

The readers are the real ones, with all of their core; the ports are in memory, the time is virtual.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.contracts.tables_file import Mode
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.spanner_reader.capturing import (
    CAPTURE_TYPES,
    CapturedDatabase,
    CapturingWorld,
    Operation,
    is_reconstructed,
)

pytestmark = pytest.mark.usefixtures("quiet")

KEYS = range(5)
STEPS = (*("commit",) * 12, *("moment",) * 4, *("wait",) * 3, "kill", "start", "stop", "nobody reads", "alter")


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    capture=st.sampled_from(CAPTURE_TYPES),
    mode=st.sampled_from(("mirror", "both")),
    retention=st.sampled_from((timedelta(hours=1), timedelta(seconds=20), timedelta(seconds=1))),
    breaks=st.sampled_from((0.0, 0.05)),
    altering=st.booleans(),
)
def test_what_is_published_is_true_and_the_mirror_ends_up_equal(
    seed: int, capture: str, mode: Mode, retention: timedelta, breaks: float, altering: bool
) -> None:
    chance = Random(seed)
    world = CapturingWorld(chance, CapturedDatabase(capture, retention), mode, breaks)
    steps = [chance.choice(STEPS) for _step in range(chance.randint(5, 60))]
    run_in_virtual_time(live(world, [one for one in steps if altering or one != "alter"]))


async def live(world: CapturingWorld, steps: Sequence[str]) -> None:
    world.start()
    for step in steps:
        await happen(world, step)
    await world.until_all_is_read()
    world.check_versions()
    assert world.mirror() == {key: dict(row) for key, row in sorted(world.database.now.rows.items())}
    if world.mode == "both":
        published = {(change.key, change.sequence) for _header, change in world.published}
        assert published == {(f'{{"Id":"{key}"}}', sequence) for key, sequence in world.database.truth}
    if world.database.retention == timedelta(hours=1):
        assert not any(is_reconstructed(change) for _header, change in world.published)


async def happen(world: CapturingWorld, step: str) -> None:
    chance = world.chance
    match step:
        case "commit":
            columns = world.database.now.columns or ()
            operations = [an_operation(chance, columns) for _one in range(chance.choice((1, 1, 2, 4)))]
            world.database.commit(*operations, chance=chance)
        case "moment":
            await asyncio.sleep(chance.uniform(0, 0.3))
        case "wait":
            await asyncio.sleep(chance.uniform(1, 15))
        case "kill" | "stop" if world.readers:
            await world.stop(killed=step == "kill")
        case "start" if len(world.readers) < 2:
            world.start()
        case "nobody reads":
            while world.readers:
                await world.stop(killed=True)
        case "alter":
            # Never one that was dropped: BigQuery has its old values, so its table needs re-sync, as ever.
            names = [name for name, _place in world.database.now.columns or ()]
            more = [f"c{len(world.database.past)}"] if chance.random() < 0.7 else []
            world.database.alter(*chance.sample(names, chance.randint(max(1, len(names) - 1), len(names))), *more)
            world.database.capture = chance.choice(CAPTURE_TYPES)
        case _:
            pass


def an_operation(chance: Random, columns: Sequence[tuple[str, int]]) -> Operation:
    names = [name for name, _place in columns]
    kind = chance.choice(("insert", "insert", "update", "update", "update", "update", "replace", "delete"))
    chosen = chance.sample(names, chance.randint(1, min(3, len(names))))
    return kind, chance.choice(KEYS), {name: chance.choice((None, f"{chance.randrange(1_000)}")) for name in chosen}
