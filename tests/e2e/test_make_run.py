"""The two commands that a user types, as a user types them."""

import os
import signal
import subprocess
from pathlib import Path

from deploy.local.services import child_environment

ROOT = Path(__file__).resolve().parents[2]


def test_make_run_ends_with_equal_tables_and_leaves_nothing_running() -> None:
    before = _ours()
    size = {"ROWS": "500", "SECONDS": "15", "RATE": "60"}

    run = subprocess.run(
        ["make", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | size,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    for table in ("flights", "planes", "airlines", "airports"):
        assert table in run.stdout
    assert _ours() - before == set()


def test_ctrl_c_ends_make_run_soon_and_leaves_nothing_running() -> None:
    before = _ours()
    run = subprocess.Popen(
        ["make", "run"],
        cwd=ROOT,
        env=child_environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "starting spanner_reader" in line:
            break

    os.killpg(run.pid, signal.SIGINT)  # what a terminal does
    run.communicate(timeout=60)

    assert run.returncode != 0
    assert _ours() - before == set()


def _ours() -> set[int]:
    """Return the processes of this machine that run from this checkout or are emulators."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            directory = (entry / "cwd").resolve()
        except OSError:
            continue
        if any(word in command for word in (b"emulator", b"services.", b"deploy.local", b"pyspark")) or (
            directory.is_relative_to(ROOT / ".run")
        ):
            found.add(int(entry.name))
    return found
