"""The topic that belongs to a partition table: another one is refused, until it is changed on purpose."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import grpc
import pytest
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from deploy.local.platform.source import SpannerDatabase
from services.cdc_consumer.adapters.source_rows import opened_source
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.adapters.stream.topic_table import SpannerTopicStore
from services.spanner_reader.core.stream.records import ROOT
from services.spanner_reader.ports import SpannerProgress
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.stores import databases, partition_store, topic_of
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.names import published_to, short_name
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import a_topology, pull
from tests.integration.readers import refusal
from tests.worlds.spanner_pipeline import DDL, SpannerPipeline

pytestmark = pytest.mark.integration

ROWS = "python -m services.spanner_reader rows"

Scenario = Callable[[SpannerPartitionStore, SpannerTopicStore, SpannerTopicStore], Awaitable[None]]


@pytest.fixture(params=["GoogleSQL", "PostgreSQL"])
def kept(request: pytest.FixtureRequest, database: Callable[..., SpannerDatabase]) -> Callable[[Scenario], None]:
    """Return what runs a scenario with a partition table and two readers' views of its topic."""
    made = database(postgresql=request.param == "PostgreSQL")

    async def opened(scenario: Scenario) -> None:
        channels = SpannerChannels(made.instance.address)
        try:
            shared = SpannerDatabaseClient(made.path, channels)
            await shared.learn_dialect()
            lease = timedelta(seconds=3)
            partitions = SpannerPartitionStore(shared, "p", change_stream="s", owner="o", lease=lease, topic="ours")
            await partitions.create_table()
            await scenario(partitions, SpannerTopicStore(shared, "p"), SpannerTopicStore(shared, "p"))
        finally:
            await channels.close()

    return lambda scenario: asyncio.run(opened(scenario))


def test_the_first_topic_stays_and_another_is_refused(kept: Callable[[Scenario], None]) -> None:
    async def scenario(_partitions: SpannerPartitionStore, ours: SpannerTopicStore, theirs: SpannerTopicStore) -> None:
        await ours.check("projects/p/topics/ours")  # none is remembered
        await ours.keep("projects/p/topics/ours")
        await theirs.keep("projects/p/topics/ours")
        for refuses in (theirs.keep, theirs.check):
            with pytest.raises(MisconfiguredError) as refused:
                await refuses("projects/p/topics/theirs")
            message = str(refused.value)
            assert "publish to projects/p/topics/ours, and this one would to projects/p/topics/theirs" in message
            for fix in (
                "Fix TOPIC",
                "another PARTITION_TABLE",
                "`python -m services.spanner_reader topic` with the new",
            ):
                assert fix in message
        await ours.check("projects/p/topics/ours")

    kept(scenario)


def test_of_two_that_come_first_at_once_one_is_refused(kept: Callable[[Scenario], None]) -> None:
    async def scenario(_partitions: SpannerPartitionStore, ours: SpannerTopicStore, theirs: SpannerTopicStore) -> None:
        await asyncio.gather(ours.keep("ours"), theirs.keep("theirs"), return_exceptions=True)
        refused = 0
        for topic in ("ours", "theirs"):  # again, as one that met the other's transaction does
            try:
                await ours.keep(topic)
            except MisconfiguredError:
                refused += 1
        assert refused == 1

    kept(scenario)


def test_the_topic_changes_only_while_no_reader_runs(kept: Callable[[Scenario], None]) -> None:
    async def scenario(partitions: SpannerPartitionStore, ours: SpannerTopicStore, theirs: SpannerTopicStore) -> None:
        assert await theirs.replace("theirs") is None  # and none is remembered
        await ours.keep("ours")
        await partitions.attend()
        with pytest.raises(MisconfiguredError, match="stop all of them"):
            await theirs.replace("theirs")
        await ours.check("ours")
        await partitions.attend(leave=True)
        assert await theirs.replace("theirs") == "ours"
        await theirs.keep("theirs")
        with pytest.raises(MisconfiguredError):
            await ours.keep("ours")

    kept(scenario)


def test_a_reader_that_stood_still_while_the_topic_was_changed_reads_nothing_more(
    kept: Callable[[Scenario], None],
) -> None:
    async def scenario(partitions: SpannerPartitionStore, ours: SpannerTopicStore, theirs: SpannerTopicStore) -> None:
        await ours.keep("ours")
        start = Nanoseconds(time.time_ns())
        await partitions.add_root(start, None)
        (owned,) = await partitions.claim([ROOT], None)
        assert await partitions.advance([SpannerProgress(owned, start)]) == frozenset()
        assert await theirs.replace("theirs") == "ours"  # no reader is there, by what is known
        later = SpannerProgress(owned, Nanoseconds(start + 1_000_000_000))
        for call in (partitions.survey(), partitions.advance([later]), partitions.finish(later, [])):
            with pytest.raises(MisconfiguredError, match="publish to theirs, and this one would to ours"):
                await call

    kept(scenario)


@pytest.fixture
def pipeline(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> SpannerPipeline:
    """Return a pipeline with a database and a topic of its own."""
    return spanner_pipeline(database(*DDL), database())


def test_rows_are_not_published_to_another_topic_and_are_read_wherever_that_is(
    pipeline: SpannerPipeline, channel: grpc.Channel
) -> None:
    other = a_topology(channel)
    elsewhere = {"TOPIC": short_name(other.topic), "DEAD_LETTER_TOPIC": short_name(other.dead_letter_topic)}
    pipeline.start()
    with opened_source(ROWS, {**os.environ, **pipeline.environment(), **elsewhere}, Stop()) as rows:
        _batches, done = rows.read_keys("Planes", [("1",)])
        assert (done.rows, done.absent) == (0, 1)
        ours = published_to(pipeline.database.instance.project, pipeline.topology.topic, pipeline.pubsub)
        with pytest.raises(MisconfiguredError, match=f"publish to {ours}"):
            rows.publish("Planes", [("1",)])
    assert pull(channel, other.subscription) == []


def test_after_a_first_start_that_was_killed_before_the_stream_began_the_topic_can_be_changed(
    pipeline: SpannerPipeline, channel: grpc.Channel
) -> None:
    settings = read_settings(Settings, pipeline.environment())

    async def killed() -> None:
        channels = SpannerChannels(settings.spanner_emulator_host)
        try:
            _database, partitions = databases(settings, channels)
            await partitions.learn_dialect()
            await partition_store(settings, partitions, owner="killed").create_table()
            await SpannerTopicStore(partitions, settings.partition_table).keep(topic_of(settings).identity)
        finally:
            await channels.close()

    asyncio.run(killed())
    other = a_topology(channel)
    meant = {"TOPIC": short_name(other.topic), "DEAD_LETTER_TOPIC": short_name(other.dead_letter_topic)}
    assert "run `python -m services.spanner_reader topic`" in pipeline.refused(**meant)

    code, output = pipeline.run_command("topic", **meant)
    assert code == 0, output
    begun = pipeline.start(**meant)
    assert events(begun, "first_start")


def test_a_subscription_deleted_while_the_reader_runs_stops_it(pipeline: SpannerPipeline) -> None:
    reader = pipeline.start(CHECK_SUBSCRIPTIONS_EVERY="1s")
    pipeline.write()
    pipeline.wait_for_all()
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=pipeline.channel))
    client.delete_subscription(request={"subscription": pipeline.topology.subscription}, timeout=10)
    output = refusal(reader)
    assert '"topic_loses_messages"' in output
    assert "may be lost" in output
    (row,) = pipeline.partitions.query("SELECT COUNT(*) AS held FROM millrace_partitions WHERE lease_until IS NOT NULL")
    assert row == {"held": 0}
    (kept,) = pipeline.partitions.query("SELECT needs_resync FROM millrace_partitions_tables WHERE shape LIKE '{%'")
    assert "table_changes_lost_by_the_topic" in str(kept["needs_resync"])
