"""What a real Spanner does and the emulator cannot: the reader's loop and its stream against a scripted server."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from services.spanner_reader.core.stream.partitions import PartitionState
from services.spanner_reader.core.stream.records import (
    ROOT,
    HeartbeatRecord,
    Mod,
)
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import parse_timestamp
from tests.integration.scripted_spanner import Break, RefusalError
from tests.integration.scripted_spanner_rows import Form
from tests.integration.scripted_spanner_world import (
    FIRST,
    FORMS,
    MERGE,
    T1,
    T2,
    T3,
    World,
    a_world,
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


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_a_stream_that_breaks_again_and_again_loses_nothing_and_reorders_nothing(
    world: World, form: Form
) -> None:
    world.stream.form = form
    wanted = times("09:10:00", 40)
    codes = (
        (grpc.StatusCode.UNAVAILABLE, "GOAWAY received"),
        (grpc.StatusCode.CANCELLED, "Cancelled on the server side"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Stream removed"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        (grpc.StatusCode.UNKNOWN, "Stream removed"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many"),
        (grpc.StatusCode.ABORTED, "aborted"),
    )
    world.stream.add(ROOT, children(FIRST, T1, T2))
    world.stream.breaks(T1, *(Break(number, RefusalError(*code)) for number, code in enumerate(codes)))
    world.stream.breaks(T1, Break(0, None), Break(5, None))  # an end without an error that is no end
    world.stream.add(T1, *(a_record(time) for time in wanted), children(MERGE, T3, parents=[T1]))
    async with world.running(publisher=world.in_order()):
        await until(lambda: T3 in world.stream.open)
        assert world.table.rows[T1].state is PartitionState.FINISHED
    assert world.commits() == wanted
    assert world.stream.most_open[T1] == 1
    starts = world.stream.asked(T1)
    assert starts == sorted(starts)  # a reading starts again at the watermark, which never moves back
    assert len(starts) == len(codes) + 3
    assert {query.heartbeat_milliseconds for query in world.stream.queries} == {10_000}


async def test_a_record_cut_off_by_a_break_is_read_again_whole(world: World) -> None:
    world.stream.form = Form(chunk_size=1_000)
    big = replace(a_record(at("09:10:01")), mods=(Mod('{"Id":"1"}', json.dumps({"Name": "é" * 50_000}), None),))
    world.stream.add(ROOT, children(FIRST, T1))
    world.stream.breaks(T1, Break(1), Break(1))
    world.stream.add(T1, a_record(at("09:10:00")), big, children(MERGE, T2, parents=[T1]))
    async with world.running():
        await until(lambda: T2 in world.stream.open)
    (row,) = {change.row for change in world.topic.changes if len(change.row or "") > 100}
    assert json.loads(row or "") == {"Name": "é" * 50_000}


async def test_times_keep_their_nanoseconds_in_the_watermark_and_in_the_start_of_a_child(world: World) -> None:
    heartbeat = parse_timestamp("2022-05-01T09:10:00.123456789Z")
    begins = parse_timestamp("2022-05-01T09:20:00.000000001Z")
    world.stream.add(ROOT, children(FIRST, T1))
    world.stream.add(T1, HeartbeatRecord(heartbeat))
    async with world.running("one"):
        await until(lambda: world.metrics.low_watermark == heartbeat)
    async with world.running("two"):
        await until(lambda: T1 in world.stream.open)
        world.stream.add(T1, children(begins, T2, parents=[T1]))
        await until(lambda: T2 in world.stream.open)
    assert world.stream.asked(T1) == [FIRST, heartbeat]
    assert world.stream.asked(T2) == [begins]


async def test_records_of_the_watermarks_own_time_are_read_again_after_a_restart(world: World) -> None:
    time = at("09:10:00")
    world.stream.add(ROOT, children(FIRST, T1))
    world.stream.add(T1, a_record(time, 1, transaction="x"))
    async with world.running("one"):
        await until(lambda: world.metrics.value("published_changes_total") == 1)
    assert world.table.rows[T1].watermark == time
    # Another transaction of the same commit timestamp, which the first reading had not come to.
    world.stream.add(T1, a_record(time, 2, transaction="y"))
    async with world.running("two"):
        await until(lambda: world.metrics.value("published_changes_total") == 3)
    assert world.stream.asked(T1) == [FIRST, time]
    assert sorted(json.loads(change.key)["Id"] for change in world.topic.changes) == ["1", "1", "2"]


async def test_a_position_that_the_stream_keeps_no_more_stops_the_reader_and_reports_what_is_lost(world: World) -> None:
    world.stream.add(ROOT, children(FIRST, T1, T2))
    async with world.running("one"):
        await until(lambda: {T1, T2} <= set(world.stream.open))
    world.stream.keeps_from = at("10:00:00")  # the reader was away for longer than the retention
    with pytest.raises(MisconfiguredError) as raised:
        async with world.running("two") as task:
            await asyncio.wait([task], timeout=20)
    message = str(raised.value)
    assert "2022-05-01T10:00:00Z" in message  # the earliest time that can be read: what lies before is lost
    assert "2022-05-01T09:00:01Z" in message  # where it would have gone on
    assert "lost" in message
    assert "another PARTITION_TABLE" in message
    assert "retention_period" in message
    for token in (T1, T2):  # nothing was skipped, and nothing is finished that is not
        assert world.table.rows[token].watermark == FIRST
        assert world.table.rows[token].state is not PartitionState.FINISHED
    assert world.topic.changes == []
