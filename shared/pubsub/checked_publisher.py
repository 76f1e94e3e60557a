"""A publisher for a command, which publishes now and then: opened where the topics keep what they are told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from shared.pubsub.channels import open_async_channel
from shared.pubsub.letters import AsyncDeadLetterPublisher
from shared.pubsub.packer import PackerLimits
from shared.pubsub.publisher import BatchPublisher, PublisherOptions
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.runtime.stop import Stop


@asynccontextmanager
async def checked_publisher(
    emulator_host: str | None,
    topic: str,
    dead_letter_topic: str,
    stop: Stop,
    *,
    keep_messages_for: timedelta,
    limits: PackerLimits,
    failed_in: str,
) -> AsyncIterator[BatchPublisher]:
    """Open one; MisconfiguredError where either topic would lose what is published, or keep it for too short a time."""
    await TopicSubscriptions(emulator_host, [topic, dead_letter_topic], keep_messages_for).check()
    async with open_async_channel(emulator_host) as channel:
        letters = AsyncDeadLetterPublisher(channel, dead_letter_topic, stop)
        async with BatchPublisher(
            channel, topic, letters, stop, PublisherOptions(failed_in=failed_in, limits=limits)
        ) as publisher:
            yield publisher
