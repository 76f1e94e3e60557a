"""`with_engine.sh`: a command runs where a container engine answers, is brought up, or not at all."""

import os
import subprocess
from pathlib import Path

import pytest

from deploy.local.platform.emulators import ROOT

SCRIPT = ROOT / "deploy/local/with_engine.sh"
UNAVAILABLE = 69


def run(tmp_path: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command where no engine answers, with what bash needs on PATH and a `docker` of the test's own."""
    path = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(
        [SCRIPT, *command], env={"PATH": path, **variables}, capture_output=True, text=True, check=False, timeout=60
    )


def executable(path: Path, *lines: str) -> Path:
    """Write a script."""
    path.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return a script that brings up what the `docker` of the test then asks, and notes what it is asked."""
    executable(tmp_path / "docker", '[ -n "$ENGINE_IS_UP" ]')
    return executable(
        tmp_path / "engine.sh",
        f'echo "$1" >>{tmp_path}/asked',
        '[ "$1" != env ] || echo "export ENGINE_IS_UP=yes"',
        '[ "$1" != up ] || [ -d "$2" ]',
    )


def test_where_none_is_and_none_can_be_had_it_reports_what_to_install(tmp_path: Path) -> None:
    executable(tmp_path / "docker", "false")
    ran = run(tmp_path, "echo", "never", CONTAINER_ENGINE=str(tmp_path / "nothing"))
    assert (ran.returncode, ran.stdout) == (UNAVAILABLE, "")
    assert "docker.io and docker-compose" in ran.stderr


def test_where_one_runs_nothing_is_brought_up(tmp_path: Path, engine: Path) -> None:
    ran = run(tmp_path, "echo", "done", CONTAINER_ENGINE=str(engine), ENGINE_IS_UP="yes")
    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("code", [0, 3])
def test_one_is_brought_up_for_as_long_as_the_command_takes(tmp_path: Path, engine: Path, code: int) -> None:
    ran = run(tmp_path, "bash", "-c", f"docker version && exit {code}", CONTAINER_ENGINE=str(engine))
    assert ran.returncode == code, ran.stderr
    assert (tmp_path / "asked").read_text().split() == ["up", "env", "down"]


def test_one_that_does_not_come_up_is_none(tmp_path: Path) -> None:
    executable(tmp_path / "docker", "false")
    engine = executable(tmp_path / "engine.sh", '[ "$1" != up ]')
    ran = run(tmp_path, "echo", "never", CONTAINER_ENGINE=str(engine))
    assert ran.returncode == UNAVAILABLE
    assert "never" not in ran.stdout
