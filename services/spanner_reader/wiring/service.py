"""Joins the parts of the Spanner reader: clients, stores, loops, health and metrics."""

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TextIO

import structlog
from prometheus_client import CollectorRegistry

from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema.catalog import (
    SpannerCatalog,
    check_partition_table,
    check_start,
    check_stream,
    check_tables,
    check_times,
)
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.snapshot.rows import SpannerRows
from services.spanner_reader.adapters.snapshot.snapshot_table import SpannerSnapshotStore
from services.spanner_reader.adapters.spanner.connection import Channels
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.adapters.stream.topic_table import SpannerTopicStore
from services.spanner_reader.app.schema.schema_watch import remember_refused
from services.spanner_reader.app.snapshot.snapshot_ends import SnapshotEnds
from services.spanner_reader.app.snapshot.snapshots import SnapshotOptions, Snapshots
from services.spanner_reader.app.status.metrics import ReaderMetrics
from services.spanner_reader.app.status.status import document, exit_code, lines
from services.spanner_reader.app.stream.first_start import first_start
from services.spanner_reader.app.stream.held import Options
from services.spanner_reader.app.stream.reader import Reader
from services.spanner_reader.commands.command_line import COMMANDS, PROGRAM, status_parser
from services.spanner_reader.commands.pause import pause, resume
from services.spanner_reader.commands.snapshot import snapshot
from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.core.schema.misfits import misfits
from services.spanner_reader.core.snapshot.snapshot import SnapshotSurvey
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.partitions import Survey
from services.spanner_reader.core.stream.records import ROOT, StreamQuery
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.doctor import doctor
from services.spanner_reader.wiring.rows import rows
from services.spanner_reader.wiring.stores import databases, learn_dialects, partition_store, snapshot_store, topic_of
from services.spanner_reader.wiring.topics import change_topic, mark_if_resumed
from shared.contracts.errors import MessagesLostError, MisconfiguredError, TransientError
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.channels import open_async_channel
from shared.pubsub.letters import AsyncDeadLetterPublisher
from shared.pubsub.names import topic_path
from shared.pubsub.packer import Limits
from shared.pubsub.publisher import BatchPublisher
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.reading.settings import owner_name
from shared.reading.status import print_status
from shared.runtime.commands import check_arguments
from shared.runtime.health import Health, serving_health
from shared.runtime.retries import retried
from shared.runtime.service import command_settings, started, stopped
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop, stop_on_signals, unless_stopped, until_stopped
from shared.runtime.tables_file import load_tables_file

_LONGEST_SAVE: Final = timedelta(seconds=2)  # of how far snapshots are: what is read again after a crash
_LONGEST_IDLE: Final = timedelta(seconds=10)  # until a snapshot that is asked for begins
_LAST_CHANCE: Final = timedelta(seconds=5)  # for what is published at a stop, of ten seconds for all of it


def service() -> int:
    """Run the service as the environment says; return the exit code."""
    with stop_on_signals() as stop:
        settings = read_settings(Settings, os.environ)
        started("spanner_reader", settings, os.environ)
        serve(settings, stop)
    stopped()
    return 0


def command(arguments: Sequence[str]) -> int:
    """Run a command beside the service; return its exit code."""
    check_arguments(PROGRAM, COMMANDS, arguments)
    try:
        match arguments:
            case ["status", *rest]:
                return asyncio.run(status(rest, command_settings(Settings, os.environ), sys.stdout))
            case ["doctor", *rest]:
                return doctor(rest, os.environ, sys.stdout)
            case ["synced", table]:
                return asyncio.run(synced(table, command_settings(Settings, os.environ)))
            case ["topic"]:
                return asyncio.run(change_topic(command_settings(Settings, os.environ)))
            case ["snapshot" | "pause" | "resume" as what, *rest]:
                return asyncio.run(asked(what, rest, command_settings(Settings, os.environ), sys.stdout))
            case _:
                return asyncio.run(rows(read_settings(Settings, os.environ)))
    except KeyboardInterrupt:  # of what waits and shows: nothing depends on its going on
        return 130
    except TransientError as error:  # who typed the command is the retry
        raise MisconfiguredError(
            f"Spanner does not answer: {error}. Check the network and SPANNER_EMULATOR_HOST, which is for emulators "
            "only; then ask again"
        ) from error


def serve(settings: Settings, stop: Stop) -> None:
    """Read, with the health and the metrics served beside it, until asked to stop or until the end."""
    health = Health(settings.liveness)
    registry = CollectorRegistry()
    metrics = ReaderMetrics(registry)
    with (
        serving_health(health, registry, stop, settings.host, settings.port, metrics.document),
        unless_stopped(stop),
    ):
        subscriptions = TopicSubscriptions(
            settings.pubsub_emulator_host,
            [topic_path(settings.project, name) for name in (settings.topic, settings.dead_letter_topic)],
            settings.keep_messages_for,
        )
        try:
            subscriptions.check_now(stop)
        except MessagesLostError:
            asyncio.run(mark_if_resumed(settings, stop, health))
            raise
        asyncio.run(read(settings, stop, health, metrics, subscriptions))


async def read(
    settings: Settings, stop: Stop, health: Health, metrics: ReaderMetrics, subscriptions: TopicSubscriptions
) -> None:
    """Check what can be checked, and read until the end."""
    _text, file = load_tables_file(settings.tables_file)
    channels = Channels(settings.spanner_emulator_host)
    try:
        owner = owner_name(uuid.uuid4().hex[:8])
        database, partitions = databases(settings, channels)
        stream = SpannerChangeStream(database, settings.change_stream)
        catalog = SpannerCatalog(database, settings.change_stream)
        store = partition_store(settings, partitions, owner)
        shapes = SpannerShapeStore(partitions, settings.partition_table)
        snapshots = snapshot_store(settings, partitions, owner)

        async def prepared() -> ChangeMaker:
            await learn_dialects(database, partitions)
            topics = SpannerTopicStore(partitions, settings.partition_table)
            return await prepare(settings, file, stream, catalog, store, topics, shapes, snapshots)

        changes = await until_stopped(stop, retried(stop, health.attempting(prepared)))
        async with open_async_channel(settings.pubsub_emulator_host) as channel:
            dead_letter_topic = topic_path(settings.project, settings.dead_letter_topic)
            letters = AsyncDeadLetterPublisher(channel, dead_letter_topic, stop, kept=metrics.publishing.kept)
            publisher = BatchPublisher(
                channel,
                topic_path(settings.project, settings.topic),
                letters,
                stop,
                failed_in="spanner_reader",
                limits=Limits(changes_per_message=settings.batch_changes, bytes_per_message=settings.batch_bytes),
                outstanding_bytes=settings.outstanding_bytes,
                last_chance=_LAST_CHANCE,
                confirmed=metrics.publishing.confirmed,
            )
            health.not_ready_while(publisher.why_not_ready)

            def reading_snapshots(trusted: Callable[[], bool], rests: Callable[[str], bool]) -> Snapshots:
                ends = SnapshotEnds(
                    store=snapshots,
                    shapes=shapes,
                    catalog=catalog,
                    publisher=publisher,
                    changes=changes,
                    included=file.included,
                    trusted=trusted,
                    metrics=metrics,
                    automatic=settings.resync == "automatic",
                    every=settings.check_schema_every,
                )
                return Snapshots(
                    ends=ends,
                    store=snapshots,
                    rows=SpannerRows(database, data_boost=settings.snapshot_data_boost),
                    catalog=catalog,
                    publisher=publisher,
                    changes=changes,
                    included=file.included,
                    trusted=trusted,
                    rests=rests,
                    metrics=metrics,
                    stop=stop,
                    options=SnapshotOptions(
                        rows_per_second=settings.snapshot_rows_per_second,
                        unconfirmed_bytes=settings.outstanding_bytes // 4,
                        save=min(settings.lease_duration / 6, _LONGEST_SAVE),
                        idle=min(settings.lease_duration / 3, _LONGEST_IDLE),
                        lease=settings.lease_duration,
                    ),
                )

            reader = Reader(
                stream=stream,
                store=store,
                publisher=publisher,
                snapshots=reading_snapshots,
                subscriptions=subscriptions,
                catalog=catalog,
                shapes=shapes,
                pauses=SpannerPauseStore(partitions, settings.partition_table),
                changes=changes,
                included=file.included,
                table_options=file.options,
                metrics=metrics,
                health=health,
                options=Options(
                    owner=owner,
                    lease=settings.lease_duration,
                    heartbeat=settings.heartbeat_interval,
                    end=settings.end_timestamp,
                    recheck=settings.check_subscriptions_every,
                    keep_messages=settings.keep_messages_for,
                    look=settings.check_schema_every,
                    keep_finished=settings.keep_finished_partitions_for,
                ),
            )
            await reader.run(stop)
    finally:
        await channels.close()


async def status(arguments: Sequence[str], settings: Settings, out: TextIO) -> int:
    """Print what the partition table says of all readers; no reader has to run."""
    as_json = status_parser().parse_args(arguments).json
    channels = Channels(settings.spanner_emulator_host)
    try:
        database, partitions = databases(settings, channels)
        await learn_dialects(database, partitions)
        definition = await SpannerCatalog(database, settings.change_stream).definition()
        store = partition_store(settings, partitions, owner="status")
        if await store.exists():
            survey = await store.survey()
            look, marks = await SpannerShapeStore(partitions, settings.partition_table).read()
            snapshots = await snapshot_store(settings, partitions, owner="status").survey()
            pauses = await SpannerPauseStore(partitions, settings.partition_table).read()
        else:
            survey, look, marks = Survey(await SpannerCatalog(database, settings.change_stream).now(), (), 0), None, ()
            snapshots, pauses = SnapshotSurvey(survey.now, ()), Pauses(survey.now)
    finally:
        await channels.close()
    quote = definition.dialect.quote
    shown = document(settings.source, survey, definition.retention, look, marks, quote, snapshots, pauses)
    print_status(shown, lines(shown), as_json, out)
    return exit_code(shown)


async def synced(table: str, settings: Settings) -> int:
    """Take the mark from a table whose rows came again."""
    channels = Channels(settings.spanner_emulator_host)
    try:
        _database, partitions = databases(settings, channels)
        await partitions.learn_dialect()
        if not await SpannerShapeStore(partitions, settings.partition_table).synced(table):
            raise MisconfiguredError(
                f"table {table} is not marked: `python -m services.spanner_reader status` lists those"
            )
    finally:
        await channels.close()
    structlog.get_logger().info("table_synced", table=table)
    return 0


async def asked(what: str, arguments: Sequence[str], settings: Settings, out: TextIO) -> int:
    """Run a command that asks the readers for something; what it asks for is kept for them."""
    _text, file = load_tables_file(settings.tables_file)
    channels = Channels(settings.spanner_emulator_host)
    try:
        database, partitions = databases(settings, channels)
        await learn_dialects(database, partitions)
        if not await partition_store(settings, partitions, owner="command").exists():
            raise MisconfiguredError("there is no partition table yet: start the reader first")
        catalog = SpannerCatalog(database, settings.change_stream)
        pauses = SpannerPauseStore(partitions, settings.partition_table)
        match what:
            case "pause":
                return await pause(arguments, catalog, pauses, file.included, out)
            case "resume":
                return await resume(arguments, pauses, out)
            case _:
                store = snapshot_store(settings, partitions, owner="command")
                shapes = SpannerShapeStore(partitions, settings.partition_table)
                return await snapshot(arguments, catalog, store, shapes, file.included, out)
    finally:
        await channels.close()


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
    log = structlog.get_logger()
    definition = await catalog.definition()
    look = await catalog.look()
    if look.leaves_out is not None and await store.exists() and not await store.is_empty():
        await remember_refused(shapes, file.included, file.options, look)
    check_stream(settings.change_stream, definition)
    watched = look.watched
    check_partition_table(
        settings.change_stream,
        watched,
        definition,
        table=settings.partition_table,
        same_database=settings.partition_database_path == settings.database_path,
    )
    tables = [table for table in watched if file.included(table.name)]
    check_tables(settings.change_stream, definition.dialect, tables)
    unfit = list(misfits(file, {table.name: look.shapes.tables[table.name] for table in watched}))
    refused = [f"{one.section} {one.why}; {one.fix}" for one in unfit if one.refused]
    if refused:
        raise MisconfiguredError("the tables file does not fit the tables:\n  " + "\n  ".join(refused))
    await store.create_table()
    if await store.is_empty():
        end = settings.end_timestamp

        async def check(start: Nanoseconds, now: Nanoseconds) -> None:
            check_times(definition, start=start, end=end, now=now)
            heartbeat = int(settings.heartbeat_interval / timedelta(milliseconds=1))
            await check_start(stream, StreamQuery(ROOT, start, end, heartbeat))
            await topics.keep(topic_of(settings))

        await first_start(
            catalog=catalog,
            shapes=shapes,
            partitions=store,
            snapshots=snapshots if settings.snapshot == "initial" else None,
            included=file.included,
            table_options=file.options,
            wanted=settings.start_timestamp,
            end=end,
            check=check,
        )
    else:
        await topics.keep(topic_of(settings))
        log.info("resumed", start_timestamp_ignored=settings.start_timestamp is not None)
    for one in unfit:
        log.warning("tables_file_misfit_found", section=one.section, why=one.why, fix=one.fix)
    keys = {table.name: table.primary_key for table in tables}
    return ChangeMaker(settings.source, settings.buckets, keys, lambda table: file.options(table).buckets)
