"""The topic that a stream in the partition table belongs to: readers of another one are refused."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import grpc
import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.adapters.stream.topic_cell import keep_topic
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.names import published_to, short_name
from tests.contract.bigtable_partitions import PARTITION_TABLE, a_store, a_stream, begun
from tests.integration.bigtable_front import PROJECT, Front, set_cell
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import a_topology
from tests.integration.readers import refusal, refused_without_a_subscription
from tests.worlds.bigtable_pipeline import BigtablePipeline

pytestmark = pytest.mark.integration


def test_the_first_topic_of_each_stream_stays_and_another_is_refused(bigtable_emulator: str) -> None:
    async def scenario(channels: BigtableChannels) -> None:
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

    async def run() -> None:
        channels = BigtableChannels(bigtable_emulator)
        try:
            await scenario(channels)
        finally:
            await channels.close()

    asyncio.run(run())


@pytest.fixture
def pipeline(front: Front, bigtable_pipeline: Callable[..., BigtablePipeline]) -> BigtablePipeline:
    """Return a pipeline on a table of its own, with the family f."""
    return bigtable_pipeline(front.table("f"))


def test_a_reader_with_another_topic_is_refused_at_its_start_with_both_names(pipeline: BigtablePipeline) -> None:
    other = a_topology(pipeline.channel)
    reader = pipeline.start()
    refused = pipeline.launch(TOPIC=short_name(other.topic))
    refusal(refused)
    (told,) = events(refused, "service_misconfigured")
    for topic in (pipeline.topology.topic, other.topic):
        assert published_to(PROJECT, topic, pipeline.pubsub) in told["error"]
    pipeline.table.write(b"row", set_cell("f", b"q", b"1"))
    pipeline.wait_until_equal("f")
    reader.ask_to_end()
    assert reader.wait(timedelta(seconds=10)) == 0
    reader.end()
    pipeline.start()  # and its own topic is as good as ever
    pipeline.table.write(b"row", set_cell("f", b"q", b"2"))
    pipeline.wait_until_equal("f")


def test_a_resumed_start_without_a_subscription_requests_a_resync_before_it_is_refused(
    pipeline: BigtablePipeline, channel: grpc.Channel
) -> None:
    refused_without_a_subscription(pipeline, pipeline.topology, channel)

    (mark,) = pipeline.status()[1]["pending_resync"]
    assert [why["kind"] for why in mark["why"]] == [BigtableResyncKind.TOPIC_LOST]
