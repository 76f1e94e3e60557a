"""The topic that a partition table belongs to: changed by command; a start requests resyncs where it lost messages."""

from typing import TextIO

from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.stream.topic_table import SpannerTopicStore
from services.spanner_reader.app.stream.topic_loss import request_resyncs
from services.spanner_reader.commands.snapshot import COMMAND_RETRY_BUDGET
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.stores import databases, open_channels, partition_store, topic_of
from shared.reading.answers import answer_topic
from shared.runtime.health import Health
from shared.runtime.retries import retried
from shared.runtime.stop import Stop, until_stopped


async def change_topic(settings: Settings, out: TextIO, *, as_json: bool) -> int:
    """Let the readers, none of which may be there, publish to another topic from now on.

    MisconfiguredError where no topic is remembered: the start does that.
    """
    topic = topic_of(settings).identity
    async with open_channels(settings) as channels:
        _database, partitions = databases(settings, channels)
        await partitions.learn_dialect()
        store = partition_store(settings, partitions, owner="command")
        before = None
        if await store.exists():
            await store.is_empty()  # refuses another stream's; a first start that was killed may have left it empty
            topics = SpannerTopicStore(partitions, settings.partition_table)
            before = await retried(Stop(), lambda: topics.replace(topic), COMMAND_RETRY_BUDGET)
    return answer_topic(before, topic, out, as_json=as_json)


async def request_resyncs_if_resumed(settings: Settings, stop: Stop, health: Health) -> None:
    """Request a resync of the tables of a topic that lost messages, if they were read into it before."""
    async with open_channels(settings) as channels:
        _database, partitions = databases(settings, channels)
        store = partition_store(settings, partitions, owner="start")
        shapes = SpannerShapeStore(partitions, settings.partition_table)
        topics = SpannerTopicStore(partitions, settings.partition_table)

        async def request_if_read() -> None:
            await partitions.learn_dialect()
            if await store.exists() and not await store.is_empty():
                await topics.check(topic_of(settings).identity)
                kept, recheck = settings.keep_messages_for, settings.check_subscriptions_every
                await request_resyncs(store, shapes, kept=kept, recheck=recheck)

        await until_stopped(stop, retried(stop, health.attempting(request_if_read)))
