"""What a command line becomes, for tests that call a command with what it takes."""

from typing import Any, TypeVar

from shared.runtime.commands import CommandLine

C = TypeVar("C")


def parsed(line: CommandLine[Any], kind: type[C], *words: str) -> C:
    """Return the command that these words name, which is one of this kind."""
    command = line.parse(words)
    assert isinstance(command, kind)
    return command
