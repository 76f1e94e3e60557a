"""The commands beside each service: what their help says, which needs no setting."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pytest

from services.bigtable_reader.__main__ import main as bigtable_reader
from services.cdc_consumer.__main__ import main as cdc_consumer
from services.spanner_reader.__main__ import main as spanner_reader
from shared.runtime.service import MISCONFIGURED

Main = Callable[[Sequence[str]], int]

READERS: Final = ("doctor", "status", "snapshot", "pause", "resume", "synced", "rows")
COMMANDS: Final[Mapping[Main, Sequence[str]]] = {
    spanner_reader: (*READERS[:-1], "topic", READERS[-1]),
    bigtable_reader: READERS,
    cdc_consumer: ("setup", "doctor", "status", "sweep", "reconcile"),
}
SERVICES: Final = tuple(pytest.param(main, id=main.__module__.split(".")[1]) for main in COMMANDS)
EACH: Final = tuple(
    pytest.param(main, command, id=f"{main.__module__.split('.')[1]} {command}")
    for main, commands in COMMANDS.items()
    for command in commands
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "TOPIC", "SUBSCRIPTION", "DEAD_LETTER_TOPIC"):
        monkeypatch.delenv(name, raising=False)


def ended(main: Main, *arguments: str) -> int | str | None:
    """Run a command line; return how it ended, be it at once."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("word", ["--help", "-h"])
@pytest.mark.parametrize("main", SERVICES)
def test_help_has_a_line_for_each_command(main: Main, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(main, word) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert re.findall(r"^  (\w+) +\w.*$", said.out, re.MULTILINE) == list(COMMANDS[main])
    assert said.out.startswith(f"usage: python -m {main.__module__.rpartition('.')[0]} ")


@pytest.mark.parametrize(("main", "command"), EACH)
def test_a_commands_help_needs_no_settings(main: Main, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(main, command, "--help") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"usage: python -m {main.__module__.rpartition('.')[0]} {command} ")


@pytest.mark.parametrize("main", SERVICES)
def test_a_mistyped_command_is_answered_with_those_that_there_are(
    main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(main, "swep") == MISCONFIGURED
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "error: there is no command swep"
    assert [line.split()[0] for line in rest if line.startswith("  ")] == list(COMMANDS[main])


@pytest.mark.parametrize("command", ["status", "pause", "resume", "snapshot"])
@pytest.mark.parametrize("main", [spanner_reader, bigtable_reader])
def test_what_a_command_lacks_is_said_line_by_line(
    main: Main, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(main, command) == MISCONFIGURED
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: the settings need mending:"
    assert any(line.startswith("  TOPIC is not set (") for line in lines)


@pytest.mark.parametrize("arguments", [("status", "--no"), ("rows", "all"), ("synced", "a", "b")])
@pytest.mark.parametrize("main", [spanner_reader, bigtable_reader])
def test_arguments_that_a_command_does_not_take_are_refused_before_settings_are_read(
    main: Main, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(main, *arguments) == MISCONFIGURED
    assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.parametrize("main", [spanner_reader, bigtable_reader])
def test_what_nobody_types_logs_as_the_service_does(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(main, "rows") == MISCONFIGURED
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "service_misconfigured"
