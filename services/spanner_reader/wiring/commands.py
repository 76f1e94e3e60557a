"""The commands beside the service. They take its settings, and no reader has to run."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.app.status.status import document, exit_code, lines
from services.spanner_reader.commands.command_line import (
    COMMAND_LINE,
    SpannerPauseCommand,
    SpannerResumeCommand,
    SpannerSnapshotCommand,
    SpannerSyncedCommand,
)
from services.spanner_reader.commands.pause import pause, resume
from services.spanner_reader.commands.snapshot import COMMAND_RETRY_BUDGET, snapshot
from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.core.snapshot.snapshot import SnapshotSurvey
from services.spanner_reader.core.stream.partitions import SpannerPartitionSurvey
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.doctor import doctor
from services.spanner_reader.wiring.rows import rows
from services.spanner_reader.wiring.stores import (
    databases,
    learn_dialects,
    open_channels,
    partition_store,
    snapshot_store,
)
from services.spanner_reader.wiring.topics import change_topic
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.answers import print_answer
from shared.runtime.commands import DoctorCommand, ReaderStatusCommand, RowsCommand, TopicCommand
from shared.runtime.retries import retried
from shared.runtime.service import command_settings
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file


def command(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command beside the service; return its exit code."""
    try:
        match COMMAND_LINE.parse(arguments):
            case ReaderStatusCommand(json=as_json):
                return asyncio.run(status(command_settings(Settings, environ), sys.stdout, as_json=as_json))
            case DoctorCommand(json=as_json):
                return doctor(environ, sys.stdout, as_json=as_json)
            case SpannerSyncedCommand() as parsed:
                return asyncio.run(synced(parsed, command_settings(Settings, environ), sys.stdout))
            case TopicCommand(json=as_json):
                return asyncio.run(change_topic(command_settings(Settings, environ), sys.stdout, as_json=as_json))
            case SpannerSnapshotCommand() | SpannerPauseCommand() | SpannerResumeCommand() as parsed:
                return asyncio.run(asked(parsed, command_settings(Settings, environ), sys.stdout))
            case RowsCommand():
                return asyncio.run(rows(read_settings(Settings, environ)))
    except KeyboardInterrupt:  # of what waits and shows: nothing depends on its going on
        return 130
    except TransientError as error:  # who typed the command is the retry
        raise MisconfiguredError(
            "spanner-unavailable",
            f"Spanner does not answer: {error}. Check the network and SPANNER_EMULATOR_HOST, which is for emulators "
            "only; then ask again",
        ) from error


async def status(settings: Settings, out: TextIO, *, as_json: bool) -> int:
    """Print what the partition table says of all readers; no reader has to run."""
    async with open_channels(settings) as channels:
        database, partitions = databases(settings, channels)
        await learn_dialects(database, partitions)
        definition = await SpannerCatalog(database, settings.change_stream).definition()
        store = partition_store(settings, partitions, owner="status")
        if await store.exists():
            survey = await store.survey()
            inspection, requests = await SpannerShapeStore(partitions, settings.partition_table).read()
            snapshots = await snapshot_store(settings, partitions, owner="status").survey()
            pauses = await SpannerPauseStore(partitions, settings.partition_table).read()
        else:
            survey, inspection, requests = (
                SpannerPartitionSurvey(await SpannerCatalog(database, settings.change_stream).now(), (), 0),
                None,
                (),
            )
            snapshots, pauses = SnapshotSurvey(survey.now, ()), Pauses(survey.now)
    quote = definition.dialect.quote
    shown = document(settings.source, survey, definition.retention, inspection, requests, quote, snapshots, pauses)
    print_answer(shown, lines(shown), as_json, out)
    return exit_code(shown)


async def synced(parsed: SpannerSyncedCommand, settings: Settings, out: TextIO) -> int:
    """Delete the resync request of a table whose rows came again."""
    async with open_channels(settings) as channels:
        _database, partitions = databases(settings, channels)
        await partitions.learn_dialect()
        shapes = SpannerShapeStore(partitions, settings.partition_table)
        had = any(one.table == parsed.table for one in await shapes.resync_requests())  # an attempt may get no answer
        if not await retried(Stop(), lambda: shapes.synced(parsed.table), COMMAND_RETRY_BUDGET) and not had:
            raise MisconfiguredError(
                "no-resync-request",
                f"table {parsed.table} has no resync request: `python -m services.spanner_reader status` lists the "
                "tables that have one",
            )
    print_answer({"table": parsed.table}, [f"{parsed.table}: the resync request is deleted"], parsed.json, out)
    return 0


async def asked(
    parsed: SpannerPauseCommand | SpannerResumeCommand | SpannerSnapshotCommand, settings: Settings, out: TextIO
) -> int:
    """Run a command that asks the readers for something; what it asks for is kept for them."""
    _text, file = load_tables_file(settings.tables_file)
    async with open_channels(settings) as channels:
        database, partitions = databases(settings, channels)
        await learn_dialects(database, partitions)
        if not await partition_store(settings, partitions, owner="command").exists():
            raise MisconfiguredError("no-partition-table", "there is no partition table yet: start the reader first")
        catalog = SpannerCatalog(database, settings.change_stream)
        pauses = SpannerPauseStore(partitions, settings.partition_table)
        match parsed:
            case SpannerPauseCommand():
                return await pause(parsed, catalog, pauses, file.included, out)
            case SpannerResumeCommand():
                return await resume(parsed, pauses, out)
            case SpannerSnapshotCommand():
                store = snapshot_store(settings, partitions, owner="command")
                shapes = SpannerShapeStore(partitions, settings.partition_table)
                return await snapshot(parsed, catalog, store, shapes, file.included, out)
