"""The commands beside a service: its `--help` lists them, and each one's needs no settings."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shared.contracts.errors import MisconfiguredError


@dataclass(frozen=True, slots=True)
class Command:
    """One of them: what it does, in a line, and what parses its arguments.

    ``parser``: None where the command does that itself, before it reads settings.
    """

    does: str
    parser: Callable[[], argparse.ArgumentParser] | None = None


def check_arguments(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> None:
    """Print the help that is asked for, and end with 0; end with 2 where a command does not take its arguments.

    MisconfiguredError where there is no such command.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage(program, commands))
        raise SystemExit(0)
    name, *rest = arguments
    if name not in commands:
        near = difflib.get_close_matches(name, commands, n=1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise MisconfiguredError(
            f"unknown command {name}{meant}\nthe commands are {', '.join(commands)}; `{program} --help` describes them"
        )
    make = commands[name].parser
    if make is not None:
        parsed(make(), rest)


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return what arguments say; end with 2 where they are wrong, naming the option that is meant by a mistyped one."""
    unknown = [word for word in parser.parse_known_args(arguments)[1] if word.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_option_meant(parser, unknown[0])}")
    return parser.parse_args(arguments)


def _option_meant(parser: argparse.ArgumentParser, typed: str) -> str:
    options = sorted(set(re.findall(r"--[a-z][a-z-]*", parser.format_help())))
    near = difflib.get_close_matches(typed, options, n=1)
    return f" (did you mean {near[0]}?)" if near else f" (the options are {', '.join(options)})"


def usage(program: str, commands: Mapping[str, Command]) -> str:
    """Return how a program is called, with a line for each command."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.does}\n" for name, command in commands.items()]
    return (
        f"usage: {program} [COMMAND ...]\n\nWithout a command it is the service itself. Its settings, and those of "
        f"commands, are environment variables\n(docs/reference/configuration.md).\n\n{''.join(lines)}\n"
        f"`{program} COMMAND --help` says what a command takes.\n"
    )


def without_arguments(program: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a command that takes none."""
    return argparse.ArgumentParser(program, description=description)


def reader_status_parser(program: str) -> argparse.ArgumentParser:
    """Return what parses the arguments of a reader's ``status``."""
    parser = argparse.ArgumentParser(
        f"{program} status",
        description="Print what the partition table says of all readers; no reader has to run. Exits 1 where something "
        "needs attention.",
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser
