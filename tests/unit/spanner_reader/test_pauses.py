"""What is said of a pause, and counted; that nothing is lost without a mark is in `test_completion_convergence.py`."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from services.spanner_reader.core.stream.partitions import SpannerPartition
from services.spanner_reader.core.stream.records import PartitionToken
from services.spanner_reader.ports import WatchedTable
from tests.fakes.life import Life
from tests.fakes.pauses import FakePauseStore
from tests.fakes.spanner_reader import Script, Table
from tests.fakes.spanner_schema import FakeCatalog
from tests.unit.spanner_reader.capturing import row_of
from tests.unit.spanner_reader.completing import a_world
from tests.unit.spanner_reader.scripts import COLUMNS, START, LiveClock, LiveStream, World, a_write, running

TOKEN = PartitionToken("p")


@pytest.mark.parametrize("later", [0, 1, 3])
async def test_what_is_committed_after_a_resumption_is_published_though_the_reader_has_not_heard_of_it(
    later: float,
) -> None:
    world = a_world(0)
    world.slowest_poll = 5.0
    world.start()
    await asyncio.sleep(20)
    for value, since in (("dropped", 20), ("last", later)):
        await world.pause_or_resume()
        await asyncio.sleep(since)
        world.database.commit(("replace", 0, {"a": value}))
    await world.until_all_is_read()
    assert [row_of(*published) for published in world.published] == [{"a": value, "b": None} for value in ("0", "last")]


async def test_a_pause_that_eats_up_what_the_stream_keeps_is_reported_at_half_of_it_and_when_little_is_left() -> None:
    world = a_world()
    world.catalog.retention = timedelta(minutes=10)
    world.start()
    await asyncio.sleep(5)
    await FakePauseStore(world.world.pauses).pause(None)
    with capture_logs() as lines:
        await asyncio.sleep(570)
    events = [one for one in lines if one["event"] == "position_is_ageing"]
    assert [(one["log_level"], one["paused"]) for one in events] == [("warning", True), ("error", True)]
    assert all("resume" in one["fix"] for one in events)
    assert world.world.metrics.value("reader_retention_seconds") == 600
    await world.stop(killed=False)


async def test_what_a_table_is_paused_for_is_reported_once_and_counted_and_another_table_goes_on() -> None:
    tables = [WatchedTable(name, ("Id",), COLUMNS, "NEW_ROW") for name in ("Singers", "Albums")]
    world = World(Script({}), Table(LiveClock(START)), catalog=FakeCatalog(*tables))
    world.table.rows[TOKEN] = SpannerPartition(token=TOKEN, start=START, watermark=START)
    records, pauses = [a_write(START, "Singers", 0, "a")], FakePauseStore(world.pauses)
    reader = world.reader(stream=LiveStream({TOKEN: records}, Life()), poll=timedelta(seconds=1))
    with capture_logs() as lines:
        async with running(reader):
            await asyncio.sleep(5)
            await pauses.pause("Singers")
            await asyncio.sleep(5)
            assert world.metrics.value("reader_paused_tables") == 1
            for key in range(5):
                records += [a_write(world.table.clock.now(), table, key, "a") for table in ("Singers", "Albums")]
                await asyncio.sleep(1)
            await pauses.resume("Singers")
            await asyncio.sleep(5)
    events = [one for one in lines if one["event"] in ("table_paused", "changes_dropped", "table_resumed")]
    assert [one["event"] for one in events] == ["table_paused", "changes_dropped", "table_resumed"]
    assert events[-1]["dropped"] == 5
    assert world.metrics.values("reader_dropped_changes_total") == {"Singers": 5}
    assert world.metrics.value("reader_paused_tables") == 0
    assert [one.table for one in world.shapes.all_requests] == ["Singers"]
    assert sum(len(changes) for header, changes in world.topic.batches if header.table == "Albums") == 5
