"""Runs one command of the dead-letter service, and ends it with its exit code."""

from typing import Final

from services.dead_letter.app.decisions import FailingError, NotDoneError, NothingFoundError
from services.dead_letter.commands.changing import discard, edit, restore, show_pipeline
from services.dead_letter.commands.command_line import (
    DiscardCommand,
    EditCommand,
    ExportCommand,
    GroupsCommand,
    ListCommand,
    PipelineCommand,
    ReplayCommand,
    RestoreCommand,
    ShowCommand,
    StatsCommand,
    StoreCommand,
    WatchCommand,
)
from services.dead_letter.commands.output import complain
from services.dead_letter.commands.reading import export, list_dead_letters, list_groups, show, stats
from services.dead_letter.commands.replaying import replay
from services.dead_letter.commands.tools import CommandTools
from services.dead_letter.commands.watching import watch
from shared.contracts.errors import MisconfiguredError, TransientError

NOT_DONE: Final = 1
WRONG: Final = 2
NOTHING: Final = 3
FAILING: Final = 4


def run_command(command: StoreCommand, tools: CommandTools) -> int:
    """Run a command; print what went wrong on one line, and return the exit code."""
    try:
        _run(command, tools)
    except NothingFoundError as error:
        complain(str(error))
        return NOTHING
    except FailingError as error:
        complain(str(error))
        return FAILING
    except NotDoneError as error:
        complain(str(error))
        return NOT_DONE
    except TransientError as error:
        complain(f"{error}; {error.fix or 'try again'}")
        return NOT_DONE
    except MisconfiguredError as error:
        complain(str(error))
        return WRONG
    return 0


def _run(command: StoreCommand, tools: CommandTools) -> None:
    match command:
        case ListCommand():
            list_dead_letters(command, tools)
        case ShowCommand():
            show(command, tools)
        case GroupsCommand():
            list_groups(command, tools)
        case StatsCommand():
            stats(command, tools)
        case ExportCommand():
            export(command, tools)
        case DiscardCommand():
            discard(command, tools)
        case RestoreCommand():
            restore(command, tools)
        case EditCommand():
            edit(command, tools)
        case ReplayCommand():
            replay(command, tools)
        case PipelineCommand():
            show_pipeline(command, tools)
        case WatchCommand():
            watch(tools)
