"""The two commands that a user types, as a user types them."""

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from deploy.local.services import child_environment

ROOT = Path(__file__).resolve().parents[2]


def test_make_run_ends_with_equal_tables_and_leaves_nothing_running() -> None:
    mark = _new_mark()
    size = {"ROWS": "500", "SECONDS": "15", "RATE": "60"}

    run = subprocess.run(
        ["make", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | size | mark,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    for table in ("flights", "planes", "airlines", "airports"):
        assert table in run.stdout
    assert _running(mark) == []


def test_ctrl_c_ends_make_run_soon_and_leaves_nothing_running() -> None:
    mark = _new_mark()
    run = subprocess.Popen(
        ["make", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | mark,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "starting spanner_reader" in line:
            break

    assert any("spanner" in command for command in _running(mark)), "its processes bear the mark"
    os.killpg(run.pid, signal.SIGINT)  # what a terminal does
    run.communicate(timeout=60)

    assert run.returncode != 0
    assert _running(mark) == []


def _new_mark() -> dict[str, str]:
    """Return a variable that every process of a run inherits, and no other."""
    return {"LC_MILLRACE_TEST": uuid.uuid4().hex}


def _running(mark: Mapping[str, str]) -> list[str]:
    """Return the commands of the processes that bear the mark and still run."""
    words = [f"{name}={value}".encode() for name, value in mark.items()]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in environment for word in words):
            found.append(f"{entry.name} {command}")
    return found
