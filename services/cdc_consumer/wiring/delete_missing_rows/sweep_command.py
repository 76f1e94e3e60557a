"""The command `sweep`: deletes from a mirror what its source does not have any more."""

from collections.abc import Mapping
from contextlib import closing
from typing import Final, TextIO

from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.bigquery.storage_channel import open_storage_channel
from services.cdc_consumer.adapters.delete_missing_rows.mirror_rows import BigQueryMirrorRows
from services.cdc_consumer.adapters.delete_missing_rows.spooled_rows import spooled
from services.cdc_consumer.adapters.schema.tables import open_client
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.app.delete_missing_rows.sweep import SourceOfMirror, described, sweep
from services.cdc_consumer.app.delete_missing_rows.sweep_told import exit_code, print_sweep, sweep_document
from services.cdc_consumer.commands.command_line import SweepCommand
from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.cdc_consumer.settings import Settings
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import microseconds, parse_timestamp
from shared.runtime.clock import SystemClock
from shared.runtime.service import command_settings
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file

DEFAULT_SOURCE: Final = "python -m services.spanner_reader rows"


def sweep_command(told: SweepCommand, environ: Mapping[str, str], out: TextIO, stop: Stop) -> int:
    """Run the command; return its exit code."""
    try:
        before = microseconds(parse_timestamp(told.before))
    except ValueError as error:
        raise MisconfiguredError(f"--before {told.before}: {error}") from error
    settings = command_settings(Settings, environ)
    plan = Plan(load_tables_file(settings.tables_file)[1], settings.bigquery_dataset)
    project, dataset = settings.dataset_project, settings.bigquery_dataset
    client = open_client(project, settings.bigquery_emulator_host)
    rows = BigQueryMirrorRows(client, project, dataset, stop)
    command = told.source or settings.source_rows or DEFAULT_SOURCE
    with (
        opened_source(command, environ, stop) as asked,
        open_storage_channel(settings.bigquery_storage_emulator_host) as channel,
        closing(AppendStreams(channel, project, dataset, stop, SystemClock())) as writer,
    ):
        source = described(asked, told.table)
        mirror = rows.find(*mirror_name(source, plan))
        clock, after = SystemClock(), settings.sweep_after
        found = sweep(
            mirror, rows, writer, source, spooled, stop, clock, before=before, after=after, execute=told.execute
        )
    document = sweep_document(told.table, mirror, found, execute=told.execute)
    print_sweep(document, told.json, out)
    return exit_code(found)


def mirror_name(source: SourceOfMirror, plan: Plan) -> tuple[str, str]:
    """Return the name of a source table's mirror, and its dataset ("": the usual one)."""
    wanted = destinations(source.header, plan)
    if wanted is None or wanted.mirror is None:
        raise MisconfiguredError(f"table {source.header.table} has no mirror: so the tables file says")
    return wanted.mirror.name, wanted.mirror.dataset
