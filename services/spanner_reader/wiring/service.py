"""Joins the parts of the Spanner reader: clients, stores, loops, health and metrics."""

import asyncio
import os
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema.catalog import (
    SpannerCatalog,
    StreamDefinition,
    check_partition_table,
    check_start,
    check_stream,
    check_tables,
    check_times,
    whole_rows,
)
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.snapshot.rows import SpannerRows
from services.spanner_reader.adapters.snapshot.snapshot_table import SpannerSnapshotStore
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.adapters.stream.topic_table import SpannerTopicStore
from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.schema.schema_watch import WatchedTables, remember_refused
from services.spanner_reader.app.snapshot.snapshot_ends import SpannerSnapshotEnds
from services.spanner_reader.app.snapshot.snapshot_source import SpannerSnapshots, SpannerSnapshotSource
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.app.stream.first_start import first_start
from services.spanner_reader.app.stream.owned_partition import SpannerReaderOptions
from services.spanner_reader.app.stream.reader import SpannerOutput, SpannerReader, SpannerStores, WatchedDatabase
from services.spanner_reader.core.schema.unmatched_sections import UnmatchedSection, unmatched_sections
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.ports import CatalogInspection
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.stores import (
    databases,
    learn_dialects,
    open_channels,
    partition_store,
    snapshot_store,
    topic_of,
)
from services.spanner_reader.wiring.topics import request_resyncs_if_resumed
from shared.contracts.errors import MessagesLostError, MisconfiguredError
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.reading.byte_budget import ByteBudget
from shared.reading.settings import owner_name
from shared.reading.snapshots import SnapshotOptions, Snapshots
from shared.reading.supervisor import Monitoring
from shared.runtime.garbage import exempt_imports
from shared.runtime.health import Health, serving_health
from shared.runtime.retries import retried
from shared.runtime.service import run_service
from shared.runtime.stop import Stop, unless_stopped, until_stopped
from shared.runtime.tables_file import load_tables_file

_LONGEST_SAVE: Final = timedelta(seconds=2)  # of how far snapshots are: what is read again after a crash
_LONGEST_IDLE: Final = timedelta(seconds=10)  # until a snapshot that is asked for begins


def service() -> int:
    """Run the service as the environment says; return the exit code."""
    return run_service("spanner_reader", Settings, os.environ, serve)


def serve(settings: Settings, stop: Stop) -> None:
    """Read, with the health and the metrics served beside it, until asked to stop or until the end."""
    health = Health(settings.liveness)
    registry = CollectorRegistry()
    metrics = SpannerReaderMetrics(registry, settings.source)
    with serving_health(health, registry, stop, settings.host, settings.port, metrics.document), unless_stopped(stop):
        subscriptions = topic_of(settings).subscriptions()
        try:
            subscriptions.check_now(stop, health.progressed)
        except MessagesLostError:
            asyncio.run(request_resyncs_if_resumed(settings, stop, health))
            raise
        asyncio.run(read(settings, stop, health, metrics, subscriptions))


async def read(
    settings: Settings, stop: Stop, health: Health, metrics: SpannerReaderMetrics, subscriptions: TopicSubscriptions
) -> None:
    """Check what can be checked, and read until the end."""
    _text, file = load_tables_file(settings.tables_file)
    topic = topic_of(settings)
    budget = ByteBudget(settings.outstanding_bytes // 2)  # the other half waits for Pub/Sub
    async with open_channels(settings, budget) as channels:
        owner = owner_name(uuid.uuid4().hex[:8])
        database, partitions = databases(settings, channels)
        stream = SpannerChangeStream(database, settings.change_stream)
        catalog = SpannerCatalog(database, settings.change_stream)
        store = partition_store(settings, partitions, owner, topic.identity)
        shapes = SpannerShapeStore(partitions, settings.partition_table)
        snapshots = snapshot_store(settings, partitions, owner, topic.identity)

        async def prepared() -> ChangeMaker:
            await learn_dialects(database, partitions)
            topics = SpannerTopicStore(partitions, settings.partition_table)
            return await prepare(settings, file, stream, catalog, store, topics, shapes, snapshots)

        changes = await until_stopped(stop, retried(stop, health.attempting(prepared)))
        opened = topic.publisher(budget.most, metrics.publishing, health, stop)
        async with opened as (publisher, _dead_letters):
            rows = SpannerRows(database, data_boost=settings.snapshot_data_boost)

            def reading_snapshots(trusted: Callable[[], bool], is_paused: Callable[[str], bool]) -> SpannerSnapshots:
                tables = MirroredTables(catalog, changes, file.included)
                automatic = settings.resync == "automatic"
                return Snapshots(
                    SpannerSnapshotSource(snapshots, rows, tables, is_paused, metrics, stop),
                    SpannerSnapshotEnds(snapshots, shapes, tables, publisher, metrics, automatic=automatic),
                    publisher,
                    trusted,
                    stop,
                    SnapshotOptions(
                        rows_per_second=settings.snapshot_rows_per_second,
                        unconfirmed_bytes=budget.most // 4,
                        save=min(settings.lease_duration / 6, _LONGEST_SAVE),
                        idle=min(settings.lease_duration / 3, _LONGEST_IDLE),
                        lease=settings.lease_duration,
                        announce=settings.check_schema_every,
                    ),
                )

            reader = SpannerReader(
                WatchedDatabase(stream=stream, catalog=catalog, rows=rows),
                SpannerStores(
                    partitions=store, shapes=shapes, pauses=SpannerPauseStore(partitions, settings.partition_table)
                ),
                SpannerOutput(
                    publisher=publisher,
                    subscriptions=subscriptions,
                    changes=changes,
                    tables=WatchedTables(file.included, file.options),
                    budget=budget,
                ),
                Monitoring(metrics, health),
                SpannerReaderOptions(
                    owner=owner,
                    lease=settings.lease_duration,
                    heartbeat=settings.heartbeat_interval,
                    end=settings.end_timestamp,
                    recheck=settings.check_subscriptions_every,
                    topic_heartbeat=settings.topic_heartbeat_every,
                    keep_messages=settings.keep_messages_for,
                    inspect_every=settings.check_schema_every,
                    keep_finished=settings.keep_finished_partitions_for,
                ),
                snapshots=reading_snapshots,
            )
            exempt_imports()
            async with topic.watching_backlogs(metrics.backlog):
                await reader.run(stop)


async def prepare(
    settings: Settings,
    file: TablesFile,
    stream: SpannerChangeStream,
    catalog: SpannerCatalog,
    store: SpannerPartitionStore,
    topics: SpannerTopicStore,
    shapes: SpannerShapeStore,
    snapshots: SpannerSnapshotStore,
) -> ChangeMaker:
    """Refuse what cannot work; make the partition table; on a first start, remember where to begin."""
    definition = await catalog.definition()
    inspection = await catalog.inspect()
    if inspection.leaves_out is not None and await store.exists() and not await store.is_empty():
        await remember_refused(shapes, file.included, file.options, inspection)
    unmatched = check(settings, file, definition, inspection)
    await store.create_table()
    if await store.is_empty():
        end = settings.end_timestamp

        async def check_beginning(start: Nanoseconds, now: Nanoseconds) -> None:
            check_times(definition, start=start, end=end, now=now)
            await check_start(stream, start, end, settings.heartbeat_interval)
            await topics.keep(topic_of(settings).identity)

        await first_start(
            catalog=catalog,
            shapes=shapes,
            partitions=store,
            snapshots=snapshots if settings.snapshot == "initial" else None,
            included=file.included,
            table_options=file.options,
            wanted=settings.start_timestamp,
            end=end,
            check=check_beginning,
        )
    else:
        await topics.keep(topic_of(settings).identity)
        structlog.get_logger().info("resumed", start_timestamp_ignored=settings.start_timestamp is not None)
    warn(settings.change_stream, definition, unmatched)
    keys = {table.name: table.primary_key for table in inspection.watched if file.included(table.name)}
    return ChangeMaker(settings.source, settings.buckets, keys, lambda table: file.options(table).buckets)


def check(
    settings: Settings, file: TablesFile, definition: StreamDefinition, inspection: CatalogInspection
) -> Sequence[UnmatchedSection]:
    """Refuse a stream, its tables or a tables file that cannot work; return the sections that fit no table."""
    check_stream(settings.change_stream, definition)
    watched = inspection.watched
    check_partition_table(
        settings.change_stream,
        watched,
        definition,
        table=settings.partition_table,
        same_database=settings.partition_database_path == settings.database_path,
    )
    tables = [table for table in watched if file.included(table.name)]
    check_tables(settings.change_stream, definition.dialect, tables)
    file.refuse_short_keep([table.name for table in watched], definition.retention)
    shapes = {table.name: inspection.shapes.tables[table.name] for table in watched}
    unmatched = list(unmatched_sections(file, shapes))
    refused = [f"{one.section} {one.why}; {one.fix}" for one in unmatched if one.refused]
    if refused:
        raise MisconfiguredError(
            "tables-file-does-not-fit", "the tables file does not fit the tables:\n  " + "\n  ".join(refused)
        )
    return unmatched


def warn(change_stream: str, definition: StreamDefinition, unmatched: Sequence[UnmatchedSection]) -> None:
    """Log what works, and what would work better in another way."""
    log = structlog.get_logger()
    alter = whole_rows(change_stream, definition)
    if alter is not None:
        log.warning(
            "updates_completed_by_reads",
            value_capture_type=definition.value_capture_type,
            why="updates carry only the columns that changed, so this reader reads the rest of their rows",
            fix=f"{alter} makes Spanner write whole rows; records of before are completed as now",
        )
    for one in unmatched:
        log.warning("tables_file_section_unmatched", section=one.section, why=one.why, fix=one.fix)
