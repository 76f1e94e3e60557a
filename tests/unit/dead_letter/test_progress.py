"""How far long work has come is shown on a terminal, and nowhere else."""

import io
import os
import sys
from contextlib import suppress

import pytest

from services.dead_letter.commands.output import progress


def test_a_terminal_shows_how_far_work_has_come_and_keeps_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = os.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            with progress("replayed", 10) as bar:
                bar(advance=3, note="3 sent")
        shown = _all_of(ours).decode()
    finally:
        os.close(ours)

    assert "replayed" in shown
    assert "3/10" in shown.replace(" ", "")
    assert "3 sent" in shown
    assert shown.rindex("\x1b[2K") > shown.rindex("3 sent")  # the line is taken away again


def test_without_a_terminal_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    with progress("replayed", 10) as bar:
        bar(advance=3, note="3 sent")
    assert piped.getvalue() == ""


def _all_of(ours: int) -> bytes:
    """Return what a terminal whose other side is closed has been given; it comes in pieces."""
    shown = b""
    with suppress(OSError):  # the end of it, on Linux
        while part := os.read(ours, 1 << 16):
            shown += part
    return shown
