"""Which replays live: each holds a lock on a file beside the database, which ends with its process however that ends.

So a replay that was killed is known to be dead at once, whatever machine, container or user it ran as: the lock is the
kernel's, and no number of a process says so that another may have by now. A file that is not there proves nothing.
PostgreSQL has no such file: claims of dead replays end with their lease there.
"""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.dead_letter.core.dead_letters import ReplayId
from shared.contracts.errors import MisconfiguredError

_NAME: Final = re.compile("[0-9a-z]+", re.ASCII)


class ReplayLocks:
    """The locks of the replays on a database in a file; None for one that is on a server."""

    def __init__(self, database: Path | None) -> None:
        self._database = database

    @contextmanager
    def locked(self, replay: ReplayId) -> Iterator[None]:
        """Let everyone see that a replay lives while the block runs; MisconfiguredError where no file can be made."""
        path = self._path(replay)
        if path is None:
            yield
            return
        descriptor = _locked(path)
        try:
            yield
        finally:
            os.close(descriptor)  # and with it the lock; the file goes with what it holds (`bury`)

    def dead(self, replays: Iterable[ReplayId]) -> Sequence[ReplayId]:
        """Return those that have ended without letting go, as far as is known."""
        return [one for one in replays if (path := self._path(one)) is not None and not _is_locked(path)]

    def bury(self, replay: ReplayId) -> None:
        """Delete what a dead replay has left."""
        path = self._path(replay)
        if path is not None:
            path.unlink(missing_ok=True)

    def _path(self, replay: ReplayId) -> Path | None:
        if self._database is None or _NAME.fullmatch(replay) is None:
            return None
        return self._database.with_name(f"{self._database.name}.replay-{replay}")


def _locked(path: Path) -> int:
    """Return the descriptor of a file that is made and locked; its name is unique."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise MisconfiguredError(
            "replay-lock-not-made", f"{path} cannot be made: {error.strerror} (DATABASE)"
        ) from error
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _is_locked(path: Path) -> bool:
    """Return whether a process has a file locked, or may have: it cannot be opened, or is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
