import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from services.spanner_reader.core.stream.partitions import PartitionState, SpannerPartition
from services.spanner_reader.core.stream.records import (
    ROOT,
    HeartbeatRecord,
    PartitionToken,
    SpannerStreamQuery,
    StreamRecord,
)
from services.spanner_reader.ports import StartPastEndError, StartTooOldError, WatchedTable
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, nanoseconds, parse_timestamp
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import FakeChangeStream, FakePublisher, Script
from tests.unit.spanner_reader.scripts import (
    COLUMNS,
    START,
    World,
    a_record,
    a_while,
    a_write,
    at,
    children,
    running,
    until,
)

FIRST = at("09:00:01")
MERGE = at("09:30:15")
T1, T2, T3, T4 = (PartitionToken(f"child_token_{n}") for n in range(1, 5))


async def seed_workflow() -> World:
    """Return the documentation's worked example: three first partitions, of which two are merged into a fourth."""
    merge = children(MERGE, T4, parents=[T2, T3])
    records: dict[PartitionToken, list[StreamRecord]] = {
        ROOT: [a_record(START, 10), children(FIRST, T1, T2), children(FIRST, T3, sequence="1000012390")],
        T1: [a_record(at("09:10:00"), 1), a_record(at("09:40:00"), 2)],
        T2: [a_record(at("09:10:00"), 3), merge],
        T3: [a_record(at("09:20:00"), 4), merge],
        T4: [a_record(MERGE, 5)],
    }
    return await World.begun(records, gates={T2: asyncio.Event(), T3: asyncio.Event()})


async def read_up_to(world: World, end: Nanoseconds, owner: str = "reader") -> None:
    """Let a reader read a past part of the worked example; it ends by itself."""
    world.table.clock.time = at("12:00:00")
    for gate in world.script.gates.values():
        gate.set()
    await asyncio.wait_for(world.reader(end=end, owner=owner).run(Stop()), 60)


def asked(world: World, token: PartitionToken) -> list[Nanoseconds]:
    return [query.start for query in world.script.queries if query.token == token]


@pytest.mark.parametrize(("first", "second"), [(T2, T3), (T3, T2)])
async def test_the_worked_example_reads_a_merged_partition_once_and_after_both_parents(
    first: PartitionToken, second: PartitionToken
) -> None:
    world = await seed_workflow()
    async with running(world.reader()):
        await until(lambda: {T1, T2, T3} <= world.script.open_queries)  # in parallel
        world.script.gates[first].set()
        await until(lambda: world.table.rows[first].state is PartitionState.FINISHED)
        await a_while()
        assert asked(world, T4) == []  # one parent is not enough
        assert world.table.rows[T4].state is PartitionState.CREATED
        world.script.gates[second].set()
        await until(lambda: len(world.topic.changes) == 6)
        await until(lambda: T4 in world.script.open_queries)

    queries = world.script.queries
    assert sorted(query.token for query in queries) == [ROOT, T1, T2, T3, T4]  # four child queries in all
    assert asked(world, ROOT) == [START]
    assert [asked(world, token) for token in (T1, T2, T3)] == [[FIRST]] * 3
    assert asked(world, T4) == [MERGE]
    assert {query.heartbeat_milliseconds for query in queries} == {10_000}
    assert {query.end for query in queries} == {None}
    assert world.table.rows[T4].parents == {T2, T3}
    assert world.metrics.value("partitions_merged_total") == 1
    assert world.metrics.value("partitions_split_total") == 0


async def test_finished_partitions_are_forgotten_until_none_is_left_however_many_there_are() -> None:
    world = await seed_workflow()
    for number in range(2_500):
        token = PartitionToken(f"finished-{number}")
        finished = SpannerPartition(token=token, start=START, watermark=START, state=PartitionState.FINISHED)
        world.table.rows[token] = finished
        world.table.finished_at[token] = Nanoseconds(world.table.clock.now() - nanoseconds(timedelta(days=2)))
    async with running(world.reader()):
        await a_while()
        assert not [token for token in world.table.rows if token.startswith("finished")]


async def test_what_becomes_of_each_partition_is_logged_for_debugging_only() -> None:
    world = await seed_workflow()
    with capture_logs() as logs:
        async with running(world.reader()):
            await until(lambda: {T1, T2, T3} <= world.script.open_queries)
    levels = {one["event"]: one["log_level"] for one in logs if one["event"].startswith("partition_")}
    assert levels == {"partition_claimed": "debug", "partition_finished": "debug"}


async def test_the_records_that_came_together_are_handed_to_the_publisher_together() -> None:
    records = [a_record(Nanoseconds(FIRST + number), number) for number in range(100)]
    world = await World.begun({ROOT: records}, together=50)
    async with running(world.reader(publisher=FakePublisher(world.topic, in_order=True))):
        await until(lambda: len(world.topic.changes) == 100)

    calls = [len(changes) for header, changes in world.topic.batches if header.origin == "stream" and changes]
    assert calls == [50, 50]


async def test_records_of_two_tables_hold_the_watermark_until_the_changes_of_both_are_confirmed() -> None:
    seconds, tables = [at(f"09:00:0{n}") for n in range(1, 5)], ("Singers", "Albums") * 2
    records = [a_write(second, table, 1, "a") for second, table in zip(seconds, tables, strict=True)]
    world = await World.begun({ROOT: records}, together=2)
    world.catalog.tables.append(WatchedTable("Albums", ("Id",), COLUMNS, "NEW_ROW"))
    publisher = FakePublisher(world.topic, by_hand=True)
    async with running(world.reader(publisher=publisher, poll=timedelta(seconds=1))):
        await until(lambda: len(world.topic.changes) == 4)
        published = list(zip(world.topic.batches, publisher.waiting, strict=True))
        *_others, of_singers, _of_albums = [one for (_header, changes), one in published if changes]
        for _batch, one in published:
            if one is not of_singers:
                publisher.confirm(one)
        await asyncio.sleep(20)
        assert world.table.rows[ROOT].watermark == seconds[1]
        publisher.confirm(of_singers)
        await asyncio.sleep(20)
        assert world.table.rows[ROOT].watermark == seconds[3]


@pytest.mark.parametrize(
    ("breaks", "ends_early", "queries"),
    [
        pytest.param([0, 2, 3], 0, 4, id="it breaks off among its records"),
        pytest.param([5, 5], 0, 3, id="it breaks off behind its child records"),
        pytest.param([], 2, 3, id="it ends without child records"),
    ],
)
async def test_a_query_that_did_not_come_to_the_end_starts_again_and_finishes_nothing(
    breaks: list[int], ends_early: int, queries: int
) -> None:
    times = [at(f"09:00:0{n}") for n in range(4)]
    world = await World.begun(
        {ROOT: [*(a_record(time) for time in times), children(at("09:00:09"), T1)], T1: []},
        breaks={ROOT: list(breaks)},
        ends_early={ROOT: ends_early},
    )
    async with running(world.reader()):
        await until(lambda: T1 in world.script.open_queries)
    assert len(asked(world, ROOT)) == queries
    assert max(asked(world, ROOT)) <= times[-1]  # child records move no watermark
    assert {parse_timestamp(change.commit_timestamp) for change in world.topic.changes} == set(times)


async def test_every_partition_stops_at_the_end_and_a_later_start_goes_on_from_there() -> None:
    world = await seed_workflow()
    await read_up_to(world, at("09:15:00"))
    assert sorted(c.commit_timestamp for c in world.topic.changes) == [
        "2022-05-01T09:00:00Z",
        "2022-05-01T09:10:00Z",
        "2022-05-01T09:10:00Z",
    ]
    assert {query.end for query in world.script.queries} == {at("09:15:00")}
    assert T4 not in world.table.rows

    await read_up_to(world, at("10:00:00"), owner="two")
    assert len(world.topic.changes) == 6  # each once: the end was exact
    assert asked(world, T1) == [FIRST, Nanoseconds(at("09:15:00") + 1)]


async def test_a_partition_that_begins_at_the_very_end_is_read() -> None:
    world = await seed_workflow()
    await read_up_to(world, MERGE)
    assert asked(world, T4) == [MERGE]
    assert any(change.commit_timestamp == "2022-05-01T09:30:15Z" for change in world.topic.changes)


async def test_a_reader_whose_lease_was_taken_stops_publishing() -> None:
    gate = asyncio.Event()
    world = await World.begun({ROOT: [a_record(START), children(FIRST, T1)], T1: []}, gates={ROOT: gate})
    async with running(world.reader(lease=timedelta(milliseconds=60))):
        await until(lambda: ROOT in world.script.open_queries)
        row = world.table.rows[ROOT]
        world.table.rows[ROOT] = replace(  # taken by another, who will not give it back
            row, owner="other", fencing=row.fencing + 1, lease_until=Nanoseconds(world.table.clock.time * 2)
        )
        await until(lambda: ROOT not in world.script.open_queries)
        gate.set()
        await a_while()
    assert world.table.rows[ROOT].owner == "other"
    assert world.table.rows[ROOT].state is not PartitionState.FINISHED
    assert T1 not in world.table.rows


async def test_a_full_publisher_holds_the_stream_back() -> None:
    world = await World.begun({ROOT: [a_record(Nanoseconds(START + n), n) for n in range(50)]})
    publisher = FakePublisher(world.topic, by_hand=True, room=5)
    async with running(world.reader(publisher=publisher)):
        await until(lambda: len(publisher.waiting) == 5)
        await a_while()
        assert world.metrics.value("reader_changes_total") <= 5
        while world.metrics.value("published_changes_total") < 50:
            await until(lambda: bool(publisher.waiting))
            publisher.confirm(publisher.waiting[0])
            await asyncio.sleep(0)


async def test_a_record_after_the_heartbeat_that_excluded_it_is_counted_and_published_all_the_same() -> None:
    heartbeat = HeartbeatRecord(at("12:35:00.312486"))
    late = [a_record(heartbeat.timestamp), a_record(at("12:34:00"))]
    world = await World.begun({ROOT: [heartbeat, *late, a_record(at("12:36:00"))]})
    async with running(world.reader()):
        await until(lambda: len(world.topic.changes) == 3)
    assert world.metrics.value("reader_late_records_total") == 2
    assert world.table.rows[ROOT].watermark == at("12:36:00")


async def test_the_low_watermark_waits_for_the_slowest_partition() -> None:
    p1, p2 = PartitionToken("P1"), PartitionToken("P2")
    heartbeat = at("12:35:00.312486")
    world = await World.begun(
        {
            ROOT: [children(FIRST, p1, p2)],
            p1: [HeartbeatRecord(heartbeat)],
            p2: [a_record(at("12:34:59")), children(at("12:36:00"), T1, parents=[p2])],
            T1: [],
        },
        gates={p2: asyncio.Event()},
    )
    world.table.clock.time = at("12:40:00")
    async with running(world.reader()):
        await until(lambda: world.metrics.low_watermark == at("12:34:59"))
        world.script.gates[p2].set()
        await until(lambda: world.metrics.low_watermark == heartbeat)
    assert world.table.rows[p1].watermark == heartbeat


async def test_every_watched_table_is_announced_and_a_new_one_is_looked_up_once() -> None:
    album = replace(a_record(START), table="Albums")
    world = await World.begun({ROOT: [album, replace(album, commit_timestamp=FIRST)]})
    world.catalog.tables.append(WatchedTable("Empty", ("Id",), COLUMNS, "NEW_ROW"))
    async with running(world.reader()):
        await until(lambda: len(world.topic.changes) == 2)
        await until(lambda: world.catalog.asked == 3)  # at the start, for the table, for its columns
        await asyncio.sleep(0.05)
    assert {header.table for header in world.topic.headers} == {"Singers", "Empty", "Albums"}
    assert world.catalog.asked == 3


async def test_a_table_of_partitions_with_nothing_left_to_read_is_refused() -> None:
    world = World(Script({}))
    with pytest.raises(MisconfiguredError, match="PARTITION_TABLE"):
        await asyncio.wait_for(world.reader().run(Stop()), 5)


class RefusingStream(FakeChangeStream):
    """Refuses every start: as past the partition's end, and the partition's own start as too old."""

    def __init__(self, script: Script, too_old: Nanoseconds) -> None:
        super().__init__(script)
        self._too_old = too_old

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Refuse the query."""
        self._script.queries.append(query)
        if len(self._script.queries) > 20:
            raise RuntimeError("the partition is queried for ever")
        for record in self._script.records[query.token]:
            yield [record]
        if query.start > self._too_old:
            raise StartPastEndError("made-up", "out of range: past the end")
        raise StartTooOldError("made-up", "out of range: too far in the past")


async def test_a_refused_start_that_the_retention_covers_is_reported_and_not_asked_for_again_and_again() -> None:
    world = World(Script({T1: []}))
    world.catalog.retention = timedelta(days=7)
    world.table.clock.time = at("12:00:00")
    world.table.rows[T1] = SpannerPartition(token=T1, start=FIRST, watermark=at("10:00:00"))
    with pytest.raises(StartTooOldError):
        await asyncio.wait_for(world.reader(stream=RefusingStream(world.script, FIRST)).run(Stop()), 5)
    assert asked(world, T1) == [at("10:00:00"), FIRST]


async def test_a_stop_before_the_first_inspection_of_the_schema_is_answered_ends_it() -> None:
    world, stop = World(Script({})), Stop()
    world.catalog.silent = True
    reading = asyncio.create_task(world.reader().run(stop))
    await asyncio.sleep(3)
    stop.request()
    await asyncio.wait_for(reading, 9)
