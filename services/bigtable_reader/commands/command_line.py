"""The commands beside the Bigtable reader, and what each of them takes."""

from typing import Final

from shared.runtime.commands import (
    CommandLine,
    DoctorCommand,
    JsonCommand,
    ReaderStatusCommand,
    RowsCommand,
    SnapshotCommand,
    TopicCommand,
)


class BigtableSnapshotCommand(SnapshotCommand):
    """Read the rows of the table again, as they are now.

    The running readers do it while everything runs. A key is what the mirror has as row_key.

    Examples:

    \b
      {program} snapshot --watch
      {program} snapshot --after user#1000 --until user#2000 --dry-run
      {program} snapshot --status
    """


class BigtablePauseCommand(JsonCommand):
    """Pause the stream: nothing is read, and nothing is lost for as long as the stream keeps it.

    It takes no tables: a Bigtable reader reads one, which is the stream.

    Examples:

    \b
      {program} pause
      {program} pause --json
    """


class BigtableResumeCommand(JsonCommand):
    """Resume the stream where it was paused.

    Examples:

    \b
      {program} resume
      {program} resume --json
    """


class BigtableSyncedCommand(JsonCommand):
    """Remove the resync request of the table.

    Use it when all of its rows came again in another way; a snapshot removes it by itself.

    Examples:

    \b
      {program} synced
      {program} synced --json
    """


BigtableReaderCommand = (
    DoctorCommand
    | ReaderStatusCommand
    | BigtableSnapshotCommand
    | BigtablePauseCommand
    | BigtableResumeCommand
    | BigtableSyncedCommand
    | TopicCommand
    | RowsCommand
)

COMMAND_LINE: Final[CommandLine[BigtableReaderCommand]] = CommandLine(
    "python -m services.bigtable_reader",
    "Publish a Bigtable table's changes. Without a command it is the service itself. Its settings, and those of its "
    "commands, are environment variables (docs/reference/configuration.md).",
    {
        "doctor": DoctorCommand,
        "status": ReaderStatusCommand,
        "snapshot": BigtableSnapshotCommand,
        "pause": BigtablePauseCommand,
        "resume": BigtableResumeCommand,
        "synced": BigtableSyncedCommand,
        "topic": TopicCommand,
        "rows": RowsCommand,
    },
)
