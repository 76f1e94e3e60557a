"""The help of every command of every service has examples, and each of them is a command line that it takes."""

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

import pytest

from services.bigtable_reader.commands.command_line import COMMAND_LINE as BIGTABLE_READER
from services.cdc_consumer.commands.command_line import COMMAND_LINE as CDC_CONSUMER
from services.dead_letter.commands.command_line import COMMAND_LINE as DEAD_LETTER
from services.spanner_reader.commands.command_line import COMMAND_LINE as SPANNER_READER
from shared.runtime.commands import CommandLine

COMMAND_LINES: Final[Mapping[str, CommandLine[Any]]] = {
    "bigtable_reader": BIGTABLE_READER,
    "cdc_consumer": CDC_CONSUMER,
    "dead_letter": DEAD_LETTER,
    "spanner_reader": SPANNER_READER,
}
COMMANDS: Final = [(service, name) for service, line in COMMAND_LINES.items() for name in line.commands]


@pytest.mark.parametrize(("service", "name"), COMMANDS)
def test_help_has_examples_that_the_command_takes(service: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = COMMAND_LINES[service]
    with pytest.raises(SystemExit):
        line.parse([name, "--help"])
    _, heading, below = capsys.readouterr().out.partition("Examples:\n")
    assert heading
    examples = [one.strip() for one in below.partition("\nOptions:")[0].splitlines() if one.startswith("    ")]
    assert examples
    for example in examples:
        before, program, words = example.rpartition(f"{line.program} ")
        assert program
        assert re.fullmatch(r"(.*\| |[A-Z_]+=\S+ )?", before)  # a pipe into it, or a setting of it
        assert isinstance(line.parse(shlex.split(words)), line.commands[name])
