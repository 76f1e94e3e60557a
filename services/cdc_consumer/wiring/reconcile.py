"""`python -m services.cdc_consumer reconcile`: does a mirror hold what its source does, value by value?

Both may go on changing: a row counts as different only if it still is when its mirror row has stood still for a while
(--settle). The source is asked through its reader's command `rows`, which this starts (--source, or SOURCE_ROWS) and
which takes the reader's own settings. With --repair the reader publishes what is true of the rows that differ, and the
running consumer applies it.

Exits 0 when all is equal (after a repair, too), 1 when rows differ, 2 when something cannot be compared, 3 when no
difference stands but rows kept changing, or the mirror was behind, for all of the time.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from services.cdc_consumer.adapters.reconcile.mirror_tables import BigQueryMirrors
from services.cdc_consumer.adapters.reconcile.spilled_rows import SpilledRows
from services.cdc_consumer.adapters.schema.tables import open_client
from services.cdc_consumer.adapters.source_rows import opened_source
from services.cdc_consumer.app.reconcile.comparison import Comparison
from services.cdc_consumer.app.reconcile.reconcile import ReconcileOptions, Reconciler
from services.cdc_consumer.app.reconcile.reconcile_report import exit_code, json_text, lines
from services.cdc_consumer.app.reconcile.second_look import Waits
from services.cdc_consumer.core.reconcile.row_keys import key_kinds
from services.cdc_consumer.core.reconcile.source_table import Mirrored
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.settings import ReconcileSettings
from shared.contracts.durations import parse_duration
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import parse_timestamp
from shared.runtime.clock import SystemClock
from shared.runtime.commands import parsed
from shared.runtime.logs import configure_logs
from shared.runtime.service import MISCONFIGURED, command_settings
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file


def reconcile(arguments: Sequence[str], environ: Mapping[str, str], stop: Stop, out: TextIO) -> int:
    """Compare what is asked for, print what has come of it, and return the exit code."""
    told = parsed(_parser(), arguments)
    settings = command_settings(ReconcileSettings, environ)
    configure_logs(service="cdc_consumer", level=settings.log_level, log_format=settings.log_format)
    if bool(told.tables) == told.all:
        raise MisconfiguredError("name the tables to compare, as change batches name them, or say --all")
    _text, file = load_tables_file(settings.tables_file)
    client = open_client(settings.dataset_project, settings.bigquery_emulator_host)
    results: list[Comparison] = []
    failed: dict[str, str] = {}
    try:
        with opened_source(told.source or settings.source_rows, environ, stop) as source:
            reconciler = Reconciler(
                source=source,
                mirrors=BigQueryMirrors(client, settings.dataset_project, settings.bigquery_dataset),
                plan=Plan(file, settings.bigquery_dataset),
                spilled=_spilled,
                waits=Waits(SystemClock(), stop),
                options=ReconcileOptions(settle=told.settle, at=told.at, repair=told.repair),
            )
            names = reconciler.tables() if told.all else told.tables
            for table, found in compared(reconciler.reconcile, names, stop):
                if isinstance(found, Comparison):
                    results.append(found)
                    shown = list(lines(found, told.limit))
                else:
                    failed[table] = found
                    shown = [f"{table}: not compared: {found}"]
                if not told.json:
                    out.writelines(f"{line}\n" for line in shown)
                out.flush()
    except TransientError as error:  # who typed the command is the retry
        raise MisconfiguredError(f"what is to be compared does not answer: {error}; ask again") from error
    if told.json:
        out.write(json_text(results, failed) + "\n")
    return MISCONFIGURED if failed else exit_code(results)


def compared(
    compare: Callable[[str], Comparison], tables: Sequence[str], stop: Stop
) -> Iterator[tuple[str, Comparison | str]]:
    """Yield what comes of each table, or why nothing does, which says nothing of the others.

    TransientError once asked to stop.
    """
    for table in tables:
        try:
            yield table, compare(table)
        except MisconfiguredError as error:
            yield table, str(error)
        except TransientError as error:
            if stop.requested:
                raise
            yield table, f"{error}; ask again"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m services.cdc_consumer reconcile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="a source table, as change batches name it")
    parser.add_argument("--all", action="store_true", help="every table that the source mirrors")
    parser.add_argument(
        "--at", type=_time, metavar="TIME", help="read the source as it was (RFC 3339); what differs is looked at now"
    )
    parser.add_argument(
        "--settle",
        type=_duration,
        default=timedelta(seconds=30),
        metavar="DURATION",
        help="how long a row has to differ, its mirror row standing still (30s): longer than changes usually take",
    )
    parser.add_argument(
        "--repair", action="store_true", help="publish what is true of the rows that differ, and wait until it is there"
    )
    parser.add_argument("--source", metavar="COMMAND", help="what answers for the source; SOURCE_ROWS if unset")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many keys are shown of a table (20)")
    parser.add_argument("--json", action="store_true", help="print one object, with all keys")
    return parser


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _time(text: str) -> str:
    try:
        parse_timestamp(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


@contextmanager
def _spilled(table: Mirrored, buckets: int) -> Iterator[SpilledRows]:
    with tempfile.TemporaryDirectory(prefix="millrace-reconcile-") as directory:
        rows = SpilledRows(Path(directory) / "rows", table.schema, key_kinds(table.definition), buckets)
        with rows:
            yield rows
