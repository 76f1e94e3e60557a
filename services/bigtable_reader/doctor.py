"""`python -m services.bigtable_reader doctor`: look at everything the reader needs, before it is started or beside it.

Every check runs, whatever the others find, and each finding comes with its cure. Exits 0 if there is no error, else 1.
It takes the reader's own settings and changes nothing.
"""

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TextIO

from services.bigtable_reader.adapters.connection import Channels, Table
from services.bigtable_reader.adapters.inspection import inspect, inspect_cluster
from services.bigtable_reader.adapters.partition_rows import PartitionRows
from services.bigtable_reader.adapters.partition_schema import partition_table_exists
from services.bigtable_reader.core.resync import cure
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.stall_watch import shown
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TablesFile
from shared.pubsub.channels import open_channel
from shared.pubsub.inspection import Inspection
from shared.pubsub.names import topic_path
from shared.runtime.findings import Finding, Level, exit_code, print_findings
from shared.runtime.settings import read_settings
from shared.runtime.tables_file import load_tables_file

_LOGIN: Final = "gcloud auth application-default login, or a service account of the workload's"


def doctor(arguments: Sequence[str], environ: Mapping[str, str], out: TextIO) -> int:
    """Look at everything, print what was found and return the exit code."""
    parser = argparse.ArgumentParser("python -m services.bigtable_reader doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    as_json = parser.parse_args(arguments).json
    findings = list(_looked_at(environ))
    print_findings(findings, as_json, out)
    return exit_code(findings)


def _looked_at(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        settings = read_settings(Settings, environ)
    except MisconfiguredError as error:
        yield Finding(
            Level.ERROR, "settings", str(error), "set what is named; nothing else can be looked at without it"
        )
        return
    yield Finding(Level.OK, "settings", f"{settings.source} to topic {settings.topic}")
    file = TablesFile()
    try:
        _text, file = load_tables_file(settings.tables_file)
    except MisconfiguredError as error:
        yield Finding(Level.ERROR, "tables file", str(error), "mend the lines that are named")
    else:
        yield Finding(Level.OK, "tables file", str(settings.tables_file or "none: rows are mirrored"))
    if not file.included(settings.bigtable_table):
        yield Finding(
            Level.ERROR,
            "tables file",
            f"it leaves table {settings.bigtable_table} out",
            "mend include and exclude, or BIGTABLE_TABLE",
        )
    yield from asyncio.run(_bigtable(settings, file))
    yield from _pubsub(settings)


async def _bigtable(settings: Settings, file: TablesFile) -> list[Finding]:
    try:
        channels = Channels(settings.bigtable_emulator_host)
    except MisconfiguredError as error:
        return [Finding(Level.ERROR, "Bigtable", str(error), _LOGIN)]
    options = file.options(settings.bigtable_table)
    watched = Table(settings.instance_path, settings.bigtable_table, settings.app_profile)
    kept = Table(settings.partition_instance_path, settings.partition_table, settings.partition_profile)
    try:
        looked = inspect(channels, watched, kept, options.bigtable, reads_rows=options.mode != "history")
        findings = [found async for found in looked]
        cluster = await inspect_cluster(channels, watched, PartitionRows(channels, kept, settings.stream_name))
        found = [*findings, *([] if cluster is None else [cluster])]
        return [*found, *await _kept_with_the_pieces(channels, kept, settings)]
    finally:
        await channels.close()


async def _kept_with_the_pieces(channels: Channels, kept: Table, settings: Settings) -> list[Finding]:
    """Return that the stream is paused, and that the table needs re-sync.

    Nothing where that cannot be told: another finding says why.
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
            Finding(
                Level.WARNING,
                "stream: pause",
                f"it is paused since {shown(found.paused_since)}: nothing is read",
                "`python -m services.bigtable_reader resume`, before what the stream keeps is over: see `status`",
            )
        )
    if found is not None and (mark := found.mark) is not None:
        kinds = ", ".join(sorted({one.kind.replace("_", " ") for one in mark.findings}))
        said = f"needs re-sync since {shown(mark.since)}: {kinds}"
        findings.append(Finding(Level.WARNING, f"table {mark.table}", said, cure(mark)))
    return findings


def _pubsub(settings: Settings) -> Iterator[Finding]:
    try:
        opened = open_channel(settings.pubsub_emulator_host)
    except MisconfiguredError as error:
        yield Finding(Level.ERROR, "Pub/Sub", str(error), _LOGIN)
        return
    with opened as channel:
        inspection = Inspection(channel)
        for name in (settings.topic, settings.dead_letter_topic):
            topic = topic_path(settings.project, name)
            yield from inspection.topic(topic, settings.keep_messages_for)
            yield from inspection.rights(topic, "publish")
