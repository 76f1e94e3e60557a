"""Deletes from a mirror what its source no longer has: by command, and automatically."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Final, TextIO

from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.bigquery.mirror_queries import MirrorQueries
from services.cdc_consumer.adapters.delete_missing_rows.mirror_rows import BigQueryMirrorRows, disk_row_buffer
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.app.delete_missing_rows.automatic_deletion import (
    AutomaticDeletion,
    check_dead_letters,
    check_part,
    check_unchanged,
)
from services.cdc_consumer.app.delete_missing_rows.deletion import (
    Deletion,
    DeletionRefusedError,
    SourceOfMirror,
    check_time,
    delete_missing_rows,
    deletion_document,
    described,
    estimate_document,
    exit_code,
    print_deletion,
    shown_time,
)
from services.cdc_consumer.commands.command_line import DeleteMissingRowsCommand
from services.cdc_consumer.core.reconcile.source_table import unfit
from services.cdc_consumer.core.schema.destinations import Plan, destinations
from services.cdc_consumer.ports import Mirror, MirrorStates, MirrorTable, RemoteSourceRows, RowCount
from services.cdc_consumer.settings import Settings
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.mirrors import label_of, source_table
from shared.contracts.timestamps import microseconds, parse_timestamp
from shared.runtime.clock import SystemClock
from shared.runtime.service import command_settings
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file

DEFAULT_SOURCE: Final = "python -m services.spanner_reader rows"


def delete_missing_rows_command(
    parsed: DeleteMissingRowsCommand, environ: Mapping[str, str], out: TextIO, stop: Stop
) -> int:
    """Run the command; return its exit code."""
    try:
        before = microseconds(parse_timestamp(parsed.before))
    except ValueError as error:
        raise MisconfiguredError("before-not-a-time", f"--before {parsed.before}: {error}") from error
    settings = command_settings(Settings, environ)
    plan = Plan(load_tables_file(settings.tables_file)[1], settings.bigquery_dataset)
    project, dataset = settings.dataset_project, settings.bigquery_dataset
    queries = MirrorQueries(open_client(project, settings.bigquery_emulator_host), parsed.max_bytes)
    rows = BigQueryMirrorRows(queries, project, dataset, stop, parsed.temporary_dataset)
    command = parsed.source or settings.source_rows or DEFAULT_SOURCE
    with (
        opened_source(command, environ, stop) as asked,
        open_storage_channel(settings.bigquery_storage_emulator_host) as channel,
        closing(AppendStreams(channel, project, dataset, stop, SystemClock())) as writer,
    ):
        source = described(asked, parsed.table)
        mirror = rows.find(*mirror_name(source, plan))
        if parsed.dry_run:
            check_time(mirror, before)
            print_deletion(estimate_document(parsed.table, mirror, rows.estimate(mirror, before)), parsed.json, out)
            return 0
        clock, after, execute = SystemClock(), settings.delete_missing_rows_after, parsed.execute
        found = delete_missing_rows(
            mirror, rows, writer, source, disk_row_buffer, stop, clock, before=before, after=after, execute=execute
        )
    document = deletion_document(parsed.table, mirror, found, queries.spent, execute=execute)
    print_deletion(document, parsed.json, out)
    return exit_code(found)


def mirror_name(source: SourceOfMirror, plan: Plan) -> tuple[str, str]:
    """Return the name of a source table's mirror, and its dataset ("": the usual one)."""
    try:
        wanted = destinations(source.header, plan)
    except PoisonRecordError as error:
        raise unfit(error) from error
    if wanted is None or wanted.mirror is None:
        raise MisconfiguredError(
            "table-without-mirror", f"table {source.header.table} has no mirror: so the tables file says"
        )
    return wanted.mirror.name, wanted.mirror.dataset


@contextmanager
def deleting(settings: Settings, known: MirrorStates, environ: Mapping[str, str], stop: Stop) -> Iterator[None]:
    """Delete missing rows of what is due while the block runs, if it is set so."""
    if settings.delete_missing_rows != "automatic":
        yield
        return
    project, dataset = settings.dataset_project, settings.bigquery_dataset
    queries = MirrorQueries(open_client(project, settings.bigquery_emulator_host))
    rows = BigQueryMirrorRows(queries, project, dataset, stop)

    def delete_missing_rows_of(listed: Mirror) -> Deletion:
        own_dataset, _dot, name = listed.table.rpartition(".")
        mirror = rows.find(name, own_dataset)
        check_unchanged(listed, mirror)
        before, after, clock = mirror.complete_since, settings.delete_missing_rows_after, SystemClock()
        source: SourceOfMirror | None = None

        def unasked(count: RowCount) -> None:
            check_dead_letters(mirror, count, before)
            check_part(mirror.definition.identity, count, before)

        with ExitStack() as stack:
            channel = stack.enter_context(open_storage_channel(settings.bigquery_storage_emulator_host))
            writer = stack.enter_context(closing(AppendStreams(channel, project, dataset, stop, clock)))
            if settings.source_rows is not None:
                asked = stack.enter_context(opened_source(settings.source_rows, environ, stop))
                source = source_of(asked, mirror)
            return delete_missing_rows(
                mirror,
                rows,
                writer,
                source,
                disk_row_buffer,
                stop,
                clock,
                before=before,
                after=after,
                execute=True,
                unasked=unasked,
            )

    automatic = AutomaticDeletion(
        known,
        delete_missing_rows_of,
        SystemClock(),
        after=settings.delete_missing_rows_after,
        keep_messages_for=settings.keep_messages_for,
    )
    with automatic.deleting():
        yield


def source_of(rows: RemoteSourceRows, mirror: MirrorTable) -> SourceOfMirror:
    """Return the table of the source that a mirror is of; DeletionRefusedError if it is of another source.

    One that cannot be described keeps no other from being found.
    """
    unknown: list[str] = []
    for name in rows.tables():
        try:
            found = described(rows, name)
        except (MisconfiguredError, PoisonRecordError) as error:
            unknown.append(f"{name} ({error})")
            continue
        if label_of(source_table(found.header)) == mirror.label:
            return found
    of_others = f"; it cannot say what these are: {', '.join(unknown)}" if unknown else ""
    raise DeletionRefusedError(
        "delete-missing-rows-without-source",
        f"SOURCE_ROWS answers for no table that {mirror.definition.identity} is a mirror of, so no source can be "
        "asked which rows exist: delete missing rows by command (python -m services.cdc_consumer delete-missing-rows "
        f"TABLE --before {shown_time(mirror.complete_since)}), with the command of its own source's reader as "
        f"--source{of_others}",
    )
