"""Where partitions end, on a scripted Spanner: the known losses of others, and merges in every order of arrival."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.spanner_reader.core.stream.partitions import PartitionState, SpannerPartition
from services.spanner_reader.core.stream.records import (
    ROOT,
    HeartbeatRecord,
    PartitionToken,
)
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.fakes.life import CrashError, Life
from tests.integration.scripted_spanner import Break
from tests.integration.scripted_spanner_world import (
    FIRST,
    FORMS,
    LEASE,
    MERGE,
    T1,
    T2,
    T3,
    T4,
    World,
    a_world,
    run,
    times,
    until,
)
from tests.unit.spanner_reader.scripts import a_record, at, children

pytestmark = pytest.mark.integration


@pytest.fixture
def world() -> Iterator[World]:
    """Return a world whose stream starts at 09:00:00."""
    with a_world() as made:
        yield made


async def test_an_end_is_ignored_for_a_query_that_began_before_the_end(world: World) -> None:
    # https://github.com/apache/beam/issues/39821: a query with an end in the future ended early; by the time its reader
    # looked, the end was past, and everything up to there was taken for read.
    end = at("10:00:00")
    world.stream.clock = lambda: at("09:30:00")
    world.table.clock.time = at("09:30:00")
    world.stream.add(ROOT, children(FIRST, T1))
    world.stream.breaks(ROOT, Break(1, None))
    world.stream.breaks(T1, Break(2, None))
    world.stream.add(T1, a_record(at("09:10:00"), 1))
    async with world.running(end=end):
        await until(lambda: T1 in world.stream.open and world.metrics.value("published_changes_total") == 1)
        world.table.clock.time = at("11:00:00")
        await until(lambda: world.metrics.now == at("11:00:00"))
        world.stream.add(T1, HeartbeatRecord(at("09:20:00")), a_record(at("09:40:00"), 2), a_record(end, 3))
        world.stream.clock = lambda: at("11:00:00")
        await until(lambda: world.table.rows[T1].watermark > end)
    assert sorted(world.commits()) == [at("09:10:00"), at("09:40:00"), end]  # rows of different keys have no order
    assert world.stream.asked(T1)[:2] == [FIRST, at("09:20:00")]
    assert world.table.rows[T1].state is not PartitionState.FINISHED


async def test_children_that_an_end_hid_are_found_when_the_position_behind_it_is_refused(world: World) -> None:
    # https://github.com/apache/beam/issues/40232: a query up to an end behind the partition's own ended without the
    # child records; the next one started behind that end, was refused as out of range, and that was taken for FINISHED.
    end, split = at("10:00:00"), at("09:50:00")
    world.stream.clock = lambda: at("12:00:00")
    world.table.clock.time = at("12:00:00")
    world.stream.add(ROOT, children(FIRST, T1))
    world.stream.add(T1, a_record(at("09:10:00"), 1), children(split, T2, T3, parents=[T1]))
    world.stream.add(T2, a_record(at("09:55:00"), 2))
    world.stream.without_children[T1] = 1
    async with world.running("one", end=end) as task:
        await asyncio.wait([task], timeout=20)
    assert world.table.rows[T1].watermark > end
    assert world.table.rows[T1].state is not PartitionState.FINISHED
    async with world.running("two"):
        await until(lambda: {T2, T3} <= set(world.stream.open))
        await until(lambda: world.table.rows[T1].state is PartitionState.FINISHED)
        await until(lambda: len({change.key for change in world.topic.changes}) == 2)
    assert world.stream.asked(T1) == [FIRST, Nanoseconds(end + 1), FIRST]
    assert world.stream.asked(T2) == [split]


@pytest.mark.parametrize(
    ("keeps", "asked"), [(timedelta(hours=2, minutes=30), ["09:40:00"]), (timedelta(hours=2, minutes=5), ["10:05:00"])]
)
async def test_children_that_an_end_hid_are_found_where_the_partitions_start_is_older_than_the_retention(
    world: World, keeps: timedelta, asked: list[str]
) -> None:
    end, split, now = at("10:00:00"), at("09:50:00"), at("12:00:00")
    world.stream.clock = lambda: now
    world.table.clock.time = now
    world.stream.add(ROOT, children(FIRST, T1))
    world.stream.add(T1, a_record(at("09:10:00"), 1), children(split, T2, T3, parents=[T1]))
    world.stream.without_children[T1] = 1
    found = asked == ["09:40:00"]
    async with world.running("one", end=end) as task:
        await asyncio.wait([task], timeout=20)
    world.stream.keeps_from = Nanoseconds(now - keeps // timedelta(microseconds=1) * 1_000)
    world.catalog.retention = keeps
    world.table.clock.step(2 * LEASE)
    with nullcontext() if found else pytest.raises(MisconfiguredError, match="too far in the past"):
        async with world.running("two") as task:
            await until(lambda: world.table.rows[T1].state is PartitionState.FINISHED or task.done())
    later = Nanoseconds(2 * LEASE // timedelta(microseconds=1) * 1_000)
    assert world.stream.asked(T1) == [FIRST, Nanoseconds(end + 1), FIRST, *(at(one) + later for one in asked)]
    assert (T2 in world.table.rows) == found


async def test_a_position_at_which_the_partition_never_was_is_refused_and_never_taken_for_its_end(world: World) -> None:
    world.stream.add(ROOT, children(FIRST, T1))
    world.stream.add(T1, children(MERGE, T2, parents=[T1]))
    strange = at("11:00:00")
    world.table.rows[T1] = SpannerPartition(token=T1, start=strange, watermark=strange)
    with pytest.raises(MisconfiguredError, match=r"within 2022-05-01T09:00:01Z[\s\S]*another PARTITION_TABLE"):
        async with world.running() as task:
            await asyncio.wait([task], timeout=20)
    assert world.table.rows[T1].state is not PartitionState.FINISHED
    assert T2 not in world.table.rows


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_partitions_that_merge_in_any_order_with_kills_restarts_and_breaks_are_read_once_and_in_order(
    data: st.DataObject,
) -> None:
    with a_world(data.draw(st.sampled_from(FORMS))) as world:
        merge_in_any_order(world, data)


def merge_in_any_order(world: World, data: st.DataObject) -> None:
    parents = [PartitionToken(f"p{number}") for number in range(data.draw(st.integers(2, 4)))]
    world.stream.add(ROOT, children(FIRST, *parents))
    begun = times("09:10:00", 60)
    for number, token in enumerate(parents):
        world.stream.add(token, *(a_record(begun[number * 10 + n], number) for n in range(10)))
        breaks = data.draw(st.lists(st.integers(0, 10), max_size=2))
        world.stream.breaks(token, *(Break(after) for after in breaks))
    arrivals = data.draw(st.permutations(parents))
    restarts = data.draw(st.sets(st.sampled_from(arrivals)))
    kills = data.draw(st.lists(st.integers(1, 120), max_size=3))
    merged: list[PartitionToken] = []

    def arrive(token: PartitionToken) -> None:
        world.stream.add(token, children(MERGE, T4, parents=parents))
        if not merged:
            world.stream.add(T4, a_record(MERGE, 99))
        merged.append(token)

    def is_read() -> bool:
        return bool(world.topic.changes) and world.topic.changes[-1].key == '{"Id":"99"}'

    async def live(life: Life, number: int) -> None:
        """Let partitions merge until the reader is killed, is to be restarted, or has read what comes after."""
        publisher = world.in_order(life)
        async with world.running(f"reader {number}", publisher=publisher, life=life) as reader:
            for token in arrivals:
                if token in merged and world.has_finished(token):
                    continue
                if token not in merged:
                    arrive(token)
                await until(lambda token=token: world.has_finished(token) or reader.done())  # type: ignore[misc]
                if reader.done() or token in restarts:
                    return
            await until(lambda: is_read() or reader.done())

    async def scenario() -> None:
        for number, killed_at in enumerate([*kills, *[None] * (len(parents) + 1)]):
            life = Life(killed_at)
            with contextlib.suppress(CrashError):
                await live(life, number)
            if life.over:
                world.table.clock.step(LEASE + timedelta(seconds=1))
        assert is_read()

    run(scenario)
    assert min(world.stream.asked(T4)) == MERGE
    if not kills:
        assert set(world.stream.asked(T4)) == {MERGE}
    assert max(world.stream.most_open.values()) == 1
    assert world.server.with_deadline == 0  # a query of a living partition has no end
    for number in range(len(parents)):
        changes = [change for change in world.topic.changes if json.loads(change.key) == {"Id": str(number)}]
        first = list(dict.fromkeys(parse_timestamp(change.commit_timestamp) for change in changes))
        assert first == begun[number * 10 : number * 10 + 10]
