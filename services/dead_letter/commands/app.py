"""The command line, `python -m services.dead_letter`."""

import difflib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from services.dead_letter.app.decisions import FailingError, NotDoneError, NothingFoundError
from services.dead_letter.commands.belonging import add_belonging
from services.dead_letter.commands.changing import add_changing
from services.dead_letter.commands.output import complain
from services.dead_letter.commands.reading import add_reading
from services.dead_letter.commands.replaying import add_replaying
from services.dead_letter.commands.tools import Tools
from shared.contracts.errors import MisconfiguredError, TransientError

PROGRAM: Final = "python -m services.dead_letter"

NOT_DONE: Final = 1
WRONG: Final = 2
NOTHING: Final = 3
FAILING: Final = 4

_MISTYPED: Final = 0.85
"""How similar, of 1, a mistyped option is to the one that is meant. --filter and --after are at 0.8: both are words."""

_HELP: Final = """Dead letters: what could not be applied, why, and what to do about it.

Values of rows are masked unless --values asks for them, and asking is written into the trail; primary keys are shown.
No command asks anything: `replay` shows what it would do until --execute, and `restore` takes `discard` back.

Exit codes: 0 done; 1 something that was asked for was not done, or a service was away; 2 wrong usage or settings;
3 no letter is as it was asked for; 4 a replay has ended because what it sent comes back failing.

Beside the commands below:

\b
  run     the service itself, as without any word
  doctor  look whether all that it needs is there and right

The service says how it is at /status of its health port (`stats` says the same of the store).

Settings are environment variables: DATABASE (the store); for a replay TOPIC and GOOGLE_CLOUD_PROJECT, and
BIGQUERY_DATASET (with TABLES_FILE, if there is one) to see what is superseded; MILLRACE_USER is who acts.
"""


class _Group(TyperGroup):
    """The commands; what is wrong with an option is said without the words of the library that has found it."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command that is named."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as wrong:
            wrong.message = wrong.message.removeprefix("Value error, ")
            raise
        except Exception as wrong:
            if isinstance(near := getattr(wrong, "possibilities", None), list):  # an option that does not exist
                _explain(wrong, near)
            raise


def _explain(wrong: Any, near: list[str]) -> None:
    """Replace the library's hint, any names that are a little similar, by the option that is meant, or all options."""
    meant = difflib.get_close_matches(wrong.option_name, near, n=1, cutoff=_MISTYPED)
    options = [each for one in wrong.ctx.command.get_params(wrong.ctx) for each in one.opts if each.startswith("--")]
    hint = f"did you mean {meant[0]}?" if meant else f"the options are {', '.join(options)}"
    wrong.message, wrong.possibilities = f"no option {wrong.option_name}: {hint}", []


def run_commands(arguments: Sequence[str], tools: Tools) -> int:
    """Run what the command line says; return the exit code."""
    try:
        command_app(tools)(list(arguments), prog_name=PROGRAM)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else WRONG
    return 0


def command_app(tools: Tools) -> typer.Typer:
    """Return the commands as one application."""
    app = typer.Typer(
        cls=_Group,
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    add_reading(app, tools)
    add_changing(app, tools)
    add_replaying(app, tools)
    add_belonging(app, tools)
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_exit_code(command.callback)
    return app


def _with_exit_code(command: Callable[..., Any]) -> Callable[..., None]:
    """Let a command end with its exit code, and say what went wrong on one line."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except NothingFoundError as error:
            complain(str(error))
            raise typer.Exit(NOTHING) from None
        except FailingError as error:
            complain(str(error))
            raise typer.Exit(FAILING) from None
        except NotDoneError as error:
            complain(str(error))
            raise typer.Exit(NOT_DONE) from None
        except TransientError as error:
            complain(f"{error}; try again")
            raise typer.Exit(NOT_DONE) from None
        except MisconfiguredError as error:
            complain(str(error))
            raise typer.Exit(WRONG) from None

    return run
