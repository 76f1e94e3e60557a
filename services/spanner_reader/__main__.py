"""The Spanner reader: a change stream's changes, as change batches, on a Pub/Sub topic.

Exits 0 when asked to stop or at the end asked for, 2 when nothing will work until someone acts (the message says what).
"""

import asyncio
import importlib.metadata
import os
import sys
import uuid
from dataclasses import asdict
from datetime import timedelta

import structlog
from prometheus_client import CollectorRegistry

from services.spanner_reader.adapters.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.connection import Channels, Database
from services.spanner_reader.adapters.partition_table import SpannerPartitionStore
from services.spanner_reader.adapters.schema import (
    SpannerCatalog,
    check_partition_table,
    check_start,
    check_stream,
    check_tables,
    check_times,
)
from services.spanner_reader.adapters.subscriptions import TopicSubscriptions
from services.spanner_reader.core.changes import ChangeMaker
from services.spanner_reader.core.records import ROOT, StreamQuery
from services.spanner_reader.held import Options
from services.spanner_reader.metrics import ReaderMetrics
from services.spanner_reader.reader import Reader
from services.spanner_reader.settings import Settings, owner_name
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import format_timestamp
from shared.pubsub.channels import open_async_channel
from shared.pubsub.letters import AsyncDeadLetterPublisher
from shared.pubsub.names import topic_path
from shared.pubsub.packer import Limits
from shared.pubsub.publisher import BatchPublisher
from shared.runtime.health import Health, serving_health
from shared.runtime.logs import configure_logs
from shared.runtime.retries import retrying_async
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop, stop_on_signals

MISCONFIGURED = 2


def main() -> int:
    """Run the service; return its exit code."""
    configure_logs(service="spanner_reader")
    log = structlog.get_logger()
    try:
        settings = read_settings(Settings, os.environ)
        configure_logs(service="spanner_reader", level=settings.log_level)
        log.info("service_started", version=_version(), **{k: _shown(v) for k, v in asdict(settings).items()})
        health = Health()
        registry = CollectorRegistry()
        with stop_on_signals() as stop, serving_health(health, registry, settings.host, settings.port) as port:
            log.info("health_served", port=port)
            subscriptions = TopicSubscriptions(
                settings.pubsub_emulator_host,
                [topic_path(settings.project, name) for name in (settings.topic, settings.dead_letter_topic)],
                settings.keep_messages_for,
            )
            subscriptions.check_now(stop)
            asyncio.run(read(settings, stop, health, ReaderMetrics(registry), subscriptions))
    except MisconfiguredError as error:
        log.error("service_misconfigured", error=str(error))  # noqa: TRY400  the message is the whole story
        return MISCONFIGURED
    except TransientError:
        if not stop.requested:  # else a check's retries, ended by the stop
            raise
    log.info("service_stopped")
    return 0


async def read(
    settings: Settings, stop: Stop, health: Health, metrics: ReaderMetrics, subscriptions: TopicSubscriptions
) -> None:
    """Check what can be checked, and read until the end."""
    channels = Channels(settings.spanner_emulator_host)
    try:
        database = Database(settings.database_path, channels)
        elsewhere = settings.partition_database_path != settings.database_path
        partitions = Database(settings.partition_database_path, channels) if elsewhere else database
        owner = owner_name(uuid.uuid4().hex[:8])
        stream = SpannerChangeStream(database, settings.change_stream)
        catalog = SpannerCatalog(database, settings.change_stream)
        store = SpannerPartitionStore(
            partitions,
            settings.partition_table,
            change_stream=settings.source,
            owner=owner,
            lease=settings.lease_duration,
        )
        async for attempt in retrying_async(stop):
            with attempt:
                await database.learn_dialect()
                await partitions.learn_dialect()
                changes = await prepare(settings, stream, catalog, store)
        async with open_async_channel(settings.pubsub_emulator_host) as channel:
            letters = AsyncDeadLetterPublisher(channel, topic_path(settings.project, settings.dead_letter_topic), stop)
            reader = Reader(
                stream=stream,
                store=store,
                publisher=BatchPublisher(
                    channel,
                    topic_path(settings.project, settings.topic),
                    letters,
                    stop,
                    failed_in="spanner_reader",
                    limits=Limits(changes_per_message=settings.batch_changes, bytes_per_message=settings.batch_bytes),
                    outstanding_bytes=settings.outstanding_bytes,
                ),
                subscriptions=subscriptions,
                catalog=catalog,
                changes=changes,
                metrics=metrics,
                health=health,
                options=Options(
                    owner=owner,
                    lease=settings.lease_duration,
                    heartbeat=settings.heartbeat_interval,
                    end=settings.end_timestamp,
                    recheck=settings.check_subscriptions_every,
                    keep_finished=settings.keep_finished_partitions_for,
                ),
            )
            await reader.run(stop)
    finally:
        await channels.close()


async def prepare(
    settings: Settings, stream: SpannerChangeStream, catalog: SpannerCatalog, store: SpannerPartitionStore
) -> ChangeMaker:
    """Refuse what cannot work; make the partition table; on a first start, remember where to begin."""
    log = structlog.get_logger()
    definition = await catalog.definition()
    check_stream(settings.change_stream, definition)
    tables = await catalog.watched_tables()
    check_partition_table(
        settings.change_stream,
        tables,
        definition,
        table=settings.partition_table,
        same_database=settings.partition_database_path == settings.database_path,
    )
    check_tables(settings.change_stream, tables)
    await store.create_table()
    if await store.is_empty():
        now = await catalog.now()
        start = settings.start_timestamp if settings.start_timestamp is not None else now
        end = settings.end_timestamp
        check_times(definition, start=start, end=end, now=now)
        heartbeat = int(settings.heartbeat_interval / timedelta(milliseconds=1))
        await check_start(stream, StreamQuery(ROOT, start, end, heartbeat))
        if await store.add_root(start, end):
            log.info("first_start", start=format_timestamp(start))
    else:
        log.info("resumed", start_timestamp_ignored=settings.start_timestamp is not None)
    return ChangeMaker(settings.source, settings.buckets, {table.name: table.primary_key for table in tables})


def _shown(value: object) -> object:
    return value if isinstance(value, int | None) else str(value)


def _version() -> str:
    try:
        return importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:  # run from the source tree
        return "source"


if __name__ == "__main__":
    sys.exit(main())
