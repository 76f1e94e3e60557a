"""The commands of the dead-letter service, and what each of them takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from services.dead_letter.app.replay.replay import DEFAULT_RATE
from services.dead_letter.commands.filters import SelectingCommand
from shared.runtime.commands import CommandLine, DoctorCommand, Json, JsonCommand

_MOST: Final = 1_000_000  # a list is made in memory


def _rate(value: str | float) -> float:
    found = float(value)
    if found and not 0.001 <= found <= 100_000:
        raise ValueError("neither 0 nor between 0.001 and 100000")
    return found


Values = Annotated[bool, typer.Option("--values", help="Show the values of rows. It is written into the trail.")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter: needed where nothing else selects any.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """Run the service itself, as without any command: collect dead letters until asked to stop.

    Examples:

    \b
      {program} run
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCommand(SelectingCommand):
    """List dead letters, those that failed last first; open ones unless --state or --id says otherwise.

    --json: {"dead_letters": [...], "after": "..." or null, "matched": how many there are on all pages}.

    Examples:

    \b
      {program} list --table Orders --since 2h
      {program} list --state any --json
    """

    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="Dead letters to show.")] = 50
    after: Annotated[str | None, typer.Option(help="Go on behind a page: its `after`.")] = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowCommand:
    """Show dead letters whole: why they failed, what they hold, and what was done about them.

    --json prints one document a line: a dead letter as `list` has it, with attributes, payload and trail.

    Examples:

    \b
      {program} show 1f2e3d4c
      {program} show 1f2e3d4c --values --json
    """

    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Eight characters of an id are enough.")]
    values: Values = False
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsCommand(SelectingCommand):
    """Show dead letters by their cause, the largest group first; open ones unless --state or --id says otherwise.

    Below the groups is what to do about each reason.

    --json: {"groups": [...]}.

    Examples:

    \b
      {program} groups
      {program} groups --since 1d --json
    """

    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="Groups to show.")] = 50
    json: Json = False


class StatsCommand(JsonCommand):
    """Show how many dead letters there are, by state, reason and table.

    Examples:

    \b
      {program} stats
      {program} stats --json
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCommand(SelectingCommand):
    """Write dead letters as JSON lines in replay order; open ones unless --state or --id says otherwise.

    A line is a dead letter as `list --json` has it, with its attributes, and its payload with values masked; with
    --values its very bytes instead, as base64 in `data`.

    Examples:

    \b
      {program} export --table Orders --out orders.jsonl
      {program} export --state any --values --out everything.jsonl
    """

    out: Annotated[Path | None, typer.Option(help="Write to this file; else it is printed.")] = None
    values: Values = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardCommand(SelectingCommand):
    """Decide that open dead letters are not to be applied. `restore` opens them again.

    --json: {"state": "discarded", "changed": how many, "matched": how many there were}.

    Examples:

    \b
      {program} discard --group 1f2e3d4c --why 'test data'
    """

    why: Annotated[str, typer.Option(help="For the trail.")]
    everything: All = False
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCommand(SelectingCommand):
    """Open dead letters again: discarded and superseded ones, and by --id or --state also those that were replayed.

    --json: {"state": "open", "changed": how many, "matched": how many there were}.

    Examples:

    \b
      {program} restore --group 1f2e3d4c --why 'it was no test data'
      {program} restore --id 1f2e3d4c
    """

    why: Annotated[str, typer.Option(help="For the trail.", show_default=False)] = ""
    everything: All = False
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EditCommand:
    """Give the row of a dead letter other values: a copy that takes its place, to be replayed in its stead.

    Without --set or --file the row is opened in $EDITOR. Only columns outside the primary key can be edited, one
    change at a time; the copy has the next revision in its sequence, so it wins over its original and nothing else.

    --json: {"id": the copy's, "edit_of": the dead letter's, "sequence": "...", "diff": "..."}.

    Examples:

    \b
      {program} edit 1f2e3d4c --set seats=12 --why 'seats was negative'
    """

    dead_letter: Annotated[str, typer.Argument(metavar="ID", help="Eight characters of it are enough.")]
    why: Annotated[str, typer.Option(help="For the trail: what was wrong.")]
    columns: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=JSON", help="Give a column a value: seats=12, name='\"Ada\"'."),
    ] = None
    file: Annotated[Path | None, typer.Option(help="The whole row: a JSON object of columns.")] = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCommand(SelectingCommand):
    """Publish open dead letters again, by table, key, then sequence. Without --execute only show what would be sent.

    The same bytes, attributes, ordering key and sequence: a change that has become old loses to what is newer.
    Interrupted or killed, run it again: it goes on where it was. Try one first: --limit 1.

    Of each group twenty go first, and the others when those have not come back for five seconds. Where half of a
    group's dead letters come back, and ten at least, it ends: their cause is not fixed, and more of them would make
    the consumer stop.

    Exits 0 when all that may be sent is sent (or, without --execute, would be), 1 when some of it stays open: too old
    to be safe, waiting for a person, without payload, leased by another replay, failed again, or stopped before the
    end; 3 when no dead letter is as it was asked for; 4 when it has ended because what it sent comes back failing.

    --json: {"replay", "executed", "verdicts": {verdict: dead letters}, "sent", "failed_again", "failing": {group:
    dead letters}, "left_open", "stopped", "seconds", "mirrors_asked", "dead_letters": [{"id", "table", "key",
    "sequence", "reason", "verdict", "why"}] (the first thousand), "dead_letters_left_out"}.

    Examples:

    \b
      {program} replay --table Orders
      {program} replay --table Orders --limit 1 --execute
      {program} replay --all --execute
    """

    execute: Annotated[bool, typer.Option("--execute", help="Do it, without any question.")] = False
    rate: Annotated[
        float,
        typer.Option(
            parser=_rate, metavar="NUMBER", help="Dead letters a second, at most: 0.001 to 100000, or 0 for no limit."
        ),
    ] = DEFAULT_RATE
    limit: Annotated[int | None, typer.Option(min=1, help="Dead letters to send, at most.")] = None
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Send also what waits for a person, and what is too old to be safe: that may bring deleted rows back.",
        ),
    ] = False
    everything: All = False
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCommand:
    """Show of which pipeline the dead letters are: the subscription they come from, the topic they are replayed to.

    The first collector, and the first replay, record it; others are refused. With an option, that is another from now
    on: for a subscription or a topic that takes the place of the one before, of the same pipeline. Restart the service
    then. Two pipelines take two databases.

    --json: {"subscription": full name or null, "topic": full name or null}.

    Examples:

    \b
      {program} pipeline
      {program} pipeline --subscription dead-letters-2
    """

    subscription: Annotated[
        str | None, typer.Option(help="The subscription that they are collected from, from now on.")
    ] = None
    topic: Annotated[str | None, typer.Option(help="The topic that they are replayed to, from now on.")] = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchCommand:
    """Show what the console's first page shows, again every five seconds: what needs an operator, sources and tables.

    It polls the services of CONSOLE_SERVICES. Without a terminal it prints once, and exits 1 where something is urgent.
    It has no --json: it is for people, and a program gets each service's own document at its /status.

    Examples:

    \b
      {program} watch
    """


StoreCommand = (
    ListCommand
    | ShowCommand
    | GroupsCommand
    | StatsCommand
    | ExportCommand
    | DiscardCommand
    | RestoreCommand
    | EditCommand
    | ReplayCommand
    | PipelineCommand
    | WatchCommand
)

COMMAND_LINE: Final[CommandLine[RunCommand | DoctorCommand | StoreCommand]] = CommandLine(
    "python -m services.dead_letter",
    """Dead letters: what could not be applied, why, and what to do about it.

Values of rows are masked unless --values asks for them, and asking is written into the trail; primary keys are shown.
No command asks anything: `replay` shows what it would do until --execute, and `restore` takes `discard` back.

Exit codes: 0 done; 1 something that was asked for was not done, or a service was unavailable; 2 wrong usage or
settings; 3 no dead letter is as it was asked for; 4 a replay has ended because what it sent comes back failing.

The service reports its state at /status of its health port (`stats` prints the same of the store).

Settings are environment variables: DATABASE (the store); for a replay TOPIC and GOOGLE_CLOUD_PROJECT, and
BIGQUERY_DATASET (with TABLES_FILE, if there is one) to see what is superseded; MILLRACE_USER is who acts.
""",
    {
        "run": RunCommand,
        "doctor": DoctorCommand,
        "list": ListCommand,
        "show": ShowCommand,
        "groups": GroupsCommand,
        "stats": StatsCommand,
        "export": ExportCommand,
        "discard": DiscardCommand,
        "restore": RestoreCommand,
        "edit": EditCommand,
        "replay": ReplayCommand,
        "pipeline": PipelineCommand,
        "watch": WatchCommand,
    },
)
