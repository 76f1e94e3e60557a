"""Several streams in one partition table: what a first start does about another name of its own source table."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.stream import partition_rows
from services.bigtable_reader.adapters.stream.partition_cells import Lease, PartitionContent, PartitionRow
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.adapters.stream.partition_table import BigtablePartitionStore
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.stream import topology as shape
from services.bigtable_reader.core.stream.partitions import StreamRangeId
from services.bigtable_reader.core.stream.records import ALL_KEYS, Microseconds, Position
from shared.contracts.errors import MisconfiguredError
from tests.contract.bigtable_partitions import (
    LEASE,
    PARTITION_TABLE,
    BreakingChannels,
    a_store,
    a_stream,
    begun,
    reached,
    span,
    take,
)
from tests.contract.bigtable_rigs import replace_cell


@pytest.fixture
@asynccontextmanager
async def channels(bigtable_emulator: str) -> AsyncIterator[BreakingChannels]:
    channels = BreakingChannels(bigtable_emulator)
    try:
        await create_partition_table(channels, PartitionRows(channels, PARTITION_TABLE, "any"))
        yield channels
    finally:
        await channels.close()


def two_names(channels: BigtableChannels) -> tuple[str, BigtablePartitionStore, BigtablePartitionStore]:
    """Return the older of two names of one source table, and a reader of each."""
    old, new = a_stream(), a_stream()
    return (
        old,
        a_store(channels, old, "old-reader", [0.0], source=f"table of {old}"),
        a_store(channels, new, "new-reader", [0.0], source=f"table of {old}"),
    )


async def test_a_new_name_is_refused_while_a_reader_of_the_old_one_is_there(channels: BreakingChannels) -> None:
    name, old, new = two_names(channels)
    await begun(old, "-")
    (owned,) = await take(old, "a")
    start = (await new.survey()).now
    with pytest.raises(MisconfiguredError, match=f"{name}#reader#old-reader.*Stop all of them first"):
        await new.begin([span("-")], start)
    assert (await new.survey()).stream_ranges == ()

    await old.advance([reached(owned, reserved_up_to=10**9)], release=True)
    await old.leave()
    assert await new.begin([span("-")], start)
    survey = await new.survey()
    (stream_range,) = survey.stream_ranges
    assert stream_range.min_version > owned.min_version + 10**9
    assert survey.resync_request is not None, "what changed between the two is in no record"
    assert [(one.kind, one.run) for one in survey.resync_request.findings] == [(BigtableResyncKind.ANOTHER_NAME, 0)]
    assert (await old.survey()).resync_request is None


async def test_a_change_log_alone_that_is_begun_again_is_never_pending_resync(channels: BreakingChannels) -> None:
    _name, old, new = two_names(channels)
    await begun(old, "-")
    await old.leave()
    assert await new.begin([span("-")], (await new.survey()).now, mirrored=False)
    assert (await new.survey()).resync_request is None


@pytest.mark.parametrize(("leases", "counts"), [(2, True), (4, False)])
async def test_a_reader_that_died_counts_for_some_leases(channels: BreakingChannels, leases: int, counts: bool) -> None:
    name, old, new = two_names(channels)
    await begun(old, "-")
    now = (await new.survey()).now
    died = (now - leases * LEASE.seconds * 1_000_000) // 1000 * 1000
    await replace_cell(channels, f"{name}#reader#old-reader", "reader", b"present", b"dead", died)
    if counts:
        with pytest.raises(MisconfiguredError, match="old-reader"):
            await new.begin([span("-")], now)
    else:
        assert await new.begin([span("-")], now)


async def test_a_partition_table_is_read_in_pages(channels: BreakingChannels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_rows, "_PAGE", 2)
    table = Table(PARTITION_TABLE.instance, f"pages{a_stream()}")
    one, other = PartitionRows(channels, table, "one"), PartitionRows(channels, table, "other")
    await create_partition_table(channels, one)
    first = shape.begin([ALL_KEYS], life="x", start=Microseconds(1), min_version=7)
    await other.write_topology(None, first, "source", "mark")
    for number in range(6):
        content = PartitionContent("o", Position(start=Microseconds(1)), Microseconds(1), 100 * number)
        lease = Lease(1, 0, "claim", "RUNNING")
        await other.write_partition(StreamRangeId(f"x.1.{number}"), None, PartitionRow(lease, content))
        await other.attend(f"reader{number}", "mark")
    await one.attend("me", "mark")

    channels.restart_counting()
    assert await one.highest_version() == 500
    assert channels.requests == ["ReadRows"] * 4  # seven rows
    found = await one.streams_elsewhere("source")
    assert found.keys() == {"other"}
    assert sorted(found["other"]) == [f"other#reader#reader{number}" for number in range(6)]
    assert await other.streams_elsewhere("source") == {}
    assert await one.streams_elsewhere("another") == {}
