"""Random histories of a captured table and of its readers: a step is a commit, or something that happens to them."""

import asyncio
from collections.abc import Collection, Sequence
from random import Random

from tests.unit.spanner_reader.capturing import CAPTURE_TYPES, LEASE, CapturingWorld, Operation

KEYS = range(5)
STEPS = (
    *("commit",) * 15, *("moment",) * 4, *("wait",) * 3, *("start",) * 2, *("reshape",) * 2, "pause", "pause between",
    *("nobody reads",) * 2, "kill", "stop", "leases end", "alter", "unwatch",
)  # fmt: skip
PAUSES = ("pause", "pause all", "snapshot")
KINDS = {"altering": ("alter", "unwatch"), "pausing": ("pause", "pause between", *PAUSES), "reshaping": ("reshape",)}
SLOWEST_POLL = 5.0


async def play(world: CapturingWorld, kinds: Collection[str]) -> None:
    """Let a history of some `KINDS` happen, and all of it be read."""
    chance = world.chance
    likely = (*STEPS, *PAUSES * 2) if "pausing" in kinds else STEPS
    steps = [chance.choice(likely) for _step in range(chance.randint(5, 60))]
    left_out = [step for kind, some in KINDS.items() if kind not in kinds for step in some]
    world.slowest_poll = SLOWEST_POLL if "pausing" in kinds else 0.0
    world.unread = [step for kind in sorted(kinds) for step in KINDS[kind]]
    world.database.alter("a", "b", "c")
    world.database.commit(*[("insert", key, {"a": f"{key}"}) for key in KEYS])
    world.start()
    for step in [*steps, "snapshot"]:
        if step not in left_out:
            await happen(world, step)
    await world.until_all_is_read()


async def happen(world: CapturingWorld, step: str) -> None:
    """Let a step happen, if it can now."""
    chance = world.chance
    match step:
        case "commit":
            columns = world.database.now.columns or ()
            names = [*dict(columns), *sorted(world.database.unwatched)]
            operations = [an_operation(chance, names) for _one in range(chance.choice((1, 1, 2, 4)))]
            world.database.commit(*operations, chance=chance)
        case "reshape":
            world.database.reshape(KEYS, chance)
        case "pause":
            await world.pause_or_resume()
        case "pause all":
            await world.pause_or_resume_all()
        case "snapshot":  # soon after a pause or a resumption, of which readers have not all heard
            await world.pause_or_resume()
            await asyncio.sleep(chance.uniform(0, SLOWEST_POLL))
            world.begin_snapshot()
            for _commit in KEYS:
                await happen(world, "commit")
                await happen(world, "moment")
            await happen(world, chance.choice(("pause", "moment", "wait")))
            await world.end_snapshot()
        case "pause between":  # changes of one row, which are read together
            key, names = chance.choice(KEYS), [name for name, _place in world.database.now.columns or ()]
            for pauses in (True, True, False):
                world.database.commit(("update", key, {chance.choice(names): f"{chance.randrange(1_000)}"}))
                if pauses:
                    await world.pause_or_resume()
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
            for _step in range(chance.randint(0, 12)):  # what comes next is all read together
                await happen(world, chance.choice(("commit", "commit", *world.unread)))
        case "leases end":  # those who hold them do not know yet
            world.database.clock.step(LEASE * 2)
        case "unwatch" if len(columns := world.database.now.columns or ()) > 1:
            world.database.unwatch(chance.choice(columns)[0])
        case "alter":
            # Never one that was dropped: BigQuery has its old values, so its table is pending resync, as ever.
            names = [name for name, _place in world.database.now.columns or ()]
            more = [f"c{len(world.database.past)}"] if chance.random() < 0.7 else []
            world.database.alter(*chance.sample(names, chance.randint(max(1, len(names) - 1), len(names))), *more)
            world.database.capture = chance.choice(CAPTURE_TYPES)
        case _:
            pass


def an_operation(chance: Random, names: Sequence[str]) -> Operation:
    """Return a change of a row."""
    kind = chance.choice(("insert", "insert", "update", "update", "update", "update", "replace", "delete"))
    chosen = chance.sample(names, chance.randint(1, min(3, len(names))))
    return kind, chance.choice(KEYS), {name: chance.choice((None, f"{chance.randrange(1_000)}")) for name in chosen}
