"""The command `watch` on a terminal: a real process at a pseudo-terminal, which a stop ends."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("rows", "last"), [(60, "service orders: refuses connections"), (6, "more lines: enlarge")])
def test_a_terminal_shows_what_it_holds_and_how_much_more_there_is(tmp_path: Path, rows: int, last: str) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 120, 0, 0))
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "TERM": "xterm",
        "PYTHONPATH": str(ROOT),
        "DATABASE": f"sqlite:///{tmp_path / 'letters.sqlite3'}",
        "CONSOLE_SERVICES": "orders=http://127.0.0.1:1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "services.dead_letter", "watch"], env=environ, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    try:
        shown = _until(master, last)
        assert "1 thing needs attention" in shown
        assert ("service orders" in shown) == (rows == 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _until(terminal: int, text: str) -> str:
    """Return what a terminal has shown when a text is there."""
    shown, until = b"", time.monotonic() + 60
    while text.encode() not in shown:
        ready, _w, _x = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, shown.decode(errors="replace")
        shown += os.read(terminal, 65536)
    return shown.decode(errors="replace")
