"""The topic and the dead-letter topic of a reader, as its settings name them, and what is done with both."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final

import grpc

from shared.pubsub.backlogs import MonitoredBacklogs, inspect_backlogs, monitored_backlogs
from shared.pubsub.channels import open_async_channels
from shared.pubsub.dead_letters import AsyncDeadLetterPublisher
from shared.pubsub.inspection import inspect_topics
from shared.pubsub.names import published_to, subscription_path, topic_path
from shared.pubsub.packer import PackerLimits
from shared.pubsub.publisher import BatchPublisher, PublisherHooks, PublisherOptions
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.reading.backlog_watch import BacklogWatch
from shared.reading.settings import ReaderSettings
from shared.runtime.backlog import BacklogMetrics
from shared.runtime.doctor import LOGIN
from shared.runtime.findings import Finding
from shared.runtime.health import Health
from shared.runtime.metrics import TOPICS, PublishingMetrics
from shared.runtime.stop import Stop

_LAST_CHANCE: Final = timedelta(seconds=5)
"""For what is published at a stop, of ten seconds for all of it."""


class ReaderTopic:
    """Where a reader publishes. ``service``: what a dead letter names as the place where it failed."""

    def __init__(self, settings: ReaderSettings, service: str) -> None:
        self._settings = settings
        self._service = service
        self._topic = topic_path(settings.project, settings.topic)
        self._dead_letter_topic = topic_path(settings.project, settings.dead_letter_topic)
        named = settings.subscription
        self._subscription = None if named is None else subscription_path(settings.project, named)

    @property
    def identity(self) -> str:
        """Return what the readers of one partition table have in common."""
        return published_to(self._settings.project, self._settings.topic, self._settings.pubsub_emulator_host)

    def subscriptions(self) -> TopicSubscriptions:
        """Return what checks the subscriptions of both."""
        topics = [self._topic, self._dead_letter_topic]
        settings = self._settings
        return TopicSubscriptions(settings.pubsub_emulator_host, topics, settings.keep_messages_for, self._subscription)

    @asynccontextmanager
    async def publisher(
        self, outstanding_bytes: int, metrics: PublishingMetrics, health: Health, stop: Stop
    ) -> AsyncIterator[tuple[BatchPublisher, AsyncDeadLetterPublisher]]:
        """Open the connections of a service; the caller closes the publisher."""
        TOPICS.labels(self._topic, self._dead_letter_topic).set(1)
        options = replace(self._options(), outstanding_bytes=outstanding_bytes, last_chance=_LAST_CHANCE)
        hooks = PublisherHooks(confirmed=metrics.confirmed, took=metrics.took)
        async with self._channels() as channels:
            to = self._dead_letter_topic
            dead_letters = AsyncDeadLetterPublisher(channels[0], to, stop, kept=metrics.kept, waits=True)
            publisher = BatchPublisher(channels, self._topic, dead_letters, stop, options, hooks)
            health.not_ready_while(publisher.why_not_ready)
            yield publisher, dead_letters

    @asynccontextmanager
    async def checked_publisher(self, stop: Stop) -> AsyncIterator[BatchPublisher]:
        """Open one for a command.

        MisconfiguredError where either topic would lose what is published, or keep it for too short a time.
        """
        await self.subscriptions().check()
        async with self._channels() as channels:
            dead_letters = AsyncDeadLetterPublisher(channels[0], self._dead_letter_topic, stop)
            async with BatchPublisher(channels, self._topic, dead_letters, stop, self._options()) as publisher:
                yield publisher

    def watching_backlogs(self, metrics: BacklogMetrics) -> AbstractAsyncContextManager[None]:
        """Show what waits in the subscriptions while the block runs."""
        return BacklogWatch(self._backlogs(), metrics, self._settings.check_subscriptions_every).watching()

    def inspect(self) -> Iterator[Finding]:
        """Inspect both topics, and what counts their backlogs."""
        settings, topics = self._settings, {self._topic: self._subscription, self._dead_letter_topic: None}
        yield from inspect_topics(settings.pubsub_emulator_host, topics, settings.keep_messages_for, LOGIN)
        yield inspect_backlogs(self._backlogs())

    def _channels(self) -> AbstractAsyncContextManager[Sequence[grpc.aio.Channel]]:
        return open_async_channels(self._settings.pubsub_emulator_host, self._settings.publish_requests)

    def _options(self) -> PublisherOptions:
        """Return what the settings say of any publisher."""
        settings = self._settings
        limits = PackerLimits(
            changes_per_message=settings.batch_changes,
            bytes_per_message=settings.batch_bytes,
            requests=settings.publish_requests,
        )
        return PublisherOptions(failed_in=self._service, limits=limits, ordered=settings.ordering == "key")

    def _backlogs(self) -> MonitoredBacklogs | None:
        settings = self._settings
        topics = self._topic, self._dead_letter_topic
        return monitored_backlogs(settings.pubsub_emulator_host, settings.monitoring_url, *topics)
