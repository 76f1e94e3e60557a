"""What ends a reader, or keeps it from starting, is what a look finds: the table is marked before the end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

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
from tests.unit.bigtable_reader.snapshot_world import a_read_world
from tests.unit.bigtable_reader.world import LEASE


class WithoutStream(FakeCatalog):
    """What there is to see of a table whose change stream is disabled."""

    async def seen(self) -> InspectedTable:
        """Find none."""
        raise StreamGoneError("made-up", "it no longer has a change stream")


async def test_a_reading_that_a_disabled_stream_refuses_requests_a_resync_before_the_reader_ends() -> None:
    world = await a_read_world([b"a"])
    (reader,) = world.readers
    assert not world.is_pending_resync()
    world.table.has_stream = False  # and it has one again before the next inspection
    world.table.write(b"a")
    with pytest.raises(StreamGoneError):
        await reader.task
    assert world.resync_kinds == [BigtableResyncKind.STREAM_DISABLED]


async def test_what_the_topic_has_lost_requests_a_resync_of_the_table_before_the_reader_ends() -> None:
    world = await a_read_world([b"a"])
    (reader,) = world.readers
    world.subscriptions.error = MessagesLostError("made-up", "topic t would lose messages")
    with pytest.raises(MisconfiguredError, match="would lose messages"):
        await reader.task
    assert world.resync_kinds == [BigtableResyncKind.TOPIC_LOST]


async def test_a_profile_that_comes_to_allow_no_condition_requests_a_resync_of_the_table_once_it_routes_back() -> None:
    world = await a_read_world([b"a"])
    (reader,) = world.readers
    await asyncio.sleep(60)
    there, elsewhere = world.catalog.found, replace(world.catalog.found, routed_to=ANY)
    world.catalog.found, world.partitions.unconditional = elsewhere, True
    with pytest.raises(MisconfiguredError, match="--route-to=c1"):  # the fix, and not that a lease is refused
        await reader.task
    assert not world.is_pending_resync()
    world.readers.clear()
    world.catalog.found, world.partitions.unconditional = there, False
    world.start()
    await asyncio.sleep(60)
    assert world.resync_kinds == [BigtableResyncKind.ROUTED_ELSEWHERE]
    await world.end()


def resync_requests_of(
    table: PartitionTable, watching: Watching, step: Callable[[], Awaitable[None]] | None = None
) -> ResyncRequests:
    resync = FakeResyncStore(table) if step is None else FakeResyncStore(table, step=step)
    asked = FakeSnapshotStore(SnapshotTable(), "", LEASE)
    return ResyncRequests(resync, asked, lambda _family: True, VirtualClock(), watching)


async def refused(
    catalog: FakeCatalog, table: PartitionTable, begin: bool = True, fails: Callable[[], bool] = lambda: False
) -> None:
    """Let a start be refused."""

    async def step() -> None:
        if fails():
            raise TransientError("away")

    store = FakePartitionStore(table, "reader", LEASE)
    if begin:
        await store.begin([ALL_KEYS], EPOCH)
        await store.remember(await FakeCatalog("f").seen())
    error, requests = MisconfiguredError("made-up", "refused"), resync_requests_of(table, Watching(), step)
    await inspect_before_the_end(error, catalog, store, requests, Stop())


def kinds(table: PartitionTable) -> list[str]:
    return [] if table.resync is None else [one.kind for one in table.resync.findings]


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_start_that_a_disabled_stream_refuses_tries_until_the_resync_request_is_stored(
    failures: int,
) -> None:
    table, fails = PartitionTable(), iter([True] * failures)
    with pytest.raises(StreamGoneError), capture_logs():
        await refused(WithoutStream("f"), table, fails=lambda: next(fails, False))
    assert kinds(table) == [BigtableResyncKind.STREAM_DISABLED]


async def test_a_start_that_is_refused_because_of_the_profile_leaves_a_note_and_names_the_fix() -> None:
    table, catalog = PartitionTable(), FakeCatalog("f")
    catalog.found, table.unconditional = replace(catalog.found, routed_to=ANY), True
    with pytest.raises(MisconfiguredError, match="--route-to=c1"):
        await refused(catalog, table)
    assert table.notes == {BigtableResyncKind.ROUTED_ELSEWHERE}


@pytest.mark.parametrize(
    ("catalog", "begin"),
    [
        pytest.param(FakeCatalog("f"), True, id="for something else"),
        pytest.param(WithoutStream("f"), False, id="of a stream that is not known"),
    ],
)
async def test_a_start_that_is_refused_otherwise_requests_no_resync(catalog: FakeCatalog, begin: bool) -> None:
    table = PartitionTable()
    await refused(catalog, table, begin)
    assert kinds(table) == []


@pytest.mark.parametrize(("mirrored", "found"), [(True, [BigtableResyncKind.TOPIC_LOST]), (False, [])])
async def test_what_a_topic_has_lost_requests_a_resync_of_no_table_of_which_only_a_change_log_is_kept(
    mirrored: bool, found: Sequence[str]
) -> None:
    table = PartitionTable()
    store = FakePartitionStore(table, "reader", LEASE)
    await store.begin([ALL_KEYS], EPOCH)

    async def same_topic() -> None: ...

    await request_resync_if_resumed(store, same_topic, resync_requests_of(table, Watching(mirrored=mirrored)))
    assert kinds(table) == found
    assert table.readers == {}, "this start will be refused"


async def test_a_start_that_finds_the_key_ranges_of_another_table_is_counted_no_more() -> None:
    table = PartitionTable()
    store = FakePartitionStore(table, "reader", LEASE)
    await store.begin([ALL_KEYS], EPOCH)
    survey = store.survey

    async def of_another() -> None:
        await survey()
        raise MisconfiguredError("partition-table-taken", "these key ranges are of another table")

    async def same_topic() -> None: ...

    store.survey = of_another  # type: ignore[assignment,method-assign]
    await request_resync_if_resumed(store, same_topic, resync_requests_of(table, Watching()))
    assert (kinds(table), table.readers) == ([], {})
