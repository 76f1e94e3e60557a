"""What ends a reader, or keeps it from starting, is what a look finds: the table is marked before the end."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from services.bigtable_reader.app.schema.last_inspection import inspect_before_the_end, request_resync_if_resumed
from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.schema.seen import ANY, InspectedTable
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.stream.records import ALL_KEYS
from services.bigtable_reader.ports import StreamGoneError
from shared.contracts.errors import MessagesLostError, MisconfiguredError, TransientError
from shared.runtime.stop import Stop
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_reader import FakeCatalog
from tests.fakes.bigtable_resync import FakeResyncStore
from tests.fakes.bigtable_snapshots import FakeSnapshotStore, SnapshotTable
from tests.fakes.bigtable_table import EPOCH, VirtualClock
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.bigtable_reader.snapshot_world import SnapshotWorld, a_filled_world
from tests.unit.bigtable_reader.world import LEASE


class WithoutStream(FakeCatalog):
    """What there is to see of a table whose change stream is disabled."""

    async def seen(self) -> InspectedTable:
        """Find none."""
        raise StreamGoneError("made-up", "it no longer has a change stream")


def test_a_stream_whose_reading_is_refused_because_it_is_disabled_marks_the_table_before_the_reader_ends() -> None:
    async def scenario() -> None:
        world = SnapshotWorld(Random(0))
        await a_filled_world(world, [b"a"])
        reader = world.start()
        await world.wait_until_snapshots_are_over()
        assert not world.is_marked()
        world.table.has_stream = False  # and it has one again before anybody looks
        world.table.write(b"a")
        with pytest.raises(StreamGoneError):
            await reader.task
        resync_request = world.resync_request
        assert resync_request is not None
        assert [one.kind for one in resync_request.findings] == [BigtableResyncKind.STREAM_DISABLED]

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("lost", [True, False])
def test_what_the_topic_has_lost_marks_the_table_before_the_reader_ends(lost: bool) -> None:
    async def scenario() -> None:
        world = SnapshotWorld(Random(0))
        await a_filled_world(world, [b"a"])
        reader = world.start()
        await world.wait_until_snapshots_are_over()
        kind = MessagesLostError if lost else MisconfiguredError  # the other: they would be kept for too short a time
        world.subscriptions.error = kind("made-up", "topic t would lose messages")
        with pytest.raises(MisconfiguredError, match="would lose messages"):
            await reader.task
        resync_request = world.resync_request
        assert ([] if resync_request is None else [one.kind for one in resync_request.findings]) == (
            [BigtableResyncKind.TOPIC_LOST] if lost else []
        )

    run_in_virtual_time(scenario())


def test_a_profile_that_comes_to_allow_no_condition_marks_the_table_once_it_routes_back() -> None:
    async def scenario() -> None:
        world = SnapshotWorld(Random(0))
        await a_filled_world(world, [b"a"])
        reader = world.start()
        await world.wait_until_snapshots_are_over()
        await asyncio.sleep(60)
        there, elsewhere = world.catalog.found, replace(world.catalog.found, routed_to=ANY)
        world.catalog.found, world.partitions.unconditional = elsewhere, True
        with pytest.raises(MisconfiguredError, match="--route-to=c1"):  # the fix, and not that a lease is refused
            await reader.task
        assert not world.is_marked()
        world.readers.clear()
        world.catalog.found, world.partitions.unconditional = there, False
        world.start()
        await asyncio.sleep(60)
        assert world.resync_request is not None
        assert [one.kind for one in world.resync_request.findings] == [BigtableResyncKind.ROUTED_ELSEWHERE]
        await world.end()

    run_in_virtual_time(scenario())


def refused(
    catalog: FakeCatalog, table: PartitionTable, begin: bool = True, fails: Callable[[], bool] = lambda: False
) -> None:
    """Let a start be refused."""

    async def step() -> None:
        if fails():
            raise TransientError("away")

    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        store = FakePartitionStore(table, "reader", LEASE, clock)
        if begin:
            await store.begin([ALL_KEYS], EPOCH)
            await store.remember(await FakeCatalog("f").seen())
        asked = FakeSnapshotStore(SnapshotTable(), "", LEASE, clock)
        resync_requests = ResyncRequests(
            FakeResyncStore(table, step=step), asked, lambda _family: True, VirtualClock(), Watching()
        )
        await inspect_before_the_end(MisconfiguredError("made-up", "refused"), catalog, store, resync_requests, Stop())

    run_in_virtual_time(scenario())


def kinds(table: PartitionTable) -> list[str]:
    return [] if table.resync is None else [one.kind for one in table.resync.findings]


def test_a_start_that_is_refused_because_the_stream_is_disabled_marks_the_table_and_says_so() -> None:
    table = PartitionTable(VirtualClock().now)
    with pytest.raises(StreamGoneError):
        refused(WithoutStream("f"), table)
    assert kinds(table) == [BigtableResyncKind.STREAM_DISABLED]


def test_a_start_that_is_refused_because_of_the_profile_leaves_a_note_and_names_the_fix() -> None:
    table, catalog = PartitionTable(VirtualClock().now), FakeCatalog("f")
    catalog.found, table.unconditional = replace(catalog.found, routed_to=ANY), True
    with pytest.raises(MisconfiguredError, match="--route-to=c1"):
        refused(catalog, table)
    assert table.notes == {BigtableResyncKind.ROUTED_ELSEWHERE}


def test_the_mark_is_written_again_until_it_is_there() -> None:
    table, failures = PartitionTable(VirtualClock().now), iter([True, True])
    with pytest.raises(StreamGoneError), capture_logs():
        refused(WithoutStream("f"), table, fails=lambda: next(failures, False))
    assert kinds(table) == [BigtableResyncKind.STREAM_DISABLED]


def test_a_start_that_is_refused_for_something_else_or_of_a_stream_that_is_not_known_marks_nothing() -> None:
    for catalog, begin in ((FakeCatalog("f"), True), (WithoutStream("f"), False)):
        table = PartitionTable(VirtualClock().now)
        refused(catalog, table, begin)
        assert kinds(table) == []


def test_what_a_topic_has_lost_marks_no_table_of_which_only_a_change_log_is_kept() -> None:
    async def scenario(mirrored: bool) -> Sequence[str]:
        clock, table = asyncio.get_running_loop().time, PartitionTable(VirtualClock().now)
        store = FakePartitionStore(table, "reader", LEASE, clock)
        await store.begin([ALL_KEYS], EPOCH)
        asked = FakeSnapshotStore(SnapshotTable(), "", LEASE, clock)
        watching = Watching(mirrored=mirrored)
        resync_requests = ResyncRequests(FakeResyncStore(table), asked, lambda _family: True, VirtualClock(), watching)

        async def same_topic() -> None: ...

        await request_resync_if_resumed(store, same_topic, resync_requests)
        return kinds(table)

    assert run_in_virtual_time(scenario(mirrored=True)) == [BigtableResyncKind.TOPIC_LOST]
    assert run_in_virtual_time(scenario(mirrored=False)) == []
