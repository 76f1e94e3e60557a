"""Kill the reader between any two effects, start it again: no change is lost, no child overtakes its parents."""

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.spanner_reader.core.stream.partitions import PartitionState
from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionToken,
    StreamRecord,
)
from shared.contracts.change_sequence import four_sections
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds
from shared.runtime.stop import Stop
from tests.fakes.life import CrashError, Life
from tests.fakes.spanner_reader import Topic
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.spanner_reader.scripts import LEASE, START, World, a_record, children

SECOND = 1_000_000_000
Records = Mapping[PartitionToken, Sequence[StreamRecord]]


def build(shapes: Sequence[int], heartbeats: bool) -> tuple[Records, Nanoseconds]:
    """Return a stream of two partitions that are split (0), merged (1) or moved (2), one after the other; and its end.

    Every record has a commit time of its own, so that a change is known by its sequence.
    """
    names = (PartitionToken(f"p{n}") for n in itertools.count())
    ticks = itertools.count(1)

    def tick() -> Nanoseconds:
        return Nanoseconds(START + next(ticks) * SECOND)

    records: dict[PartitionToken, list[StreamRecord]] = {ROOT: [a_record(tick())]}
    active = [next(names), next(names)]
    records[ROOT].append(children(tick(), *active))

    def live(token: PartitionToken) -> None:
        records.setdefault(token, []).append(a_record(tick(), mods=2))
        if heartbeats:
            records[token].append(HeartbeatRecord(tick()))
        records[token].append(a_record(tick()))

    for shape in shapes:
        for token in active:
            live(token)
        parents = active[:2] if shape == 1 and len(active) > 1 else active[:1]
        born = [next(names), next(names)] if shape == 0 else [next(names)]
        start = tick()
        for parent in parents:
            records[parent].append(children(start, *born, parents=parents))
        active = active[len(parents) :] + born
    for token in active:
        live(token)
    return records, tick()


def sequences_of(records: Sequence[StreamRecord], up_to: Nanoseconds | None = None) -> set[str]:
    """Return the sequences of a partition's changes, those before a time only if one is given."""
    return {
        str(four_sections(microseconds(record.commit_timestamp), 0, mod))
        for record in records
        if isinstance(record, DataChangeRecord) and (up_to is None or record.commit_timestamp < up_to)
        for mod in range(len(record.mods))
    }


def check_nothing_is_lost(world: World) -> None:
    """Whatever has been recorded as progress is published, and children are known where a partition is finished."""
    published = set(world.topic.sequences())
    for token, row in world.table.rows.items():
        records = world.script.records[token]
        finished = row.state is PartitionState.FINISHED
        missing = sequences_of(records, None if finished else row.watermark) - published
        assert not missing, f"{token} is {row.state} at {format_timestamp(row.watermark)} without {missing}"
        for record in records:
            if finished and isinstance(record, ChildPartitionsRecord):
                assert {child.token for child in record.children} <= world.table.rows.keys()


def check_children_follow_their_parents(records: Records, topic: Topic) -> None:
    """The first publication of each change of a child comes after that of every change of its parents."""
    first = {sequence: index for index, sequence in reversed(list(enumerate(topic.sequences())))}
    parents = {
        (child.token, parent)
        for parent, its_records in records.items()
        for record in its_records
        if isinstance(record, ChildPartitionsRecord)
        for child in record.children
    }
    for child, parent in parents:
        last_of_parent = max((first[s] for s in sequences_of(records[parent])), default=-1)
        first_of_child = min((first[s] for s in sequences_of(records[child])), default=len(first))
        assert last_of_parent < first_of_child


async def live_through(
    records: Records, end: Nanoseconds, kills: Sequence[int], seed: int = 0, **script: Any
) -> tuple[World, int]:
    """Start readers one after the other, each killed at its step, and a last one that lives; return its steps."""
    world = await World.begun(records, **script)
    world.table.clock.time = Nanoseconds(end + SECOND)
    for number, killed_at in enumerate([*kills, None]):
        life = Life(killed_at)
        reader = world.reader(owner=f"reader {number}", life=life, end=end, seed=seed + number)
        with contextlib.suppress(CrashError):
            await asyncio.wait_for(reader.run(Stop()), 60)
        check_nothing_is_lost(world)
        world.table.clock.step(LEASE * 2)  # the dead one's leases end
    check_all_arrived(world, records, end)
    return world, life.steps


def check_all_arrived(world: World, records: Records, end: Nanoseconds) -> None:
    wanted = set().union(*(sequences_of(its_records) for its_records in records.values()))
    assert set(world.topic.sequences()) == wanted
    assert world.table.rows.keys() == records.keys()
    for row in world.table.rows.values():
        assert row.state is PartitionState.FINISHED or row.watermark > end
    check_children_follow_their_parents(records, world.topic)


@pytest.mark.parametrize("together", [1, 3])
async def test_killed_at_each_step_in_turn_a_restarted_reader_loses_nothing(together: int) -> None:
    records, end = build([0, 1, 2, 1], heartbeats=True)
    world, steps = await live_through(records, end, [], together=together)
    assert len(world.topic.changes) == len(set(world.topic.sequences()))  # undisturbed: each once
    assert steps > 100
    for killed_at in range(1, steps + 1):
        await live_through(records, end, [killed_at], together=together)


@settings(max_examples=examples(40), deadline=None)
@given(
    shapes=st.lists(st.integers(0, 2), max_size=6),
    heartbeats=st.booleans(),
    kills=st.lists(st.integers(1, 80), max_size=4),
    breaks=st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 4), max_size=3), max_size=3),
    seed=st.integers(0, 1_000),
    together=st.integers(1, 6),
)
def test_whatever_the_lineage_the_kills_and_the_breaks_nothing_is_lost(
    shapes: list[int], heartbeats: bool, kills: list[int], breaks: dict[int, list[int]], seed: int, together: int
) -> None:
    records, end = build(shapes, heartbeats)
    cuts = {PartitionToken(f"p{n}"): list(at) for n, at in breaks.items()}
    run_in_virtual_time(live_through(records, end, kills, seed, breaks=cuts, together=together))


@pytest.mark.parametrize("seed", range(5))
async def test_two_readers_at_once_share_the_partitions_and_lose_nothing(seed: int) -> None:
    records, end = build([0, 0, 1, 1, 0], heartbeats=True)
    world = await World.begun(records)
    world.table.clock.time = Nanoseconds(end + SECOND)
    readers = [world.reader(owner=name, end=end, seed=seed, lease=timedelta(seconds=1)) for name in ("one", "two")]
    await asyncio.wait_for(asyncio.gather(*(reader.run(Stop()) for reader in readers)), 60)
    check_all_arrived(world, records, end)
