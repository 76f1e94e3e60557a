"""The commands' help: each says what it does, and so do the words that are no commands of the store."""

import re

import pytest

from services.dead_letter.__main__ import main
from services.dead_letter.commands.app import NOTHING, WRONG
from tests.builders import a_change
from tests.unit.dead_letter.letters import a_letter
from tests.worlds.replaying import Shell

COMMANDS = ("list", "show", "groups", "stats", "export", "discard", "restore", "edit", "replay", "pipeline")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_what_it_does(shell: Shell, command: str) -> None:
    assert shell.run(command, "--help") == 0
    assert "--json" in shell.out or command == "export"
    assert shell.run("--help") == 0
    assert command in shell.out
    assert "Exit codes" in shell.out
    assert shell.out.lstrip().startswith("Usage: python -m services.dead_letter ")


@pytest.mark.parametrize(
    ("word", "does"), [("run", "Run the service itself"), ("doctor", "Check everything that the service needs")]
)
def test_the_words_that_are_no_commands_of_the_store_have_their_help_too(
    shell: Shell, word: str, does: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run("--help") == 0
    assert re.search(rf"^ +{word} +{does}", shell.out, re.MULTILINE)
    with pytest.raises(SystemExit) as end:
        main([word, "--help"])
    assert end.value.code == 0
    assert f"services.dead_letter {word}" in capsys.readouterr().out


def test_what_is_wrong_with_an_option_is_said_in_plain_words(shell: Shell) -> None:
    assert shell.run("list", "--reason", "nonsense") == WRONG
    assert "'nonsense' is not one of 'undecodable'" in shell.err
    assert "Value error" not in shell.err


@pytest.mark.parametrize(
    "command", [["list"], ["groups"], ["export"], ["discard", "--why", "x"], ["restore"], ["replay"]]
)
def test_a_key_that_no_letter_has_is_answered_with_how_keys_are_written(shell: Shell, command: list[str]) -> None:
    shell.world.keep(a_letter(a_change(1)))
    assert shell.run(*command, "--key", "1") == NOTHING
    assert shell.err.startswith("no dead letters match")
    assert shell.err.endswith("""; keys are written as lists show them, exactly: --key '["a",1]'\n""")
    assert shell.run(*command, "--table", "nowhere") == NOTHING
    assert "keys are written" not in shell.err
