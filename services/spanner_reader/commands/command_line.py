"""The commands beside the Spanner reader, and what each of them takes."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from shared.runtime.commands import (
    CommandLine,
    DoctorCommand,
    Json,
    ReaderStatusCommand,
    RowsCommand,
    SnapshotCommand,
    Tables,
    TopicCommand,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerSnapshotCommand(SnapshotCommand):
    """Read the rows of tables again, as they are now.

    The running readers do it while everything runs. A key is a JSON array of a row's key values, and needs one table.

    Examples:

    \b
      {program} snapshot Orders --watch
      {program} snapshot Orders --after '[1000]' --until '[2000]' --dry-run
      {program} snapshot --status
    """

    tables: Tables
    every: Annotated[bool, typer.Option("--all", help="Every watched table.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerPauseCommand:
    """Pause the stream, or the tables that are named.

    While the stream is paused nothing is read, and nothing is lost for as long as the stream keeps it. What is
    committed to a paused table is dropped, and the table is pending resync.

    Examples:

    \b
      {program} pause
      {program} pause Orders
      {program} pause --json
    """

    tables: Tables
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerResumeCommand:
    """Resume the stream where it was paused, or the tables that are named.

    What was committed to a table while it was paused is brought by `snapshot`.

    Examples:

    \b
      {program} resume
      {program} resume Orders
      {program} resume --json
    """

    tables: Tables
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerSyncedCommand:
    """Delete the resync request of a table.

    Use it when all rows of the table came again in another way; a snapshot deletes the request by itself.

    Examples:

    \b
      {program} synced Orders
      {program} synced Orders --json
    """

    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table with a resync request: `status` lists them.")]
    json: Json = False


SpannerReaderCommand = (
    DoctorCommand
    | ReaderStatusCommand
    | SpannerSnapshotCommand
    | SpannerPauseCommand
    | SpannerResumeCommand
    | SpannerSyncedCommand
    | TopicCommand
    | RowsCommand
)

COMMAND_LINE: Final[CommandLine[SpannerReaderCommand]] = CommandLine(
    "python -m services.spanner_reader",
    "Publish a Spanner change stream. Without a command it is the service itself. Its settings, and those of its "
    "commands, are environment variables (docs/reference/configuration.md).",
    {
        "doctor": DoctorCommand,
        "status": ReaderStatusCommand,
        "snapshot": SpannerSnapshotCommand,
        "pause": SpannerPauseCommand,
        "resume": SpannerResumeCommand,
        "synced": SpannerSyncedCommand,
        "topic": TopicCommand,
        "rows": RowsCommand,
    },
)
