"""`millrace`, the launcher: which command of which service a command line becomes."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.__main__ import SERVICES, completion, main, usage

ROOT = Path(__file__).parents[2]


def launched(*words: str, module: str = "services", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher as the image does, or a service, in an environment that holds these variables."""
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_the_words_after_its_name(name: str) -> None:
    ran = launched(name, "no-such-command")
    direct = launched("no-such-command", module=SERVICES[name].module)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, direct.stdout, direct.stderr)


def test_a_command_of_the_consumer_needs_no_service_name() -> None:
    assert (
        launched("delete-missing-rows", "--help").stdout
        == launched("consumer", "delete-missing-rows", "--help").stdout
        != ""
    )


@pytest.mark.parametrize("words", [["--help"], ["status", "-h"], ["doctor", "--help"]])
def test_help_of_what_is_of_all_services_is_the_launchers(words: list[str]) -> None:
    ran = launched(*words)
    assert (ran.returncode, ran.stdout) == (0, usage())


def test_to_watch_takes_the_services_that_are_named() -> None:
    ran = launched("status", "--watch")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "set CONSOLE_SERVICES" in ran.stderr


def test_doctor_runs_for_each_configured_service_and_ends_with_the_highest_code() -> None:
    ran = launched("doctor", "--json", CHANGE_STREAM="stream", BIGTABLE_TABLE="table", SUBSCRIPTION="of-the-consumer")
    assert (ran.returncode, set(json.loads(ran.stdout))) == (1, {"spanner-reader", "bigtable-reader"})


def test_a_service_that_prints_no_document_has_none_and_its_exit_code_counts() -> None:
    ran = launched("status", "--json", CHANGE_STREAM="stream")
    assert (ran.returncode, json.loads(ran.stdout)) == (2, {"spanner-reader": None})
    assert "SPANNER_DATABASE is not set" in ran.stderr


def test_as_text_each_service_has_a_heading() -> None:
    ran = launched("doctor", CHANGE_STREAM="stream")
    assert ran.stdout.startswith("== spanner-reader\n")


def test_a_service_that_a_signal_ends_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("services.__main__.command_line", lambda _service, _words: ["sh", "-c", "kill -KILL $$"])
    for words in (["doctor"], ["doctor", "--json"]):
        assert main(words, {"CHANGE_STREAM": "stream"}) == 1
        assert capsys.readouterr().err == "error: spanner-reader was ended by SIGKILL\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["consumr"], "unknown service or command consumr: did you mean consumer?"),
        (["xyz"], "unknown service or command xyz: there are spanner-reader, "),
        (["status"], "no service is configured in this environment: set one of CHANGE_STREAM (spanner-reader)"),
        (["status", "--all"], "status of all services takes --json only"),
        (["completion", "tcsh"], "completion takes one of bash, zsh, fish"),
    ],
)
def test_a_wrong_command_line_is_corrected(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    environ: Mapping[str, str] = {}
    assert main(words, environ) == 2
    assert capsys.readouterr().err.startswith(f"error: {why}")


def test_a_checkout_has_the_version_of_its_project() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert launched("--version").stdout == f"millrace {wanted}\n"


def test_an_image_has_the_version_that_it_was_built_with_and_needs_no_project(tmp_path: Path) -> None:
    image = tmp_path / "app"
    (image / "services").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py"):
        (image / "services" / name).write_bytes((ROOT / "services" / name).read_bytes())
    about = image / "millrace-1.2.3.dist-info"  # as deploy/Dockerfile makes it
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: millrace\nVersion: 1.2.3\n")
    ran = subprocess.run(
        [sys.executable, "-m", "services", "--version"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(image)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "millrace 1.2.3\n")


def test_a_version_that_the_environment_names_counts() -> None:
    assert launched("--version", MILLRACE_VERSION="9.9").stdout == "millrace 9.9\n"


def test_help_names_every_service() -> None:
    assert launched("--help").stdout == usage()
    assert all(f"\n  {name} " in usage() for name in SERVICES)


def test_bash_completes_services_and_their_commands() -> None:
    script = launched("completion", "bash").stdout
    ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _millrace; echo "${COMPREPLY[@]}"'

    def completed(*words: str) -> list[str]:
        shell = ["bash", "-c", f"{script}\n{ask}", "bash", "millrace", *words]
        return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split()

    assert completed("dead") == ["dead-letters"]
    assert completed("dead-letters", "re") == ["replay", "restore"]
    assert completed("spanner-reader", "s") == ["snapshot", "status", "synced"]
    assert completed("consumer", "re") == ["reconcile"]


def test_each_shell_has_its_script() -> None:
    commands = {"consumer": ["status"]}
    assert completion("zsh", commands).startswith("autoload -U +X bashcompinit && bashcompinit\n")
    assert "complete -c millrace -n '__fish_seen_subcommand_from consumer' -a 'status'\n" in completion(
        "fish", commands
    )


def test_the_script_of_a_checkout_reports_what_to_do_without_an_environment(tmp_path: Path) -> None:
    script = tmp_path / "a checkout" / "millrace"
    script.parent.mkdir()
    script.write_bytes((ROOT / "millrace").read_bytes())
    script.chmod(0o755)
    ran = subprocess.run([script], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "run `make install` first" in ran.stderr


def test_a_reader_that_has_ended_is_no_error_of_python() -> None:
    ends, begins = os.pipe()
    os.close(ends)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "services", "--help"], cwd=ROOT, stdout=begins, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(begins)
    assert (ran.returncode, ran.stderr) == (1, b"")
