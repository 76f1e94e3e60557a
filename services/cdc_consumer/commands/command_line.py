"""The commands beside the consumer, and what each of them takes."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from services.cdc_consumer.core.advice.advice import DRAINED
from shared.contracts.durations import parse_duration
from shared.contracts.sizes import parse_size
from shared.contracts.timestamps import parse_timestamp
from shared.runtime.commands import CommandLine, DoctorCommand, Json, JsonCommand, Tables


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
HealthAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The consumer's health port; HOST and PORT if unset.")
]
TemporaryDataset = Annotated[
    str,
    typer.Option(
        metavar="DATASET",
        show_default="the mirror's own",
        help="Where rows are copied to, for as long as they are read: in the mirror's project and location.",
    ),
]


class SetupCommand(JsonCommand):
    """Make the topics and subscriptions that are missing, and check those that are there.

    Examples:

    \b
      {program} setup
      {program} setup --json
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

    address: HealthAddress = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMissingRowsCommand:
    """Delete from a mirror what its source no longer has.

    T is what the consumer's `status` prints: rows older than T may wait to be deleted. `snapshot --status` of the
    reader names the same time; but that of an initial snapshot, which began before the mirror was made, never counts:
    take another one. Rows of the mirror that are older, and that the source does not have now, are deleted with
    --execute, and listed without; others of them wait for their snapshot row, or that is a dead letter, and stay. The
    command of the source's reader answers for the source.

    It takes the consumer's own settings; the consumer may run or not. Exits 0 if nothing older stays, or would after
    --execute, else 1; 2 where T or the source is not one to go by.

    Examples:

    \b
      {program} delete-missing-rows Orders --before 2026-11-22T10:00:00.123456Z
      {program} delete-missing-rows Orders --before 2026-11-22T10:00:00.123456Z --execute
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseCommand:
    """Print which max_staleness each mirror should have, what its jobs cost, and what else costs data or money.

    It reads BigQuery's history of jobs of seven days, in the region of each dataset, and changes nothing. A running
    consumer is asked for its throughput. BigQuery bills its queries of INFORMATION_SCHEMA: ten megabytes each, of which
    there are five for a region and three for a dataset.

    It takes the consumer's own settings. Exits 0, or 1 where something should be changed or cannot be read.

    Examples:

    \b
      {program} advise
      {program} advise Orders --tolerable 30m
      {program} advise Orders --deleted-at 2026-11-22T10:00:00Z
      {program} advise --admin-project my-admin --price on_demand=7.5
      {program} advise --changes 5000 --change-bytes 1500 --per 1s
      {program} advise --changes 5000 --change-bytes 1500 --drained 20000 --source-retention 7d
      {program} advise --written-per-day 40GB --source-retention 7d
    """

    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="MIRROR", default_factory=list, help="A mirror as BigQuery names it; all.", show_default=False
        ),
    ]
    tolerable: Annotated[
        timedelta | None,
        typer.Option(parser=_duration, metavar="DURATION", help="How old the answers of queries may be."),
    ] = None
    deleted_at: Annotated[
        str | None,
        typer.Option(
            parser=_timestamp,
            metavar="TIME",
            help="Print whether deletes are applied that were written to BigQuery by then: such as when a query no "
            "longer found the row.",
        ),
    ] = None
    admin_project: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="The project that owns reservations.", show_default="BIGQUERY_PROJECT"),
    ] = None
    reservation: Annotated[str, typer.Option(metavar="ID", help="The reservation that statements make.")] = "millrace"
    assignment: Annotated[str, typer.Option(metavar="ID", help="The assignment that statements make.")] = "millrace-cdc"
    edition: Annotated[str, typer.Option(metavar="EDITION", help="ENTERPRISE or ENTERPRISE_PLUS.")] = "ENTERPRISE"
    price: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=DOLLARS",
            default_factory=list,
            show_default=False,
            help="A price that is not the default: on_demand, slot_hour, write, pubsub, pubsub_storage, "
            "bigtable_storage.",
        ),
    ]
    changes: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="How many changes are expected in the time of --per.")
    ] = None
    change_bytes: Annotated[
        int, typer.Option(parser=_bytes, metavar="SIZE", show_default="1kB", help="How large one of them is.")
    ] = 1_000
    per: Annotated[
        timedelta, typer.Option(parser=_duration, metavar="DURATION", show_default="1s", help="The time of --changes.")
    ] = timedelta(seconds=1)
    source_retention: Annotated[
        timedelta | None,
        typer.Option(
            parser=_duration,
            metavar="DURATION",
            show_default="what SOURCE_ROWS answers; 1d where it is unset",
            help="How long the change stream keeps its records.",
        ),
    ] = None
    drained: Annotated[
        float,
        typer.Option(
            metavar="N",
            min=1,
            show_default=f"{DRAINED:,}",
            help="Changes a second that the consumer applies while it catches up. The default is about half of what "
            "two cores applied in the measurements of docs/how-to/size.md.",
        ),
    ] = DRAINED
    written_per_day: Annotated[
        int | None,
        typer.Option(
            parser=_bytes,
            metavar="SIZE",
            help="What is written to a Bigtable table in a day: the storage of its change records is computed.",
        ),
    ] = None
    clusters: Annotated[int, typer.Option(metavar="N", min=1, help="In how many clusters that table is.")] = 1
    address: HealthAddress = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesCommand:
    """Print what each source table becomes under a tables file, before the consumer has it.

    For each table of the source: dataset, name, key, columns and types, masks, clustering, staleness; what is left out
    and why; and what is refused. Nothing is changed, and BigQuery is not asked. The source is asked through its
    reader's command `rows`, which takes the reader's own settings; with --schema it is a file that --save-schema wrote.
    The consumer's settings in the environment, and the file of the mask key, are checked too.

    Exits 0 if all would work, 1 if anything would not, 2 if the file or the source cannot be read.

    Examples:

    \b
      {program} tables --check tables.toml
      {program} tables --check tables.toml --save-schema schema.jsonl
      {program} tables --check tables.toml --schema schema.jsonl --json
    """

    check: Annotated[Path, typer.Option("--check", metavar="FILE", help="The tables file.")]
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The source's tables as they were saved; no source is asked.")
    ] = None
    save_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the source's tables, all of them, for --schema.")
    ] = None
    source: Source = None
    json: Json = False


ConsumerCommand = (
    SetupCommand
    | DoctorCommand
    | ConsumerStatusCommand
    | DeleteMissingRowsCommand
    | ReconcileCommand
    | AdviseCommand
    | TablesCommand
)

COMMAND_LINE: Final[CommandLine[ConsumerCommand]] = CommandLine(
    "python -m services.cdc_consumer",
    "Apply the topic's changes to BigQuery. Without a command it is the service itself. Its settings, and those of its "
    "commands, are environment variables (docs/reference/configuration.md).",
    {
        "setup": SetupCommand,
        "doctor": DoctorCommand,
        "status": ConsumerStatusCommand,
        "delete-missing-rows": DeleteMissingRowsCommand,
        "reconcile": ReconcileCommand,
        "advise": AdviseCommand,
        "tables": TablesCommand,
    },
)
