"""The topic that a stream in the partition table belongs to: readers of another one are refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.adapters.stream.partition_table import BigtablePartitionStore
from services.bigtable_reader.adapters.stream.topic_cell import keep_topic, replace_topic
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.contract.bigtable_partitions import PARTITION_TABLE, BreakingChannels, a_store, a_stream, begun

pytestmark = pytest.mark.integration


@pytest.fixture
@asynccontextmanager
async def channels(bigtable_emulator: str) -> AsyncIterator[BigtableChannels]:
    """Return connections of a test's own."""
    channels = BigtableChannels(bigtable_emulator)
    try:
        yield channels
    finally:
        await channels.close()


async def test_the_first_topic_of_each_stream_stays_and_another_is_refused(channels: BigtableChannels) -> None:
    await create_partition_table(channels, PartitionRows(channels, PARTITION_TABLE, "any"))
    one, other = a_stream(), a_stream()
    for stream, topic in ((one, "projects/p/topics/ours"), (other, "projects/p/topics/theirs")):
        store, rows = a_store(channels, stream, "reader", [0.0]), PartitionRows(channels, PARTITION_TABLE, stream)
        await begun(store, "-m", "m-")
        await keep_topic(rows, topic)
        await rows.write_topic("projects/p/topics/late")  # of one who saw none, and writes after another
        await store.pause()
        await store.resume()
        await keep_topic(rows, topic)
        assert len((await store.survey()).stream_ranges) == 2
        with pytest.raises(
            MisconfiguredError,
            match=f"publish to {topic}, and this one would to .*Fix TOPIC .*another PARTITION_TABLE",
        ):
            await keep_topic(rows, "projects/p/topics/x")


async def a_reader_and_a_command(
    channels: BigtableChannels,
) -> tuple[PartitionRows, BigtablePartitionStore, BigtablePartitionStore]:
    """Return the rows of a stream that a reader reads, and the stores of that reader and of a command."""
    await create_partition_table(channels, PartitionRows(channels, PARTITION_TABLE, "any"))
    stream = a_stream()
    reader, command = (a_store(channels, stream, owner, [0.0]) for owner in ("reader", "command"))
    await begun(reader, "-m", "m-")
    return PartitionRows(channels, PARTITION_TABLE, stream), reader, command


async def test_the_topic_changes_only_while_no_reader_runs(channels: BigtableChannels) -> None:
    rows, reader, command = await a_reader_and_a_command(channels)
    assert await replace_topic(rows, "theirs", command.require_no_reader) is None  # and none is remembered
    assert await rows.topic() is None
    await keep_topic(rows, "ours")
    with pytest.raises(MisconfiguredError, match=r"still read .* \(reader\): stop all of them first"):
        await replace_topic(rows, "theirs", command.require_no_reader)
    await keep_topic(rows, "ours")
    await reader.leave()
    assert await replace_topic(rows, "theirs", command.require_no_reader) == "ours"
    await keep_topic(rows, "theirs")
    with pytest.raises(MisconfiguredError, match="publish to theirs, and this one would to ours"):
        await keep_topic(rows, "ours")


async def test_a_change_of_the_topic_whose_answer_was_lost_is_known_for_ones_own(
    channels: BigtableChannels, bigtable_emulator: str
) -> None:
    rows, reader, command = await a_reader_and_a_command(channels)
    await keep_topic(rows, "ours")
    await reader.leave()
    breaking = BreakingChannels(bigtable_emulator, {2: "after"})  # a read, then the write
    try:
        asked = PartitionRows(breaking, PARTITION_TABLE, rows.stream)
        assert await replace_topic(asked, "theirs", command.require_no_reader) == "ours"
        breaking.restart_counting({2: "before"})
        with pytest.raises(TransientError):
            await replace_topic(asked, "ours", command.require_no_reader)
        assert await rows.topic() == "theirs"
    finally:
        await breaking.close()


async def test_a_reader_that_stood_still_while_the_topic_was_changed_claims_nothing_more(
    channels: BigtableChannels,
) -> None:
    rows, command, _another = await a_reader_and_a_command(channels)
    reader = a_store(channels, rows.stream, "reader", [0.0], topic="ours")
    await keep_topic(rows, "ours")
    stream_ranges = (await reader.survey()).stream_ranges
    assert await rows.write_topic("theirs", "ours")
    for call in (reader.survey(), reader.claim(stream_ranges)):
        with pytest.raises(MisconfiguredError, match="publish to theirs, and this one would to ours"):
            await call
    assert len((await command.survey()).stream_ranges) == 2  # who publishes nothing may look


async def test_a_reader_that_comes_while_the_topic_changes_is_found(channels: BigtableChannels) -> None:
    rows, reader, command = await a_reader_and_a_command(channels)
    await keep_topic(rows, "ours")
    await reader.leave()
    inspections = 0

    async def require_no_reader() -> None:
        nonlocal inspections
        await command.require_no_reader()
        inspections += 1
        if inspections == 1:  # it is counted before it reads the topic, as a start does
            await reader.survey()
            await keep_topic(rows, "ours")

    with pytest.raises(MisconfiguredError, match="stop all of them first"):
        await replace_topic(rows, "theirs", require_no_reader)
    assert await rows.topic() == "ours"
