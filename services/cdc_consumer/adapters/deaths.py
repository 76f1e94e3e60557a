"""How often a process ended while it handled a message alone: small files, which no process takes along.

The driver chooses the directory and makes it; a worker that does not find it there (it runs on another machine) or
cannot write into it says that it does not know.
"""

import hashlib
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

from services.cdc_consumer.adapters.kept_file import MIRRORS

_KEPT_FOR: Final = timedelta(days=31)  # no longer does Pub/Sub keep a message
_PROBE: Final = ".probe"


def choose_directory(checkpoint: Path | None) -> Path | None:
    """Make the directory for the files, with the checkpoint if that is on a disk; None if there is nowhere to keep it.

    Elsewhere it is in the temporary place of the machine and not of the process, which would not outlive it.
    """
    directory = Path(tempfile.gettempdir()) / f"millrace-suspects-{os.getuid()}"
    if checkpoint is not None and ":" not in checkpoint.parts[0]:  # a scheme: that is no disk of ours
        directory = checkpoint.absolute() / "suspects"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = directory.stat().st_uid == os.getuid()  # anyone may have made one in a place that is everyone's
    except OSError as error:
        structlog.get_logger().warning("deaths_not_counted", why=str(error))
        return None
    return directory if ours else None


class DeathsOnDisk:
    """One file per message. ``scope``: whose messages they are, for an id is unique only there."""

    def __init__(self, directory: Path | None, scope: str) -> None:
        self._directory = directory if directory is not None and _writable(directory) else None
        self._scope = scope

    def counted(self, message: str) -> int | None:
        """Return how many processes in a row ended over a message; None if nobody can tell."""
        if self._directory is None:
            return None
        try:
            return int(self._file(self._directory, message).read_text())
        except (FileNotFoundError, ValueError):
            return 0
        except OSError as error:
            self._give_up(error)
            return None

    def count(self, message: str, deaths: int) -> None:
        """Remember that number in place of the one before; nothing is raised if that cannot be done."""
        if self._directory is None:
            return
        file = self._file(self._directory, message)
        try:
            if deaths:
                fresh = file.with_suffix(f".{os.getpid()}")
                fresh.write_text(str(deaths))
                fresh.replace(file)  # whole or not at all
            else:
                file.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)

    def _file(self, directory: Path, message: str) -> Path:
        return directory / hashlib.sha256(f"{self._scope}\0{message}".encode()).hexdigest()

    def _give_up(self, error: OSError) -> None:
        structlog.get_logger().warning("deaths_not_counted", why=str(error))
        self._directory = None


def _writable(directory: Path) -> bool:
    """Tell whether files can be written; those of messages that nobody has any more are removed."""
    probe = directory / f"{_PROBE}-{os.getpid()}"
    try:
        probe.write_text("1")
        probe.unlink()
        for file in directory.iterdir():
            if not file.name.startswith(MIRRORS) and file.stat().st_mtime < time.time() - _KEPT_FOR.total_seconds():
                file.unlink(missing_ok=True)
    except FileNotFoundError:  # it is not there, or another worker has removed a file first
        return directory.is_dir()
    except OSError as error:
        structlog.get_logger().warning("deaths_not_counted", why=str(error))
        return False
    return True
