"""A few bytes that a process leaves to the next one: a file beside those that count deaths."""

import hashlib
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

_KEPT_FOR: Final = timedelta(hours=1)
"""Longer than any restart is waited for: what is older tells nothing of what goes on now."""
MIRRORS: Final = "mirrors"
"""What a file is called that says when mirrors were made."""


class KeptFile:
    """One file in a directory that the driver has made; without one, nothing is kept.

    ``scope``: whose it is. Of several processes that write at a time the last one's stays. ``kept_for``: None where it
    tells the same however old it is; what is called `MIRRORS` is then never removed.
    """

    def __init__(
        self, directory: Path | None, name: str, scope: str, *, kept_for: timedelta | None = _KEPT_FOR
    ) -> None:
        self._kept_for = kept_for
        digest = hashlib.sha256(scope.encode()).hexdigest()
        self._file = None if directory is None else directory / f"{name}-{digest}"

    def read(self) -> bytes | None:
        """Return what was written last; None if that is long ago, or cannot be read."""
        try:
            if self._file is None:
                return None
            if self._kept_for and self._file.stat().st_mtime < time.time() - self._kept_for.total_seconds():
                return None
            return self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            structlog.get_logger().warning("file_not_read", name=self._file.name if self._file else "", why=str(error))
            return None

    def write(self, data: bytes) -> None:
        """Keep this in place of what was kept before; nothing is raised if that cannot be done."""
        if self._file is None:
            return
        fresh = self._file.with_suffix(f".{os.getpid()}")
        try:
            fresh.write_bytes(data)
            fresh.replace(self._file)  # whole or not at all
        except OSError as error:
            structlog.get_logger().warning("file_not_written", name=self._file.name, why=str(error))
            self._file = None  # it would be said again with every task
