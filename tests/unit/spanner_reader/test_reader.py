import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

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
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import FakeChangeStream, FakePublisher, Script
from tests.unit.spanner_reader.scripts import COLUMNS, World, a_record, at, children, running, until

START = at("09:00:00")
FIRST = at("09:00:01")
MERGE = at("09:30:15")
T1, T2, T3, T4 = (PartitionToken(f"child_token_{n}") for n in range(1, 5))


def seed_workflow() -> World:
    """Return the documentation's worked example: three first partitions, of which two are merged into a fourth."""
    merge = children(MERGE, T4, parents=[T2, T3])
    records: dict[PartitionToken, list[StreamRecord]] = {
        ROOT: [a_record(START, 10), children(FIRST, T1, T2), children(FIRST, T3, sequence="1000012390")],
        T1: [a_record(at("09:10:00"), 1), a_record(at("09:40:00"), 2)],
        T2: [a_record(at("09:10:00"), 3), merge],
        T3: [a_record(at("09:20:00"), 4), merge],
        T4: [a_record(MERGE, 5)],
    }
    return World(Script(records, gates={T2: asyncio.Event(), T3: asyncio.Event()}))


async def turns(number: int = 200) -> None:
    """Let everything happen that can."""
    for _turn in range(number):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def asked(world: World, token: PartitionToken) -> list[Nanoseconds]:
    return [query.start for query in world.script.queries if query.token == token]


@pytest.mark.parametrize(("first", "second"), [(T2, T3), (T3, T2)])
def test_the_worked_example_reads_a_merged_partition_once_and_after_both_parents(
    first: PartitionToken, second: PartitionToken
) -> None:
    async def scenario() -> None:
        world = seed_workflow()
        await world.add_root(START)
        async with running(world.reader()):
            await until(lambda: {T1, T2, T3} <= world.script.open_queries)  # in parallel
            world.script.gates[first].set()
            await until(lambda: world.table.rows[first].state is PartitionState.FINISHED)
            await turns()
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
        assert world.metrics.merged == 1
        assert world.metrics.split == 0

    run(scenario)


@pytest.mark.parametrize(("first", "second"), [(T2, T3), (T3, T2)])
def test_the_worked_example_with_a_restart_between_the_two_parents(
    first: PartitionToken, second: PartitionToken
) -> None:
    async def scenario() -> None:
        world = seed_workflow()
        await world.add_root(START)
        async with running(world.reader(owner="one")):
            await until(lambda: {T1, T2, T3} <= world.script.open_queries)
            world.script.gates[first].set()
            await until(lambda: world.table.rows[first].state is PartitionState.FINISHED)
        assert asked(world, T4) == []
        async with running(world.reader(owner="two")):
            await until(lambda: {T1, second} <= world.script.open_queries)
            await turns()
            assert asked(world, T4) == []
            world.script.gates[second].set()
            await until(lambda: T4 in world.script.open_queries)

        assert len(asked(world, first)) == 1  # finished is finished
        assert asked(world, T4) == [MERGE]
        assert world.metrics.merged == 1

    run(scenario)


def test_what_becomes_of_each_partition_is_logged_for_debugging_only() -> None:
    async def scenario() -> None:
        world = seed_workflow()
        await world.add_root(START)
        with capture_logs() as logs:
            async with running(world.reader()):
                await until(lambda: {T1, T2, T3} <= world.script.open_queries)
        levels = {one["event"]: one["log_level"] for one in logs if one["event"].startswith("partition_")}
        assert levels == {"partition_claimed": "debug", "partition_finished": "debug"}

    run(scenario)


def test_a_partition_is_finished_only_after_everything_of_it_is_confirmed() -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [a_record(START), children(FIRST, T1)], T1: []}))
        await world.add_root(START)
        publisher = FakePublisher(world.topic, by_hand=True)
        async with running(world.reader(publisher=publisher)):
            await until(lambda: len(publisher.waiting) == 2)  # the announcement and the record
            await turns()
            assert world.table.rows[ROOT].state is not PartitionState.FINISHED
            assert T1 not in world.table.rows
            for future in list(publisher.waiting):
                publisher.confirm(future)
            await until(lambda: world.table.rows[ROOT].state is PartitionState.FINISHED)
            assert T1 in world.table.rows

    run(scenario)


def test_the_watermark_follows_the_longest_confirmed_prefix_and_never_an_unconfirmed_record() -> None:
    async def scenario() -> None:
        times = [at(f"09:00:0{n}") for n in range(3)]
        world = World(Script({ROOT: [a_record(time) for time in times] + [HeartbeatRecord(at("09:00:09"))]}))
        await world.add_root(START)
        publisher = FakePublisher(world.topic, by_hand=True)
        async with running(world.reader(publisher=publisher)):
            await until(lambda: len(publisher.waiting) == 4)
            for index in (3, 1):  # the last record and the first
                publisher.confirm(publisher.waiting[index])
            await turns()
        assert world.table.rows[ROOT].watermark == times[0]  # as the stop saved it
        assert world.table.rows[ROOT].lease_until is None

        publisher = FakePublisher(world.topic)
        async with running(world.reader(owner="two", publisher=publisher)):
            await until(lambda: world.metrics.published_changes == 5)
        assert asked(world, ROOT) == [START, times[0]]  # again, from there, inclusive
        assert world.table.rows[ROOT].watermark == at("09:00:09")

    run(scenario)


def test_a_broken_query_starts_again_at_the_watermark_and_is_never_taken_for_the_end() -> None:
    async def scenario() -> None:
        times = [at(f"09:00:0{n}") for n in range(4)]
        world = World(
            Script({ROOT: [*(a_record(time) for time in times), children(FIRST, T1)], T1: []}, breaks={ROOT: [0, 2, 3]})
        )
        await world.add_root(START)
        async with running(world.reader()):
            await until(lambda: T1 in world.script.open_queries)
        assert len(asked(world, ROOT)) == 4
        assert {change.commit_timestamp for change in world.topic.changes} == {
            f"2022-05-01T09:00:0{n}Z" if n else "2022-05-01T09:00:00Z" for n in range(4)
        }

    run(scenario)


def test_a_query_broken_after_its_child_records_finishes_nothing() -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [a_record(START), children(FIRST, T1)], T1: []}, breaks={ROOT: [2, 2]}))
        await world.add_root(START)
        async with running(world.reader()):
            await until(lambda: T1 in world.script.open_queries)
        assert len(asked(world, ROOT)) == 3
        assert set(asked(world, ROOT)) == {START}  # child records move no watermark

    run(scenario)


def test_a_stream_that_ends_without_children_starts_again() -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [a_record(START), children(FIRST, T1)], T1: []}, breaks={}))
        await world.add_root(START)
        world.script.ends_early[ROOT] = 2
        async with running(world.reader()):
            await until(lambda: T1 in world.script.open_queries)
        assert len(asked(world, ROOT)) == 3

    run(scenario)


def test_every_partition_stops_at_the_end_and_a_later_start_goes_on_from_there() -> None:
    async def scenario() -> None:
        world = seed_workflow()
        for gate in world.script.gates.values():
            gate.set()
        world.table.clock.time = at("12:00:00")
        await world.add_root(START)
        await asyncio.wait_for(world.reader(end=at("09:15:00")).run(Stop()), 5)
        assert sorted(c.commit_timestamp for c in world.topic.changes) == [
            "2022-05-01T09:00:00Z",
            "2022-05-01T09:10:00Z",
            "2022-05-01T09:10:00Z",
        ]
        assert {query.end for query in world.script.queries} == {at("09:15:00")}
        assert T4 not in world.table.rows

        await asyncio.wait_for(world.reader(end=at("10:00:00"), owner="two").run(Stop()), 5)
        assert len(world.topic.changes) == 6  # each once: the end was exact
        assert asked(world, T1) == [FIRST, Nanoseconds(at("09:15:00") + 1)]

    run(scenario)


def test_a_partition_that_begins_at_the_very_end_is_read() -> None:
    async def scenario() -> None:
        world = seed_workflow()
        for gate in world.script.gates.values():
            gate.set()
        world.table.clock.time = at("12:00:00")
        await world.add_root(START)
        await asyncio.wait_for(world.reader(end=MERGE).run(Stop()), 5)
        assert asked(world, T4) == [MERGE]
        assert any(change.commit_timestamp == "2022-05-01T09:30:15Z" for change in world.topic.changes)

    run(scenario)


def test_a_reader_whose_lease_was_taken_stops_publishing() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        world = World(Script({ROOT: [a_record(START), children(FIRST, T1)], T1: []}, gates={ROOT: gate}))
        await world.add_root(START)
        async with running(world.reader(lease=timedelta(milliseconds=60))):
            await until(lambda: ROOT in world.script.open_queries)
            row = world.table.rows[ROOT]
            world.table.rows[ROOT] = replace(  # taken by another, who will not give it back
                row, owner="other", fencing=row.fencing + 1, lease_until=Nanoseconds(world.table.clock.time * 2)
            )
            await until(lambda: ROOT not in world.script.open_queries)
            gate.set()
            await turns()
        assert world.table.rows[ROOT].owner == "other"
        assert world.table.rows[ROOT].state is not PartitionState.FINISHED
        assert T1 not in world.table.rows

    run(scenario)


def test_a_reader_that_cannot_renew_its_leases_stops_publishing_when_they_end() -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [a_record(START)]}))
        await world.add_root(START)
        async with running(world.reader(lease=timedelta(milliseconds=60))):
            await until(lambda: ROOT in world.script.open_queries)
            world.table.away = True
            await until(lambda: ROOT not in world.script.open_queries)
            world.table.away = False
            await until(lambda: ROOT in world.script.open_queries)  # and takes them again when it can

    run(scenario)


def test_leases_are_renewed_and_watermarks_saved_while_reading() -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [a_record(START), HeartbeatRecord(FIRST)]}))
        await world.add_root(START)
        async with running(world.reader(lease=timedelta(milliseconds=60))):
            await until(lambda: world.table.rows[ROOT].watermark == FIRST)
            assert world.table.rows[ROOT].state is PartitionState.RUNNING
            lease = world.table.rows[ROOT].lease_until
            world.table.clock.step(timedelta(milliseconds=50))
            await until(lambda: world.table.rows[ROOT].lease_until != lease)

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [MisconfiguredError("made-up", "topic not found: create it"), TransientError("what was read has to be read again")],
)
def test_a_publisher_that_has_given_up_ends_the_reader_and_what_was_confirmed_is_saved(error: Exception) -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [a_record(START), HeartbeatRecord(FIRST), a_record(at("09:00:02"))]}))
        await world.add_root(START)
        publisher = FakePublisher(world.topic, by_hand=True)
        task = asyncio.create_task(world.reader(publisher=publisher).run(Stop()))
        await until(lambda: len(publisher.waiting) == 3)
        publisher.confirm(publisher.waiting[1])
        publisher.error = error
        publisher.waiting[1].set_exception(error)
        with pytest.raises(type(error), match=re.escape(str(error))):
            await asyncio.wait_for(task, 5)
        assert world.table.rows[ROOT].watermark == FIRST
        assert world.table.rows[ROOT].lease_until is None

    run(scenario)


def test_a_full_publisher_holds_the_stream_back() -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [a_record(Nanoseconds(START + n), n) for n in range(50)]}))
        await world.add_root(START)
        publisher = FakePublisher(world.topic, by_hand=True, room=5)
        async with running(world.reader(publisher=publisher)):
            await until(lambda: len(publisher.waiting) == 5)
            await turns()
            assert world.metrics.read_changes <= 5
            while world.metrics.published_changes < 50:
                await until(lambda: bool(publisher.waiting))
                publisher.confirm(publisher.waiting[0])
                await asyncio.sleep(0)

    run(scenario)


def test_a_record_after_the_heartbeat_that_excluded_it_is_counted_and_published_all_the_same() -> None:
    async def scenario() -> None:
        heartbeat = HeartbeatRecord(at("12:35:00.312486"))
        late = [a_record(heartbeat.timestamp), a_record(at("12:34:00"))]
        world = World(Script({ROOT: [heartbeat, *late, a_record(at("12:36:00"))]}))
        await world.add_root(START)
        async with running(world.reader()):
            await until(lambda: len(world.topic.changes) == 3)
        assert world.metrics.violations == 2
        assert world.table.rows[ROOT].watermark == at("12:36:00")

    run(scenario)


def test_the_low_watermark_waits_for_the_slowest_partition() -> None:
    async def scenario() -> None:
        p1, p2 = PartitionToken("P1"), PartitionToken("P2")
        heartbeat = at("12:35:00.312486")
        world = World(
            Script(
                {
                    ROOT: [children(FIRST, p1, p2)],
                    p1: [HeartbeatRecord(heartbeat)],
                    p2: [a_record(at("12:34:59")), children(at("12:36:00"), T1, parents=[p2])],
                    T1: [],
                },
                gates={p2: asyncio.Event()},
            )
        )
        world.table.clock.time = at("12:40:00")
        await world.add_root(START)
        async with running(world.reader()):
            await until(lambda: world.metrics.low_watermark == at("12:34:59"))
            world.script.gates[p2].set()
            await until(lambda: world.metrics.low_watermark == heartbeat)
        assert world.table.rows[p1].watermark == heartbeat

    run(scenario)


def test_every_watched_table_is_announced_and_a_new_one_is_looked_up_once() -> None:
    async def scenario() -> None:
        album = replace(a_record(START), table="Albums")
        world = World(Script({ROOT: [album, replace(album, commit_timestamp=FIRST)]}))
        world.catalog.tables.append(WatchedTable("Empty", ("Id",), COLUMNS, "NEW_ROW"))
        await world.add_root(START)
        async with running(world.reader()):
            await until(lambda: len(world.topic.changes) == 2)
            await until(lambda: world.catalog.asked == 3)  # at the start, for the table, for its columns
            await asyncio.sleep(0.05)
        assert {header.table for header in world.topic.headers} == {"Singers", "Empty", "Albums"}
        assert world.catalog.asked == 3

    run(scenario)


def test_a_table_of_partitions_with_nothing_left_to_read_is_refused() -> None:
    async def scenario() -> None:
        world = World(Script({}))
        with pytest.raises(MisconfiguredError, match="PARTITION_TABLE"):
            await asyncio.wait_for(world.reader().run(Stop()), 5)

    run(scenario)


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


def test_a_start_that_is_refused_though_the_retention_covers_it_is_reported_and_not_asked_for_again_and_again() -> None:
    async def scenario() -> None:
        world = World(Script({T1: []}))
        world.catalog.retention = timedelta(days=7)
        world.table.clock.time = at("12:00:00")
        world.table.rows[T1] = SpannerPartition(token=T1, start=FIRST, watermark=at("10:00:00"))
        with pytest.raises(StartTooOldError):
            await asyncio.wait_for(world.reader(stream=RefusingStream(world.script, FIRST)).run(Stop()), 5)
        assert asked(world, T1) == [at("10:00:00"), FIRST]

    run(scenario)
