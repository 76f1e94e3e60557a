"""The command `reconcile`: compares mirrors with their source, value by value."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, TypeVar

from services.cdc_consumer.adapters.mask_key import read_mask_key
from services.cdc_consumer.adapters.reconcile.disk_row_buckets import DiskRowBuckets
from services.cdc_consumer.adapters.reconcile.mirror_tables import BigQueryMirrorTables
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.app.reconcile.recheck import Waits
from services.cdc_consumer.app.reconcile.reconcile import ReconcileOptions, Reconciler
from services.cdc_consumer.app.reconcile.reconcile_report import (
    Thresholds,
    document,
    estimate_lines,
    estimates_document,
    exit_code,
    lines,
)
from services.cdc_consumer.commands.command_line import ReconcileCommand
from services.cdc_consumer.core.reconcile.row_keys import key_kinds
from services.cdc_consumer.core.reconcile.source_table import Mirrored
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.settings import ReconcileSettings
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import parse_timestamp
from shared.runtime.answers import json_text
from shared.runtime.clock import SystemClock
from shared.runtime.logs import configure_logs
from shared.runtime.service import MISCONFIGURED, command_settings
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file

T = TypeVar("T")


def reconcile(parsed: ReconcileCommand, environ: Mapping[str, str], stop: Stop, out: TextIO) -> int:
    """Compare what is asked for, print what has come of it, and return the exit code."""
    settings = command_settings(ReconcileSettings, environ)
    configure_logs(service="cdc_consumer", level=settings.log_level, log_format=settings.log_format)
    if bool(parsed.tables) == parsed.every:
        raise MisconfiguredError(
            "no-table-to-compare", "name the tables to compare, as change batches name them, or say --all"
        )
    if parsed.at is not None and parse_timestamp(parsed.at) > SystemClock().now():
        raise MisconfiguredError(
            "time-to-compare-not-past",
            f"--at {parsed.at} is in the future: give a time that is past, or leave --at out",
        )
    _text, file = load_tables_file(settings.tables_file)
    client = open_client(settings.dataset_project, settings.bigquery_emulator_host)
    mirrors = BigQueryMirrorTables(
        client,
        settings.dataset_project,
        settings.bigquery_dataset,
        temporary=parsed.temporary_dataset,
        max_bytes=parsed.max_bytes,
    )
    try:
        with opened_source(parsed.source or settings.source_rows, environ, stop) as source:
            reconciler = Reconciler(
                source=source,
                mirrors=mirrors,
                plan=Plan(file, settings.bigquery_dataset, read_mask_key(file)),
                row_buckets=_row_buckets,
                waits=Waits(SystemClock(), stop),
                options=ReconcileOptions(settle=parsed.settle, at=parsed.at, repair=parsed.repair),
            )
            return (_estimated if parsed.dry_run else _reconciled)(reconciler, parsed, stop, out)
    except TransientError as error:  # who typed the command is the retry
        raise MisconfiguredError(
            "reconcile-no-answer", f"the source or BigQuery does not answer: {error}; ask again"
        ) from error


def _reconciled(reconciler: Reconciler, parsed: ReconcileCommand, stop: Stop, out: TextIO) -> int:
    results, failed = _each(
        reconciler, parsed, stop, out, reconciler.reconcile, lambda _table, found: lines(found, parsed.limit)
    )
    if parsed.json:
        out.write(json_text(document(list(results.values()), failed)))
    thresholds = Thresholds(parsed.max_differences, parsed.min_coverage)
    return MISCONFIGURED if failed else exit_code(list(results.values()), thresholds)


def _estimated(reconciler: Reconciler, parsed: ReconcileCommand, stop: Stop, out: TextIO) -> int:
    found, failed = _each(
        reconciler, parsed, stop, out, reconciler.estimate, lambda table, found: estimate_lines(table, *found)
    )
    if parsed.json:
        out.write(json_text(estimates_document(found, failed)))
    return MISCONFIGURED if failed else 0


def _each(
    reconciler: Reconciler,
    parsed: ReconcileCommand,
    stop: Stop,
    out: TextIO,
    ask: Callable[[str], T],
    shown: Callable[[str, T], Iterable[str]],
) -> tuple[Mapping[str, T], Mapping[str, str]]:
    """Ask of each table that is named, and print what comes of it; return that, and why nothing came of others."""
    results: dict[str, T] = {}
    failed: dict[str, str] = {}
    for table, found in compared(ask, reconciler.tables() if parsed.every else parsed.tables, stop):
        if isinstance(found, str):
            failed[table] = found
            text: Iterable[str] = [f"{table}: not compared: {found}"]
        else:
            results[table] = found
            text = shown(table, found)
        if not parsed.json:
            out.writelines(f"{line}\n" for line in text)
        out.flush()
    return results, failed


def compared(ask: Callable[[str], T], tables: Sequence[str], stop: Stop) -> Iterator[tuple[str, T | str]]:
    """Yield what comes of each table, or why nothing does, which says nothing of the others.

    TransientError once asked to stop.
    """
    for table in tables:
        try:
            yield table, ask(table)
        except MisconfiguredError as error:
            yield table, str(error)
        except TransientError as error:
            if stop.requested:
                raise
            yield table, f"{error}; ask again"


@contextmanager
def _row_buckets(table: Mirrored, buckets: int) -> Iterator[DiskRowBuckets]:
    with tempfile.TemporaryDirectory(prefix="millrace-reconcile-") as directory:
        rows = DiskRowBuckets(Path(directory) / "rows", table.schema, key_kinds(table.definition), buckets)
        with rows:
            yield rows
