"""Replicas share the partitions; the topic is looked at again; what is finished is forgotten."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.stream.partitions import PartitionState
from services.spanner_reader.core.stream.records import ROOT, HeartbeatRecord, PartitionToken, StreamRecord
from shared.contracts.errors import MessagesLostError, MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import FakePublisher
from tests.unit.spanner_reader.scripts import START, World, a_record, a_while, at, children, running, until

FIRST = at("09:00:01")
DAY = 86_400 * 1_000_000_000
TOKENS = [PartitionToken(f"p{number}") for number in range(6)]
T1, T2, *_REST = TOKENS


async def a_wide_world(*tokens: PartitionToken) -> World:
    """Return a world of partitions that all live on, each with one record and a heartbeat."""
    records: dict[PartitionToken, list[StreamRecord]] = {ROOT: [a_record(START, 10), children(FIRST, *tokens)]}
    for number, token in enumerate(tokens):
        time = at(f"09:10:0{number}")
        records[token] = [a_record(time), HeartbeatRecord(Nanoseconds(time + 1))]
    return await World.begun(records)


def held_by(world: World) -> Counter[str | None]:
    """Return how many live leases each owner has."""
    rows = world.table.rows.values()
    return Counter(
        row.owner for row in rows if row.lease_until is not None and row.state is not PartitionState.FINISHED
    )


async def test_readers_that_start_one_after_the_other_end_with_equal_shares_and_read_nothing_twice_at_a_time() -> None:
    world = await a_wide_world(*TOKENS)
    async with running(world.reader(owner="one")):
        await until(lambda: held_by(world) == {"one": 6})
        await until(lambda: set(TOKENS) <= world.script.open_queries)
        async with running(world.reader(owner="two")):
            await until(lambda: held_by(world) == {"one": 3, "two": 3})
            async with running(world.reader(owner="three")):
                await until(lambda: held_by(world) == {"one": 2, "two": 2, "three": 2})
                await until(lambda: set(TOKENS) <= world.script.open_queries)
            await until(lambda: held_by(world) == {"one": 3, "two": 3})  # one left: its share is taken at once
        await until(lambda: held_by(world) == {"one": 6})
        await until(lambda: set(TOKENS) <= world.script.open_queries)
    for number, token in enumerate(TOKENS):
        assert world.table.rows[token].watermark == at(f"09:10:0{number}") + 1
        assert world.table.rows[token].lease_until is None


async def test_a_handover_waits_for_what_is_under_way_and_goes_on_behind_it() -> None:
    world = await a_wide_world(T1, T2)
    publisher = FakePublisher(world.topic, by_hand=True)
    async with running(world.reader(owner="one", publisher=publisher)):
        await until(lambda: len(publisher.waiting) == 2)  # the announcement, and the first query's record
        for future in list(publisher.waiting):
            publisher.confirm(future)
        await until(lambda: len(publisher.waiting) == 2)  # one record of each partition
        async with running(world.reader(owner="two")):
            await until(lambda: len(world.script.open_queries) == 1)
            await a_while()
            assert held_by(world) == {"one": 2}
            for future in list(publisher.waiting):
                publisher.confirm(future)
            await until(lambda: held_by(world) == {"one": 1, "two": 1})
            await until(lambda: {T1, T2} <= world.script.open_queries)
    assert len(world.topic.changes) == 3  # nothing is published twice


async def test_a_topic_that_keeps_nothing_any_more_stops_the_reader_and_nothing_later_counts_as_published() -> None:
    world = await a_wide_world(T1)
    task = asyncio.create_task(world.reader(recheck=timedelta(milliseconds=20)).run(Stop()))
    await until(lambda: T1 in world.table.rows)
    before = world.table.rows[T1].watermark
    read = Nanoseconds(at("09:10:00") + 1)
    await until(lambda: world.metrics.low_watermark == read)
    checks = world.subscriptions.checks
    await until(lambda: world.subscriptions.checks >= checks + 2)
    world.subscriptions.error = MisconfiguredError("made-up", "topic t would lose messages: it has no subscription")
    with pytest.raises(MisconfiguredError, match=r"no subscription[\s\S]*another PARTITION_TABLE") as raised:
        await asyncio.wait_for(task, 60)
    assert "up to 2022-05-01T09:10:00.000000001Z were published" in str(raised.value)
    assert world.metrics.losing
    assert world.table.rows[T1].watermark == before  # what was confirmed and not saved is no longer saved
    assert world.table.rows[T1].lease_until is None
    assert world.script.open_queries == set()


@pytest.mark.parametrize("lost", [True, False])
async def test_what_the_topic_has_lost_is_in_a_resync_request_before_the_reader_ends_and_is_known_after_a_restart(
    lost: bool,
) -> None:
    world = await a_wide_world(T1)
    task = asyncio.create_task(world.reader(recheck=timedelta(milliseconds=20)).run(Stop()))
    await until(lambda: world.shapes.look is not None)
    kind = MessagesLostError if lost else MisconfiguredError  # the other: they would be kept for too short a time
    world.subscriptions.error = kind("made-up", "topic t would lose messages")
    with pytest.raises(MisconfiguredError, match="would lose messages"):
        await asyncio.wait_for(task, 60)

    world.subscriptions.error = None
    async with running(world.reader(owner="next")):
        await a_while()
    assert [(request.table, [one.kind for one in request.findings]) for request in world.metrics.requests] == (
        [("Singers", [SpannerResyncKind.TABLE_LOST])] if lost else []
    )
    for request in world.metrics.requests:
        assert request.since < START - 6 * DAY  # what a deleted subscription still held is lost, too
        assert request.sync_after > world.table.clock.now()  # and what others publish until they look


async def test_a_check_that_cannot_be_made_just_now_stops_nothing() -> None:
    world = await a_wide_world(T1)
    world.subscriptions.error = TransientError("UNAVAILABLE")
    async with running(world.reader(recheck=timedelta(milliseconds=5))) as task:
        await until(lambda: world.subscriptions.checks >= 3)
        assert not task.done()
        assert not world.metrics.losing


async def test_what_is_finished_is_forgotten_once_nothing_depends_on_it() -> None:
    world = await a_wide_world(T1)
    async with running(world.reader(owner="one")):
        await until(lambda: world.table.rows[ROOT].state is PartitionState.FINISHED)
    world.table.clock.step(timedelta(days=2))
    async with running(world.reader(owner="two")):
        await until(lambda: ROOT not in world.table.rows)
        await until(lambda: T1 in world.script.open_queries)
    assert world.table.rows.keys() == {T1}
