"""One kind of command line for every service: a command is a frozen dataclass, and its fields are what it takes.

`CommandLine.parse` makes one of them from the words of a command line; the service's `wiring` runs it.
"""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import typer
from typer.main import get_command

from shared.contracts.errors import MisconfiguredError

T = TypeVar("T")

Tables = Annotated[
    list[str], typer.Argument(metavar="TABLE", default_factory=list, help="A source table.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_MISTYPED: Final = 0.82
"""How similar, of 1, a mistyped option is to the one that is meant. --filter and --after are at 0.8: both are words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCommand:
    """A command that takes nothing but how its answer is printed."""

    json: Json = False


class DoctorCommand(JsonCommand):
    """Check everything that the service needs.

    Every check runs, whatever the others find, and each finding comes with its fix. Exits 0 if there is no error, else
    1. It takes the service's own settings and changes nothing. It needs no running service.

    Examples:

    \b
      {program} doctor
      {program} doctor --json
    """


class ReaderStatusCommand(JsonCommand):
    """Print how far all readers are, and what needs attention.

    The partition table is read; no reader has to run. Exits 1 where something needs attention.

    Examples:

    \b
      {program} status
      {program} status --json
    """


class TopicCommand(JsonCommand):
    """Let the readers publish to another topic from now on.

    That is TOPIC, in place of the topic they published to. No reader may run. What the former topic still holds stays
    there: let its consumer apply all of it.

    Examples:

    \b
      TOPIC=changes-2 {program} topic
      TOPIC=changes-2 {program} topic --json
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCommand:
    """Answer for the source: what `delete-missing-rows` and `reconcile` of the consumer start.

    It answers, line by line on standard input and output, what they ask of the rows (--source, SOURCE_ROWS). It is
    not meant to be typed, except to try it.

    Examples:

    \b
      echo '{"is": "list_tables"}' | {program} rows
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCommand:
    """What the command `snapshot` of both readers takes."""

    after: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only rows behind this key, as the mirror has it.")
    ] = None
    until: Annotated[str | None, typer.Option(metavar="KEY", help="Only rows up to and with this key.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be read, and do nothing.")] = False
    status: Annotated[bool, typer.Option("--status", help="Print how far the snapshots are.")] = False
    watch: Annotated[bool, typer.Option("--watch", help="Wait until nothing is left to read; bars on a terminal.")] = (
        False
    )
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel what is left to read.")] = False
    json: Json = False

    def __post_init__(self) -> None:
        """Refuse --cancel beside what promises to change nothing, or less."""
        given = {
            "--status": self.status,
            "--dry-run": self.dry_run,
            "--after": self.after is not None,
            "--until": self.until is not None,
        }
        if self.cancel and any(given.values()):
            others = ", ".join(name for name, present in given.items() if present)
            raise typer.BadParameter(f"--cancel cancels all that is left to read: leave out {others}, or --cancel")


@dataclass(frozen=True, slots=True)
class CommandLine(Generic[T]):
    """The commands beside a service, by their names; the first line of a command's docstring describes it."""

    program: str
    about: str
    commands: Mapping[str, type[T]]

    def parse(self, arguments: Sequence[str]) -> T:
        """Return the command that the words name; end with 0 after printing the help that they ask for.

        MisconfiguredError says what is wrong with them, and names the nearest command or option.
        """
        name = arguments[0]
        if unread := next((each for each in arguments if not _is_text(each)), None):
            raise MisconfiguredError(
                "argument-not-utf-8",
                f"{unread!r} is not UTF-8, as all arguments have to be: set the terminal and LANG to UTF-8 (C.UTF-8)",
            )
        if not name.startswith("-") and name not in self.commands:
            near = difflib.get_close_matches(name, self.commands, n=1)
            meant = f": did you mean {near[0]}?" if near else ""
            raise MisconfiguredError(
                "unknown-command",
                f"unknown command {name}{meant}\n"
                f"the commands are {', '.join(self.commands)}; `{self.program} --help` describes them",
            )
        try:
            parsed = get_command(self._application())(list(arguments), prog_name=self.program, standalone_mode=False)
        except typer.TyperException as error:
            raise MisconfiguredError(
                "invalid-arguments", f"{_wrong(error)}\n`{self.program} {name} --help` lists what it takes"
            ) from error
        if isinstance(parsed, int):  # the exit code of a help
            raise SystemExit(parsed)
        command: T = parsed
        return command

    def _application(self) -> typer.Typer:
        application = typer.Typer(
            help=self.about,
            add_completion=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        application.callback()(lambda: None)  # one command alone has its name, too
        for name, command in self.commands.items():
            text = inspect.getdoc(command) or ""
            application.command(name, help=text.replace("{program}", self.program))(command)
        return application


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:  # bytes that Python could not decode
        return False
    return True


def _wrong(error: Any) -> str:
    """Return what is wrong with a command line; of an option that does not exist, which one was meant, or all."""
    name = getattr(error, "option_name", None)
    if name is None or not hasattr(error, "possibilities"):
        return str(error.format_message()).replace("Value error, ", "")
    known = [each for one in error.ctx.command.get_params(error.ctx) for each in one.opts if each.startswith("--")]
    near = difflib.get_close_matches(name, known, n=1, cutoff=_MISTYPED)
    return f"no option {name}: " + (f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}")
