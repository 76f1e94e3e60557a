"""One collector on a file of SQLite: a lock on a file beside it.

PostgreSQL takes any number: its transactions hold each dead letter for one of them.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from services.dead_letter.adapters.store.database import database_url
from shared.runtime.file_lock import FileLock


def collector_lock(address: str) -> AbstractContextManager[None]:
    """Return the lock of a store, by its SQLAlchemy URL; MisconfiguredError at once where another process has it."""
    url = database_url(address)
    if url.get_backend_name() != "sqlite":
        return nullcontext()
    assert url.database
    database = Path(url.database)
    path = database.with_name(f"{database.name}.collector")
    return FileLock(
        path,
        "DATABASE",
        lambda owner: (
            f"another collector (process {owner}) writes to the SQLite file that {path} is beside, and it takes one: "
            "run one replica, or give the service PostgreSQL (DATABASE=postgresql://...)"
        ),
    ).locked()
