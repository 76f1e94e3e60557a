"""The commands beside each service: what their help says, which needs no setting."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from services.bigtable_reader.__main__ import main as bigtable_reader
from services.cdc_consumer.__main__ import main as cdc_consumer
from services.dead_letter.__main__ import main as dead_letter
from services.spanner_reader.__main__ import main as spanner_reader
from shared.runtime.service import MISCONFIGURED

Main = Callable[[Sequence[str]], int]

READERS: Final = ("doctor", "status", "snapshot", "pause", "resume", "synced", "topic", "rows")
COMMANDS: Final[Mapping[Main, Sequence[str]]] = {
    spanner_reader: READERS,
    bigtable_reader: READERS,
    cdc_consumer: ("setup", "doctor", "status", "delete-missing-rows", "reconcile", "advise", "tables"),
    dead_letter: (
        *("run", "doctor", "list", "show", "groups", "stats", "export", "discard", "restore", "edit", "replay"),
        *("pipeline", "watch"),
    ),
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
    shown = capsys.readouterr()
    assert shown.err == ""
    assert re.findall(r"^  ([\w-]+) +\w.*$", shown.out.partition("Commands:\n")[2], re.MULTILINE) == list(
        COMMANDS[main]
    )
    assert shown.out.startswith(f"Usage: python -m {main.__module__.rpartition('.')[0]} ")


@pytest.mark.parametrize(("main", "command"), EACH)
def test_a_commands_help_needs_no_settings(main: Main, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(main, command, "--help") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith(f"Usage: python -m {main.__module__.rpartition('.')[0]} {command} ")


@pytest.mark.parametrize("main", SERVICES)
def test_a_mistyped_command_is_answered_with_all_there_are(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(main, "docotr") == MISCONFIGURED
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: unknown command docotr: did you mean doctor?"
    assert second.startswith(f"the commands are {', '.join(COMMANDS[main])}; ")


@pytest.mark.parametrize("arguments", [("discard", "--all", "--why", "f\udcfcr"), ("list", "--table", "f\udcfcr")])
def test_an_argument_that_is_no_utf_8_is_refused_with_the_fix(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE", f"sqlite:///{tmp_path}/dead_letters.sqlite3")
    assert ended(dead_letter, *arguments) == MISCONFIGURED
    shown = capsys.readouterr().err
    assert shown.startswith("error: 'f\\udcfcr' is not UTF-8, as all arguments have to be: set the terminal")


@pytest.mark.parametrize("command", ["status", "pause", "resume", "snapshot"])
@pytest.mark.parametrize("main", [spanner_reader, bigtable_reader])
def test_what_a_command_lacks_is_reported_by_line(main: Main, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(main, command) == MISCONFIGURED
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: invalid configuration:"
    assert any(line.startswith("  TOPIC is not set (") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("status", "--no"), "no option --no: the options are --json"),
        (("rows", "all"), "unexpected extra argument(s) (all)"),
        (("synced", "a", "b"), "unexpected extra argument(s) ("),
    ],
)
@pytest.mark.parametrize("main", [spanner_reader, bigtable_reader])
def test_arguments_that_a_command_does_not_take_are_refused_before_settings_are_read(
    main: Main, arguments: Sequence[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(main, *arguments) == MISCONFIGURED
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "command"),
    [
        *[(main, ("status",)) for main in (spanner_reader, bigtable_reader)],
        *[
            (cdc_consumer, each)
            for each in (("status",), ("doctor",), ("delete-missing-rows", "t", "--before", "x"), ("reconcile",))
        ],
        *[(main, ("doctor",)) for main in (spanner_reader, bigtable_reader, dead_letter)],
    ],
)
def test_a_mistyped_option_is_answered_with_the_one_that_was_meant(
    main: Main, command: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(main, *command, "--jsno") == MISCONFIGURED
    assert "error: no option --jsno: did you mean --json?" in capsys.readouterr().err


def test_a_command_warns_of_a_variable_that_is_nearly_a_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE", f"sqlite:///{tmp_path}/none.sqlite3")
    monkeypatch.setenv("TABLE_FILE", "tables.toml")
    assert ended(dead_letter, "list") == MISCONFIGURED
    warned, error = capsys.readouterr().err.splitlines()
    assert warned.startswith("warning: TABLE_FILE is set, but no setting has that name: set TABLES_FILE if that is")
    assert error.startswith("there is no database")


@pytest.mark.parametrize("main", [spanner_reader, bigtable_reader])
def test_what_is_not_typed_logs_as_the_service_does(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(main, "rows") == MISCONFIGURED
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "service_misconfigured"
