"""The command `doctor`: inspect everything the reader needs, before it is started or beside it.

Every check runs, whatever the others find, and each finding comes with its fix. Exits 0 if there is no error, else 1.
It takes the reader's own settings and changes nothing.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.doctor.inspection import inspect, inspect_cluster
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import partition_table_exists
from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.core.schema.resync import fix_of
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.wiring.stores import topic_of
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TablesFile
from shared.runtime.doctor import LOGIN, inspect_keep, inspect_settings, inspect_tables_file, run_doctor
from shared.runtime.findings import Finding


def doctor(environ: Mapping[str, str], out: TextIO, *, as_json: bool) -> int:
    """Inspect everything, print what was found and return the exit code."""
    return run_doctor(_findings(environ), out, as_json=as_json)


def _findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    settings = yield from inspect_settings(Settings, environ, lambda it: f"{it.source} to topic {it.topic}")
    if settings is None:
        return
    file = yield from inspect_tables_file(settings.tables_file, "none: rows are mirrored")
    if not file.included(settings.bigtable_table):
        yield Finding.error(
            "tables file",
            f"it leaves table {settings.bigtable_table} out",
            "fix include and exclude, or BIGTABLE_TABLE",
        )
    yield from asyncio.run(_bigtable(settings, file))
    yield from topic_of(settings).inspect()


async def _bigtable(settings: Settings, file: TablesFile) -> list[Finding]:
    try:
        channels = BigtableChannels(settings.bigtable_emulator_host)
    except MisconfiguredError as error:
        return [Finding.error("Bigtable", str(error), LOGIN)]
    options = file.options(settings.bigtable_table)
    watched = Table(settings.instance_path, settings.bigtable_table, settings.app_profile)
    kept = Table(settings.partition_instance_path, settings.partition_table, settings.partition_profile)
    async with channels:
        inspected = inspect(channels, watched, kept, options.bigtable, reads_rows=options.mode != "history")
        findings = [found async for found in inspected]
        cluster = await inspect_cluster(channels, watched, PartitionRows(channels, kept, settings.stream_name))
        found = [*findings, *await _keep(channels, watched, file), *([] if cluster is None else [cluster])]
        return [*found, *await _kept_with_the_stream_ranges(channels, kept, settings)]


async def _keep(channels: BigtableChannels, watched: Table, file: TablesFile) -> Sequence[Finding]:
    try:
        retention = (await BigtableCatalog(channels, watched).inspect()).retention
    except (MisconfiguredError, TransientError):  # `inspect` says why
        return []
    return [] if retention is None else list(inspect_keep(file, [watched.id], retention))


async def _kept_with_the_stream_ranges(channels: BigtableChannels, kept: Table, settings: Settings) -> list[Finding]:
    """Return that the stream is paused, and that the table is pending resync.

    Nothing where that is not known: another finding says why.
    """
    try:
        if not await partition_table_exists(channels, kept):
            return []
        found = await PartitionRows(channels, kept, settings.stream_name).topology()
    except (MisconfiguredError, TransientError):
        return []
    findings = []
    if found is not None and found.paused_since is not None:
        findings.append(
            Finding.warning(
                "stream: pause",
                f"it is paused since {shown(found.paused_since)}: nothing is read",
                "`python -m services.bigtable_reader resume`, before what the stream keeps is over: see `status`",
            )
        )
    if found is not None and (request := found.resync_request) is not None:
        kinds = ", ".join(sorted({one.kind.replace("_", " ") for one in request.findings}))
        detail = f"pending resync since {shown(request.since)}: {kinds}"
        findings.append(Finding.warning(f"table {request.table}", detail, fix_of(request)))
    return findings
