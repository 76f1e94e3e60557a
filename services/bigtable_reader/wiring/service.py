"""Joins the parts of the Bigtable reader: clients, stores, loops, health and metrics."""

import asyncio
import os
import uuid
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.doctor.inspection import COSTS, inspect, require_no_error
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog
from services.bigtable_reader.adapters.snapshot.scan import BigtableScan
from services.bigtable_reader.adapters.stream.change_stream import BigtableChangeStream
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.adapters.stream.partition_table import BigtablePartitionStore
from services.bigtable_reader.adapters.stream.rows import BigtableRows
from services.bigtable_reader.adapters.stream.topic_cell import check_topic, keep_topic
from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.schema.last_inspection import inspect_before_the_end, request_resync_if_resumed
from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.app.snapshot.snapshot_ends import BigtableSnapshotEnds
from services.bigtable_reader.app.snapshot.snapshot_source import BigtableSnapshots, BigtableSnapshotSource
from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.app.stream.first_start import begin, request_initial_snapshot
from services.bigtable_reader.app.stream.owned_partition import BigtableReaderOptions
from services.bigtable_reader.app.stream.reader import BigtableOutput, BigtableReader, BigtableStores, SourceTable
from services.bigtable_reader.core.changes.entries import EntryMaker
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.schema.watching import watching_of
from services.bigtable_reader.core.snapshot.snapshot import watched_ranges
from services.bigtable_reader.core.stream.records import KeyRange
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.wiring.stores import (
    MicrosecondClock,
    micros,
    partition_rows,
    partition_store,
    resync_store,
    snapshot_store,
    topic_of,
    watched_table,
)
from shared.contracts.errors import MessagesLostError, MisconfiguredError
from shared.contracts.tables_file import TablesFile
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.reading.byte_budget import ByteBudget
from shared.reading.settings import owner_name
from shared.reading.snapshots import SnapshotOptions
from shared.reading.supervisor import Monitoring
from shared.runtime.findings import Level
from shared.runtime.garbage import exempt_imports
from shared.runtime.health import Health, serving_health
from shared.runtime.retries import retried
from shared.runtime.service import run_service
from shared.runtime.stop import Stop, unless_stopped, until_stopped
from shared.runtime.tables_file import load_tables_file

_LONGEST_SAVE: Final = timedelta(seconds=2)  # of how far snapshots are: what is read again after a crash


def service() -> int:
    """Run the service as the environment says; return the exit code."""
    return run_service("bigtable_reader", Settings, os.environ, serve)


def serve(settings: Settings, stop: Stop) -> None:
    """Read, with the health and the metrics served beside it, until asked to stop or until the end."""
    health = Health(settings.liveness)
    registry = CollectorRegistry()
    metrics = BigtableReaderMetrics(registry, settings.source, MicrosecondClock())
    with serving_health(health, registry, stop, settings.host, settings.port, metrics.document), unless_stopped(stop):
        subscriptions = topic_of(settings).subscriptions()
        try:
            subscriptions.check_now(stop, health.progressed)
        except MessagesLostError:
            asyncio.run(request_resync_of_lost_messages(settings, stop, health))
            raise
        asyncio.run(read(settings, stop, health, metrics, subscriptions))


async def read(
    settings: Settings,
    stop: Stop,
    health: Health,
    metrics: BigtableReaderMetrics,
    subscriptions: TopicSubscriptions,
) -> None:
    """Check what can be checked, and read until the end."""
    _text, file = load_tables_file(settings.tables_file)
    topic = topic_of(settings)
    budget = ByteBudget(settings.outstanding_bytes // 2)  # the other half waits for Pub/Sub
    async with BigtableChannels(settings.bigtable_emulator_host, budget) as channels:
        table = watched_table(settings)
        owner = owner_name(uuid.uuid4().hex[:8])
        prepared = retried(stop, health.attempting(lambda: prepare(settings, file, channels, owner, stop)))
        outputs, store = await until_stopped(stop, prepared)
        options = file.options(settings.bigtable_table).bigtable
        resync_requests = resync_requests_of(settings, channels, file)
        watching = resync_requests.watching.digest
        opened = topic.publisher(budget.most, metrics.publishing, health, stop)
        async with opened as (publisher, dead_letters):

            def reading_snapshots(
                dead_lettering: DeadLettering,
                raise_min_versions: Callable[[KeyRange, int], None],
                trusted: Callable[[], bool],
            ) -> BigtableSnapshots:
                assert outputs.images is not None, "a change log has no snapshot"
                snapshots = snapshot_store(settings, channels, owner, watching)
                keys = watched_ranges(prefix.encode() for prefix in options.key_prefixes)
                rows = MirroredRows(outputs.images, keys, watching)
                scan = BigtableScan(channels, table, outputs.watched, outputs.images)
                resync, automatic = resync_store(settings, channels), settings.resync == "automatic"
                save = min(settings.lease_duration / 6, _LONGEST_SAVE)
                return BigtableSnapshots(
                    BigtableSnapshotSource(snapshots, scan, rows, dead_lettering, raise_min_versions, metrics),
                    BigtableSnapshotEnds(snapshots, resync, rows, publisher, automatic=automatic),
                    publisher,
                    trusted,
                    stop,
                    SnapshotOptions(
                        rows_per_second=settings.snapshot_rows_per_second,
                        unconfirmed_bytes=budget.most // 4,
                        save=save,
                        idle=save,
                        lease=settings.lease_duration,
                    ),
                )

            reader = BigtableReader(
                SourceTable(
                    stream=BigtableChangeStream(
                        channels, table, keep=outputs.kept, most_bytes=settings.most_change_bytes
                    ),
                    rows=BigtableRows(channels, table, outputs.watched, outputs.images),
                    catalog=BigtableCatalog(channels, table),
                    clock=MicrosecondClock(),
                ),
                BigtableStores(partitions=store, resync_requests=resync_requests),
                BigtableOutput(
                    publisher=publisher, dead_letters=dead_letters, subscriptions=subscriptions, outputs=outputs
                ),
                Monitoring(metrics, health),
                BigtableReaderOptions(
                    owner=owner,
                    lease=settings.lease_duration,
                    heartbeat=settings.heartbeat_interval,
                    end=micros(settings.end_timestamp),
                    recheck=settings.check_subscriptions_every,
                    topic_heartbeat=settings.topic_heartbeat_every,
                    inspect_every=settings.check_families_every,
                ),
                snapshots=None if outputs.images is None else reading_snapshots,
            )
            exempt_imports()
            async with topic.watching_backlogs(metrics.backlog):
                await reader.run(stop)


def make_outputs(settings: Settings, file: TablesFile, families: Collection[str]) -> Outputs:
    """Return what is made of the table's changes, as the tables file says; MisconfiguredError if it is left out."""
    table = settings.bigtable_table
    if not file.included(table):
        why = f"the tables file leaves table {table} out"
        raise MisconfiguredError("bigtable-table-left-out", f"{why}: fix include and exclude, or BIGTABLE_TABLE")
    options = file.options(table)
    watched = Watched(options.bigtable)
    buckets = options.buckets or settings.buckets
    images = entries = None
    if options.mode in ("mirror", "both"):
        images = ImageMaker(
            source=settings.source,
            table=table,
            options=options.bigtable,
            families=families,
            buckets=buckets,
            watched=watched,
        )
    if options.mode in ("history", "both"):
        entries = EntryMaker(
            source=settings.source,
            table=table,
            instance=settings.bigtable_instance,
            options=options.bigtable,
            buckets=buckets,
            watched=watched,
        )
    return Outputs(watched, images, entries)


async def prepare(
    settings: Settings, file: TablesFile, channels: BigtableChannels, owner: str, stop: Stop
) -> tuple[Outputs, BigtablePartitionStore]:
    """Refuse what cannot work; make the partition table; on a first start, remember where to begin."""
    log = structlog.get_logger()
    table, rows = watched_table(settings), partition_rows(settings, channels)
    catalog = BigtableCatalog(channels, table)
    outputs = make_outputs(settings, file, (await catalog.inspect()).families)
    options = file.options(settings.bigtable_table).bigtable
    resync_requests = resync_requests_of(settings, channels, file)
    inspected = inspect(channels, table, rows.table, options, reads_rows=outputs.images is not None, retried=True)
    findings = [found async for found in inspected]
    try:
        require_no_error(findings)
    except MisconfiguredError as error:
        known = partition_store(settings, rows, owner, timedelta(0))
        await inspect_before_the_end(error, catalog, known, resync_requests, stop)
        raise
    for found in findings:
        if found.level is Level.WARNING:
            log.warning("start_checked", check=found.check, detail=found.detail, fix=found.fix)
    for header in outputs.headers:
        file.refuse_changed_keys(header.table, header.primary_key)
    inspection = await catalog.inspect()
    if inspection.retention is not None:
        file.refuse_short_keep([settings.bigtable_table], inspection.retention)
    log.info("change_stream_costs_listed", what=COSTS)
    await create_partition_table(channels, rows)
    topic = topic_of(settings).identity
    store = partition_store(settings, rows, owner, inspection.retention or timedelta(0), topic)
    await begin(
        BigtableChangeStream(channels, table),
        store,
        stop,
        name=settings.stream_name,
        resume=settings.resume,
        asked=micros(settings.start_timestamp),
        before=lambda: request_initial_snapshot(
            settings.bigtable_table,
            options,
            snapshot_store(settings, channels, owner, resync_requests.watching.digest),
            MicrosecondClock().now(),
            wanted=settings.snapshot == "initial",
            mirrored=outputs.images is not None,
        ),
        after=lambda: keep_topic(rows, topic),
        mirrored=outputs.images is not None,
    )
    return outputs, store


async def request_resync_of_lost_messages(settings: Settings, stop: Stop, health: Health) -> None:
    """Request a resync of the table of a topic that lost messages, if changes were read into it before."""
    _text, file = load_tables_file(settings.tables_file)
    async with BigtableChannels(settings.bigtable_emulator_host) as channels:
        rows = partition_rows(settings, channels)
        store = partition_store(settings, rows, "start", timedelta(0))
        resync_requests = resync_requests_of(settings, channels, file)
        topic = topic_of(settings).identity
        attempt = health.attempting(
            lambda: request_resync_if_resumed(store, lambda: check_topic(rows, topic), resync_requests)
        )
        await until_stopped(stop, retried(stop, attempt))


def resync_requests_of(settings: Settings, channels: BigtableChannels, file: TablesFile) -> ResyncRequests:
    """Return the resync requests of the table, where there is a mirror; they remember what is watched."""
    options = file.options(settings.bigtable_table)
    return ResyncRequests(
        resync_store(settings, channels),
        snapshot_store(settings, channels, ""),
        Watched(options.bigtable).family,
        MicrosecondClock(),
        watching_of(options.mode, options.bigtable),
    )
