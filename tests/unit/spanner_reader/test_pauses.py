"""Paused and resumed by whoever likes, read by readers that hear of it late: nothing is lost without a mark."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.spanner_reader.core.pauses import Pause
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.spanner_reader.pausing import ALBUMS, LEASE, POLL, SINGERS, PausingWorld

SLOWEST = 5.0  # seconds that a look at pauses takes at most
KNOWN_AFTER = int(2 * SLOWEST + 2 * POLL.total_seconds()) * 10**9  # a look that began just before, and the next one

WRITES = ["write", "write", "write", "delete", "begin-snapshot", "end-snapshot"]
PAUSES = ["pause", "resume", "pause-all", "resume-all"]
LIFE = ["kill", "start", "wait"]
Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*WRITES, *PAUSES, *LIFE]),
        st.integers(0, 5),
    ),
    max_size=30,
)


async def take(world: PausingWorld, step: Step, pauses: list[Pause]) -> None:
    """Do one thing; whatever was begun goes on meanwhile."""
    match step:
        case "write", number:
            for table in (SINGERS, ALBUMS):
                world.database.write(table, number, f"{len(world.database.all_of(table))}")
        case "delete", number:
            for table in (SINGERS, ALBUMS):
                world.database.write(table, number, None)
        case "pause", _number:
            await world.pauses.pause(SINGERS)
        case "resume", _number:
            if await world.pauses.resume(SINGERS):
                pauses.append(world.world.shapes.pauses[SINGERS])
        case "pause-all", _number:
            await world.pauses.pause(None)
        case "resume-all", _number:
            await world.pauses.resume(None)
        case "kill", number:
            if len(world.readers) > 1:
                await world.kill(number)
        case "start", number:
            if len(world.readers) < 3:
                world.start(number, number / 5)
        case "wait", number:
            await asyncio.sleep(number**2)
        case "begin-snapshot", _number:
            world.begin_snapshot()
        case "end-snapshot", _number:
            await world.end_snapshot()
        case _:
            raise AssertionError(step)
    await asyncio.sleep(step[1] / 4)


async def quiet(world: PausingWorld) -> None:
    """Wait until everything is read that was committed, whoever has to let go of a lease first."""
    await world.pauses.resume(None)
    world.start()
    await asyncio.sleep(3 * LEASE.total_seconds())
    for _life, _stop, task in world.readers:
        if task.done():
            task.result()


def steps_of(text: str) -> list[Step]:
    """Return steps from words, each with its number behind it."""
    words = text.split()
    return [(what, int(number)) for what, number in zip(words[::2], words[1::2], strict=True)]


STALE = steps_of(
    "start 5 wait 5 pause 0 wait 5 write 1 write 3 resume 0 begin-snapshot 0 write 1 write 2 delete 3 wait 5 "
    "end-snapshot 0"
)
HANDED_OVER = steps_of(
    "pause 0 wait 4 write 1 wait 3 start 5 kill 0 write 1 wait 8 resume 0 write 1 begin-snapshot 0 write 1 "
    "end-snapshot 0"
)
READ_LATER = steps_of("pause 0 pause-all 0 wait 4 write 0 resume 0 pause 2")
WHILE_ALL_IS_PAUSED = steps_of("pause-all 0 wait 5 write 1 pause 0 write 2 resume-all 0 wait 5")


@settings(max_examples=examples(40))
@given(STEPS, st.integers(0, 3))
@example(STALE, 0)
@example(HANDED_OVER, 1)
@example(WHILE_ALL_IS_PAUSED, 2)
@example(READ_LATER, 0)
def test_what_is_dropped_is_under_a_resync_request_until_a_later_snapshot_and_nothing_else_is_lost(
    steps: list[Step], seed: int
) -> None:
    async def scenario() -> None:
        world, pauses = PausingWorld(random.Random(seed)), list[Pause]()
        world.start()
        world.start(SLOWEST, 0.5)
        await asyncio.sleep(5)
        for step in steps:
            await take(world, step, pauses)
        await quiet(world)
        await world.end_snapshot()

        committed = {one.commit_timestamp for one in world.database.all_of(SINGERS)}
        published = world.published(SINGERS)
        last = world.world.shapes.pauses.get(SINGERS)
        covering = [*pauses, *([last] if last is not None and last.lasts else [])]
        dropped = committed - published
        assert {one for one in dropped if not any(pause.covers(one) for pause in covering)} == set()
        # While all is paused nothing is read: a change may be read, and published, after the pause of its table.
        read_at_once = all(what != "pause-all" for what, _number in steps)
        surely = [replace(one, paused_at=Nanoseconds(one.paused_at + KNOWN_AFTER)) for one in covering if read_at_once]
        assert {one for one in published if any(pause.covers(one) for pause in surely)} == set()
        counted = world.world.metrics.values("reader_dropped_changes_total")
        assert counted.get(SINGERS, 0) >= len(dropped)
        assert ALBUMS not in counted

        assert world.mirrored(ALBUMS) == world.database.rows(ALBUMS)
        if not world.marked:
            assert world.mirrored(SINGERS) == world.database.rows(SINGERS)
        await world.pauses.resume(SINGERS)
        await asyncio.sleep(1)
        world.begin_snapshot()
        await world.end_snapshot()
        assert not world.marked
        assert world.mirrored(SINGERS) == world.database.rows(SINGERS)
        await world.end()

    run_in_virtual_time(scenario())


async def test_a_pause_that_eats_up_what_the_stream_keeps_is_reported_at_half_of_it_and_when_little_is_left() -> None:
    world = PausingWorld(random.Random(0))
    world.world.catalog.retention = timedelta(minutes=10)
    world.start()
    await asyncio.sleep(5)
    await world.pauses.pause(None)
    with capture_logs() as lines:
        await asyncio.sleep(570)
    said = [one for one in lines if one["event"] == "position_is_ageing"]
    assert [(one["log_level"], one["paused"]) for one in said] == [("warning", True), ("error", True)]
    assert all("resume" in one["fix"] for one in said)
    assert world.world.metrics.value("reader_retention_seconds") == 600
    await world.end()


async def test_what_a_table_is_paused_for_is_reported_once_and_counted() -> None:
    world = PausingWorld(random.Random(0))
    with capture_logs() as lines:
        world.start()
        await asyncio.sleep(5)
        await world.pauses.pause(SINGERS)
        await asyncio.sleep(5)
        for key in range(5):
            world.database.write(SINGERS, key, "a")
            await asyncio.sleep(1)
        await world.pauses.resume(SINGERS)
        await asyncio.sleep(5)
    said = [one for one in lines if one["event"] in ("table_paused", "changes_dropped", "table_resumed")]
    assert [one["event"] for one in said] == ["table_paused", "changes_dropped", "table_resumed"]
    assert said[-1]["dropped"] == world.world.metrics.values("reader_dropped_changes_total")[SINGERS] == 5
    assert world.world.metrics.value("reader_paused_tables") == 0
    assert world.marked
    await world.end()
