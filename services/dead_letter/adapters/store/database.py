"""The database of the dead letter store, opened: a file of SQLite, or PostgreSQL. Its transactions and its errors.

SQLite: write-ahead log, so that readers and a writer do not wait for each other; synchronous FULL, so that what is
committed survives a power cut; a transaction that writes takes the write lock when it begins, so that it never finds
out half-way that another was faster.
PostgreSQL: synchronous_commit, where the server, the database or the role has it off, is on for the same reason; any
other of its values stays, since with all of them the server has flushed what it says is committed.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as NoConnectionLeftError

from services.dead_letter.adapters.store.migrations.versioning import is_current, migrate
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

_MIGRATION_LOCK: Final = 0x6D696C6C72616365
"""The advisory lock of PostgreSQL under which tables are made: the dead letters of `millrace`."""
_BUSY: Final = "the database is unavailable or busy"
_WAL_PAUSE: Final = timedelta(milliseconds=200)

_SQLITE_BUSY: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL}
)
_SQLITE_WRONG: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
# PostgreSQL's classes and codes, from its documentation, appendix A. 25006: a standby that has not taken over yet.
_POSTGRESQL_UNAVAILABLE: Final = ("08", "40", "53", "55P03", "57P", "57014", "58", "25006")
_POSTGRESQL_FULL: Final = "53100"
_POSTGRESQL_WRONG: Final = ("28", "3D", "3F", "42", "0A")


class DatabaseFullError(TransientError):
    """There is no room for what is to be stored."""

    fix = "make room on the disk of DATABASE, or give it a larger one: a full one takes no deletes either"


class DeadLetterDatabase:
    """Where the dead letters are. Safe for threads; opened again by each process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing = engine.execution_options(writing=True)

    @property
    def dialect(self) -> str:
        """Return ``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    @property
    def file(self) -> Path | None:
        """Return the file that it is in; None where a server holds it."""
        name = self._engine.url.database
        return Path(name) if self.dialect == "sqlite" and name else None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a transaction that only reads."""
        with database_errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a transaction that writes: committed when the block ends, undone when it raises."""
        with database_errors(), self._writing.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def open_database(address: str, *, make: bool = True, timeout: timedelta = timedelta(seconds=10)) -> DeadLetterDatabase:
    """Open the database of a SQLAlchemy URL; ``make`` its tables, or bring them up to date, where that is needed.

    ``timeout`` is how long a transaction waits for another's lock, or for a connection, before the database counts as
    busy.
    MisconfiguredError where the URL is none that is supported, or the database is of another version and may not be
    changed; TransientError while it is unavailable.
    """
    url = database_url(address)
    if not make and url.database and url.drivername == "sqlite" and not Path(url.database).exists():
        raise MisconfiguredError(
            "database-missing",
            f"there is no database {Path(url.database).absolute()}: start the service, or set DATABASE to the one that "
            "it was started with",
        )
    database = DeadLetterDatabase(_engine(url, timeout))
    try:
        if make:
            with database.writing() as connection:
                if database.dialect == "postgresql":  # SQLite has its write lock
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
                migrate(connection)
        else:
            with database.reading() as connection:
                if not is_current(connection):
                    raise MisconfiguredError(
                        "database-outdated",
                        f"the tables in {url.render_as_string()} are missing or of an older version: start the "
                        "service of this version first, which makes them",
                    )
    except BaseException:
        database.close()
        raise
    return database


def database_url(address: str) -> URL:
    """Return a SQLAlchemy URL with the driver that is installed; MisconfiguredError naming what is supported."""
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # its text is not repeated: there may be a password in it
        raise MisconfiguredError(
            "database-address-invalid",
            "DATABASE is not an address: sqlite:///PATH, or postgresql://USER:PASSWORD@HOST/DATABASE",
        ) from None
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:" and "mode=memory" not in url.database:
            return url.set(drivername="sqlite")
        case "sqlite":
            raise MisconfiguredError(
                "database-in-memory", "DATABASE is a database in memory, which keeps nothing: sqlite:///PATH"
            )
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
        case other:
            raise MisconfiguredError(
                "database-kind-unsupported",
                f"DATABASE is of a kind that is not supported: {other} (sqlite, postgresql)",
            )


def _engine(url: URL, timeout: timedelta) -> Engine:
    # hide_parameters: what is in a dead letter is no business of an error's text
    is_server = url.get_backend_name() == "postgresql"
    limits = {"pool_size": 3, "max_overflow": 7} if is_server else {}  # small servers take 25, and there are two pools
    try:
        engine = create_engine(
            url, hide_parameters=True, pool_pre_ping=is_server, pool_timeout=timeout.total_seconds(), **limits
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise MisconfiguredError(
            "database-address-malformed", f"DATABASE is not an address of a database: {error}"
        ) from error
    milliseconds = timeout // timedelta(milliseconds=1)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", partial(_prepare_sqlite, milliseconds))
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", partial(_prepare_postgresql, milliseconds))
    return engine


def _prepare_sqlite(timeout: int, connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver when it thinks fit
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout = {timeout}")
        for attempt in retrying(Stop(), timedelta(milliseconds=timeout), longest_wait=_WAL_PAUSE):
            with attempt, _busy_is_transient():
                cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA cache_size = -32000")  # KiB; of 2000, the indexes of 100,000 dead letters have no room


@contextmanager
def _busy_is_transient() -> Iterator[None]:
    """Translate the answer of a file that is just being made a write-ahead log: there SQLite does not wait itself."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if (transient := _transient(error, str(error))) is not None:
            raise transient from error
        raise


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgresql(timeout: int, connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {timeout}")
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
    connection.commit()


def _remedy(message: str) -> str:
    """Return what to do about an SQLite file that is damaged, or is none."""
    if "not a database" not in message and "malformed" not in message:
        return ""
    return (
        ": stop the service, move the file away, and put a backup of it in its place; without one a start makes an "
        "empty store, and the dead letters that the file held are lost, except what `sqlite3 FILE .recover` finds"
    )


@contextmanager
def database_errors() -> Iterator[None]:
    """Translate the errors of both databases; one that is not known goes on as it is."""
    try:
        yield
    except NoConnectionLeftError as error:
        raise TransientError(f"{_BUSY}: all connections of this process are in use") from error
    except DBAPIError as error:
        message = " ".join(str(error.orig).split())  # PostgreSQL's have several lines
        if error.connection_invalidated:
            raise TransientError(f"{_BUSY}: {message} (DATABASE)") from error
        if (transient := _transient(error.orig, message)) is not None:
            raise transient from error
        if _is_wrong(error.orig):
            raise MisconfiguredError(
                "database-unusable", f"the database cannot be used: {message} (DATABASE){_remedy(message)}"
            ) from error
        raise


def _transient(error: BaseException | None, message: str) -> TransientError | None:
    if isinstance(error, sqlite3.Error):
        is_full = _sqlite_code(error) == sqlite3.SQLITE_FULL
    else:
        is_full = getattr(error, "sqlstate", None) == _POSTGRESQL_FULL
    if is_full:
        return DatabaseFullError(f"the database is full: {message}")
    return TransientError(f"{_BUSY}: {message} (DATABASE)") if _is_unavailable(error) else None


def _is_unavailable(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) in _SQLITE_BUSY
    state = getattr(error, "sqlstate", None)
    if state is None:  # no answer from the server, or one that ended the attempt to connect
        return type(error).__name__ in ("OperationalError", "ConnectionTimeout") and not _is_wrong(error)
    return str(state).startswith(_POSTGRESQL_UNAVAILABLE)


def _is_wrong(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) in _SQLITE_WRONG
    state = getattr(error, "sqlstate", None)
    if state is None:  # libpq hands out no code for a connection that was refused: the server's words have to do
        message = str(error)
        return "FATAL" in message and (
            "authentication failed" in message or "does not exist" in message or "pg_hba" in message
        )
    return str(state).startswith(_POSTGRESQL_WRONG)


def _sqlite_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", -1) & 0xFF  # the rest says which of its kind
