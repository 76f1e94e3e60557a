"""The commands beside the service. They take its settings, and no reader has to run."""

import asyncio
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TextIO

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog
from services.bigtable_reader.adapters.snapshot.scan import BigtableScan
from services.bigtable_reader.adapters.stream.topic_cell import replace_topic
from services.bigtable_reader.app.snapshot.snapshot_status import summaries
from services.bigtable_reader.app.status.status import document, exit_code, lines
from services.bigtable_reader.commands.command_line import (
    COMMAND_LINE,
    BigtablePauseCommand,
    BigtableResumeCommand,
    BigtableSnapshotCommand,
    BigtableSyncedCommand,
)
from services.bigtable_reader.commands.pause import pause, resume
from services.bigtable_reader.commands.snapshot import snapshot
from services.bigtable_reader.commands.synced import synced
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.schema.watching import check_the_same_is_watched, watching_of
from services.bigtable_reader.core.snapshot.snapshot import Snapshot
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, check_known
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.wiring.doctor import doctor
from services.bigtable_reader.wiring.rows import rows
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
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.answers import answer_topic
from shared.reading.settings import owner_name
from shared.runtime.answers import print_answer
from shared.runtime.commands import DoctorCommand, ReaderStatusCommand, RowsCommand, TopicCommand
from shared.runtime.service import command_settings
from shared.runtime.settings import read_settings
from shared.runtime.tables_file import load_tables_file


def command(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command beside the service; return its exit code."""
    try:
        match COMMAND_LINE.parse(arguments):
            case ReaderStatusCommand(json=as_json):
                return asyncio.run(status(command_settings(Settings, environ), sys.stdout, as_json=as_json))
            case BigtablePauseCommand() | BigtableResumeCommand() as parsed:
                return asyncio.run(paused(parsed, command_settings(Settings, environ), sys.stdout))
            case BigtableSnapshotCommand() as parsed:
                return asyncio.run(snapshots_of(parsed, command_settings(Settings, environ), sys.stdout))
            case BigtableSyncedCommand(json=as_json):
                return asyncio.run(resync_done(command_settings(Settings, environ), sys.stdout, as_json=as_json))
            case TopicCommand(json=as_json):
                return asyncio.run(change_topic(command_settings(Settings, environ), sys.stdout, as_json=as_json))
            case DoctorCommand(json=as_json):
                return doctor(environ, sys.stdout, as_json=as_json)
            case RowsCommand():
                return asyncio.run(rows(read_settings(Settings, environ)))
    except KeyboardInterrupt:  # of what waits and shows: nothing depends on its going on
        return 130
    except TransientError as error:  # who typed the command is the retry
        raise MisconfiguredError(
            "bigtable-unavailable",
            f"Bigtable does not answer: {error}. Check the network and BIGTABLE_EMULATOR_HOST, which is for emulators "
            "only; then ask again",
        ) from error


async def snapshots_of(parsed: BigtableSnapshotCommand, settings: Settings, out: TextIO) -> int:
    """Ask for a snapshot, see how it is, give it up; the service reads it."""
    _text, file = load_tables_file(settings.tables_file)
    options = file.options(settings.bigtable_table)
    watching = watching_of(options.mode, options.bigtable)
    clock = MicrosecondClock()
    async with BigtableChannels(settings.bigtable_emulator_host) as channels:
        with _partition_table():
            if not parsed.status:
                await _check_known(settings, channels)
            if not (parsed.status or parsed.cancel):  # whatever was asked for can be given up, with whichever file
                check_the_same_is_watched(watching, await resync_store(settings, channels).watching())
            return await snapshot(
                parsed,
                table=settings.bigtable_table,
                mode=options.mode,
                options=options.bigtable,
                end=micros(settings.end_timestamp),
                store=snapshot_store(settings, channels, "", watching.digest),
                poll=lambda: read_survey(settings, channels, clock.now()),
                scan=BigtableScan(channels, watched_table(settings), Watched(options.bigtable)),
                clock=clock,
                out=out,
            )


async def status(settings: Settings, out: TextIO, *, as_json: bool) -> int:
    """Print what the partition table says of all readers; no reader has to run."""
    async with BigtableChannels(settings.bigtable_emulator_host) as channels:
        inspection = await BigtableCatalog(channels, watched_table(settings)).inspect()
        now = MicrosecondClock().now()
        found, survey = await read_survey(settings, channels, now)
    snapshots = summaries(settings.bigtable_table, found, survey, micros(settings.end_timestamp))
    shown = document(settings.source, survey, inspection.retention, now, snapshots)
    print_answer(shown, lines(shown), as_json, out)
    return exit_code(shown)


async def paused(parsed: BigtablePauseCommand | BigtableResumeCommand, settings: Settings, out: TextIO) -> int:
    """Pause the stream, or let it go on."""
    async with BigtableChannels(settings.bigtable_emulator_host) as channels:
        store = partition_store(settings, partition_rows(settings, channels), "", timedelta(0))
        with _partition_table():
            await _check_known(settings, channels)
            act = pause if isinstance(parsed, BigtablePauseCommand) else resume
            return await act(store, out, as_json=parsed.json)


async def change_topic(settings: Settings, out: TextIO, *, as_json: bool) -> int:
    """Let the readers, none of which may be there, publish to another topic from now on.

    MisconfiguredError where no topic is remembered: the start does that.
    """
    topic = topic_of(settings).identity
    async with BigtableChannels(settings.bigtable_emulator_host) as channels:
        with _partition_table():
            await _check_known(settings, channels)
            rows = partition_rows(settings, channels)
            store = partition_store(settings, rows, owner_name(f"command-{uuid.uuid4().hex[:8]}"), timedelta(0))
            try:
                before = await replace_topic(rows, topic, store.require_no_reader)
            finally:
                await store.leave()
    return answer_topic(before, topic, out, as_json=as_json)


async def resync_done(settings: Settings, out: TextIO, *, as_json: bool) -> int:
    """Remove the resync request of a table whose rows came again."""
    async with BigtableChannels(settings.bigtable_emulator_host) as channels:
        with _partition_table():
            return await synced(resync_store(settings, channels), out, as_json=as_json)


async def read_survey(
    settings: Settings, channels: BigtableChannels, now: Microseconds
) -> tuple[Snapshot | None, BigtablePartitionSurvey]:
    """Read the partition table without being counted among its readers; nothing where it is not made yet."""
    try:
        found = await snapshot_store(settings, channels, "").survey()
        return found, await partition_store(settings, partition_rows(settings, channels), "", timedelta(0)).view(now)
    except MisconfiguredError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return None, BigtablePartitionSurvey((), {}, frozenset())


async def _check_known(settings: Settings, channels: BigtableChannels) -> None:
    """Raise MisconfiguredError where a command would speak to readers that never were: a name is mistyped, say."""
    _snapshot, survey = await read_survey(settings, channels, MicrosecondClock().now())
    check_known(settings.bigtable_table, settings.stream_name, survey)


@contextmanager
def _partition_table() -> Iterator[None]:
    """Say what to do where it is not made yet."""
    try:
        yield
    except MisconfiguredError as error:
        if "NOT_FOUND" not in str(error):
            raise
        raise MisconfiguredError(
            "no-partition-table", "there is no partition table yet: start the reader first"
        ) from error
