"""One collector on a file of SQLite: a lock on a file beside it, which ends with the process however it ends.

PostgreSQL takes any number: its transactions hold each letter for one of them.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from services.dead_letter.adapters.database import database_url
from services.dead_letter.ports import CollectorLock
from shared.contracts.errors import MisconfiguredError


class FileLock:
    """A lock on a file beside the database. The file stays: whoever removed it might remove another's lock."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}.collector")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it while the block runs; MisconfiguredError at once where another collector does."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise MisconfiguredError(f"{self._path} cannot be opened: {error.strerror} (DATABASE)") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                raise MisconfiguredError(
                    f"another collector (process {holder}) writes to the SQLite file that {self._path} is beside, and "
                    "it takes one: run one replica, or give the service PostgreSQL (DATABASE=postgresql://...)"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)  # and with it the lock


class NoLock:
    """What a store needs that takes any number of collectors."""

    def held(self) -> AbstractContextManager[None]:
        """Hold nothing."""
        return nullcontext()


def collector_lock(address: str) -> CollectorLock:
    """Return the lock of a store, by its SQLAlchemy URL."""
    url = database_url(address)
    if url.get_backend_name() != "sqlite":
        return NoLock()
    assert url.database
    return FileLock(Path(url.database))
