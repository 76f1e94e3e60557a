"""The commands beside the consumer, and what each of them takes."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import typer

from shared.contracts.durations import parse_duration
from shared.contracts.sizes import parse_size
from shared.contracts.timestamps import parse_timestamp
from shared.runtime.commands import CommandLine, DoctorCommand, Json, Tables


def _duration(value: str | timedelta) -> timedelta:
    return parse_duration(value) if isinstance(value, str) else value


def _bytes(value: str | int) -> int:
    return parse_size(value) if isinstance(value, str) else value


def _timestamp(text: str) -> str:
    parse_timestamp(text)
    return text


Source = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="The reader's command that answers for the source; SOURCE_ROWS.")
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        parser=_bytes,
        metavar="SIZE",
        help="What BigQuery may bill for all queries together, such as 500GB; a query that would go beyond is not run.",
    ),
]
TemporaryDataset = Annotated[
    str,
    typer.Option(
        metavar="DATASET",
        show_default="the mirror's own",
        help="Where rows are copied to, for as long as they are read: in the mirror's project and location.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupCommand:
    """Make the topics and subscriptions that are missing, and check those that are there.

    Examples:

    \b
      {program} setup
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatusCommand:
    """Ask the running consumer how each table is.

    Exits 0 when every table runs, 1 when one does not, or nothing does, 2 when the consumer cannot be asked.

    Examples:

    \b
      {program} status
      {program} status --json --address 10.0.0.7:8081
    """

    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The consumer's health port; HOST and PORT if unset.")
    ] = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCommand:
    """Delete from a mirror what its source no longer has.

    T is what the consumer's `status` prints: rows older than T may wait to be swept. `snapshot --status` of the reader
    names the same time; but that of an initial snapshot, which began before the mirror was made, never counts: take
    another one. Rows of the mirror that are older, and that the source does not have now, are deleted with --execute,
    and listed without; others of them wait for their snapshot row, or that is a dead letter, and stay. The command of
    the source's reader answers for the source.

    It takes the consumer's own settings; the consumer may run or not. Exits 0 if nothing older stays, or would after
    --execute, else 1; 2 where T or the source is not one to go by.

    Examples:

    \b
      {program} sweep Orders --before 2026-11-22T10:00:00.123456Z
      {program} sweep Orders --before 2026-11-22T10:00:00.123456Z --execute
    """

    table: Annotated[str, typer.Argument(metavar="TABLE", help="A source table, as change batches name it.")]
    before: Annotated[str, typer.Option(metavar="T", help="Such as 2026-11-22T10:00:00.123456Z.")]
    execute: Annotated[bool, typer.Option("--execute", help="Delete; without it, print what would be.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how many bytes BigQuery would read, and query nothing.")
    ] = False
    max_bytes: MaxBytes = None
    temporary_dataset: TemporaryDataset = ""
    source: Source = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileCommand:
    """Compare mirrors with their source, value by value.

    Both may go on changing: a row counts as different only if it still is when its mirror row has stood still for a
    while (--settle). The source is asked through its reader's command `rows`, which this starts and which takes the
    reader's own settings. With --repair the reader publishes what is true of the rows that differ, and the running
    consumer applies it.

    Exits 0 when all is equal (after a repair, too), 1 when rows differ, 2 when something cannot be compared, 3 when no
    difference stands but rows kept changing, or the mirror was behind, for all of the time. --max-differences and
    --min-coverage allow for some of either.

    Examples:

    \b
      {program} reconcile Orders
      {program} reconcile Orders --dry-run
      {program} reconcile Orders --max-bytes 500GB --max-differences 10 --min-coverage 99.9
      {program} reconcile --all --json
      {program} reconcile Orders --repair --source 'python -m services.spanner_reader rows'
    """

    tables: Tables
    every: Annotated[bool, typer.Option("--all", help="Every table that the source mirrors.")] = False
    at: Annotated[
        str | None,
        typer.Option(
            parser=_timestamp,
            metavar="TIME",
            help="Read the source as it was (RFC 3339); what differs is inspected now.",
        ),
    ] = None
    settle: Annotated[
        timedelta,
        typer.Option(
            parser=_duration,
            metavar="DURATION",
            show_default="30s",
            help="How long a row has to differ while its mirror row stands still: longer than changes usually take.",
        ),
    ] = timedelta(seconds=30)
    repair: Annotated[
        bool, typer.Option("--repair", help="Publish what is true of the rows that differ, and wait until it is there.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how many bytes BigQuery would read, and compare nothing.")
    ] = False
    max_bytes: MaxBytes = None
    max_differences: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many rows of a table may differ with exit code 0.")
    ] = 0
    min_coverage: Annotated[
        float,
        typer.Option(metavar="PERCENT", min=0, max=100, help="How much of a table has to be compared for exit code 0."),
    ] = 100
    temporary_dataset: TemporaryDataset = ""
    source: Source = None
    limit: Annotated[int, typer.Option(metavar="N", help="How many keys are shown of a table.")] = 20
    json: Json = False


ConsumerCommand = SetupCommand | DoctorCommand | ConsumerStatusCommand | SweepCommand | ReconcileCommand

COMMAND_LINE: Final[CommandLine[ConsumerCommand]] = CommandLine(
    "python -m services.cdc_consumer",
    "Apply the topic's changes to BigQuery. Without a command it is the service itself. Its settings, and those of its "
    "commands, are environment variables (docs/reference/configuration.md).",
    {
        "setup": SetupCommand,
        "doctor": DoctorCommand,
        "status": ConsumerStatusCommand,
        "sweep": SweepCommand,
        "reconcile": ReconcileCommand,
    },
)
