"""Replicas share the partitions; the topic is looked at again; what is finished is forgotten."""

import asyncio
from datetime import timedelta

import pytest

from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.stream.partitions import PartitionState
from services.spanner_reader.core.stream.records import ROOT, HeartbeatRecord, PartitionToken, StreamRecord
from shared.contracts.errors import MessagesLostError, MisconfiguredError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
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
    assert world.table.rows[T1].watermark == before  # what was confirmed and not saved is no longer saved
    assert world.table.rows[T1].lease_until is None
    assert world.script.open_queries == set()


async def test_what_the_topic_has_lost_is_in_a_resync_request_before_the_reader_ends_and_is_known_after_a_restart() -> (
    None
):
    world = await a_wide_world(T1)
    task = asyncio.create_task(world.reader(recheck=timedelta(milliseconds=20)).run(Stop()))
    await until(lambda: world.shapes.inspection is not None)
    world.subscriptions.error = MessagesLostError("made-up", "topic t would lose messages")
    with pytest.raises(MisconfiguredError, match="would lose messages"):
        await asyncio.wait_for(task, 60)

    world.subscriptions.error = None
    async with running(world.reader(owner="next")):
        await a_while()
    (request,) = world.metrics.requests
    assert (request.table, [one.kind for one in request.findings]) == ("Singers", [SpannerResyncKind.TABLE_LOST])
    assert request.since < START - 6 * DAY  # what a deleted subscription still held is lost, too
    assert request.sync_after > world.table.clock.now()  # and what others publish until they look


async def test_what_is_finished_is_forgotten_once_nothing_depends_on_it() -> None:
    world = await a_wide_world(T1)
    async with running(world.reader(owner="one")):
        await until(lambda: world.table.rows[ROOT].state is PartitionState.FINISHED)
    world.table.clock.step(timedelta(days=2))
    async with running(world.reader(owner="two")):
        await until(lambda: ROOT not in world.table.rows)
        await until(lambda: T1 in world.script.open_queries)
    assert world.table.rows.keys() == {T1}
