"""How a dead-letter store's database is opened: made, brought up to date, refused where not ours. In both kinds."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from services.dead_letter.adapters.store.database import DeadLetterDatabase, database_errors, open_database
from services.dead_letter.adapters.store.migrations.versioning import VERSION_TABLE
from services.dead_letter.adapters.store.schema import dead_letters, metadata, pipeline
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import DeadLetterId
from services.dead_letter.core.pipeline import Pipeline
from services.dead_letter.core.selection import Selection
from shared.contracts.dead_letter import REPLAY_OF
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.retries import what_to_check
from tests.contract.dead_letter_stores import NOW, a_dead_letter, an_arrival, identity


@contextmanager
def opened(
    address: str, *, make: bool = True, timeout: timedelta = timedelta(seconds=10)
) -> Iterator[DeadLetterDatabase]:
    """Open a database for a block."""
    database = open_database(address, make=make, timeout=timeout)
    try:
        yield database
    finally:
        database.close()


def use_every_connection(database: DeadLetterDatabase) -> None:
    """Begin transactions until there is no connection left for one more, which raises."""
    with ExitStack() as used:
        for _ in range(1_000):
            used.enter_context(database.reading())


class VersionsContract:
    """The promises. A subclass gives the address of a database that is empty."""

    def test_an_empty_database_is_made_ready(self, address: str) -> None:
        with opened(address) as database:
            SqlDeadLetterStore(database).keep([an_arrival()], NOW)

    def test_what_was_kept_is_there_when_it_is_opened_again(self, address: str) -> None:
        with opened(address) as database:
            SqlDeadLetterStore(database).keep([an_arrival()], NOW)
        for make in (True, False):
            with opened(address, make=make) as database:
                stored = SqlDeadLetterStore(database).get(identity(a_dead_letter()))
                assert stored is not None
                assert stored.dead_letter == a_dead_letter()

    def test_a_database_whose_connections_are_all_in_use_is_busy(self, address: str) -> None:
        with opened(address, timeout=timedelta(milliseconds=50)) as database:
            with pytest.raises(TransientError, match="all connections of this process are in use"):
                use_every_connection(database)
            assert SqlDeadLetterStore(database).count(Selection()) == 0

    def test_the_migrations_make_what_the_schema_says(self, address: str) -> None:
        with opened(address) as database, database.reading() as connection:
            sqlite_only = {} if database.dialect == "sqlite" else {"letters_in_replay_order"}
            options = {"version_table": VERSION_TABLE, "include_object": lambda _, name, *__: name not in sqlite_only}
            context = MigrationContext.configure(connection, opts=options)
            assert compare_metadata(context, metadata) == []

    def test_a_store_of_the_first_version_keeps_its_dead_letters_and_learns_whose_they_are(self, address: str) -> None:
        with opened(address) as database:
            SqlDeadLetterStore(database).keep([an_arrival()], NOW)
            with database.writing() as connection:  # what the later versions have beside the first
                connection.execute(text(f"DROP TABLE {pipeline.name}"))
                for index in ("letters_replay_of", "letter_trail_decisions"):
                    connection.execute(text(f"DROP INDEX {index}"))
                connection.execute(text(f"ALTER TABLE {dead_letters.name} DROP COLUMN replay_of"))
                connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
        with pytest.raises(MisconfiguredError, match="of an older version: start the service"):
            open_database(address, make=False)
        mine = Pipeline(subscription="projects/p/subscriptions/ours")
        with opened(address) as database:
            store = SqlDeadLetterStore(database)
            assert store.get(identity(a_dead_letter())) is not None
            assert store.pipeline() == Pipeline()
            assert store.join(mine) == mine
            again = a_dead_letter(attributes={REPLAY_OF: "1" * 32})
            store.keep([an_arrival(again, message_id="m2")], NOW)
            assert store.brought_back([DeadLetterId("1" * 32)], NOW) == set()
            assert store.brought_back([DeadLetterId("1" * 32)], Nanoseconds(0)) == {"1" * 32}

    def test_arrivals_are_kept_by_the_same_statements_however_many_come(self, address: str) -> None:
        with opened(address) as database:
            store = SqlDeadLetterStore(database)
            cached = []
            for number in range(1, 31):
                store.keep([an_arrival(a_dead_letter(row), message_id=f"{number} {row}") for row in range(number)], NOW)
                cached.append(len(database._engine._compiled_cache or ()))
        assert cached[-1] == cached[1], "each other number of conditions would be another statement"

    def test_a_reason_that_only_a_newer_version_knows_is_unexplained(self, address: str) -> None:
        with opened(address) as database:
            store = SqlDeadLetterStore(database)
            store.keep([an_arrival()], NOW)
            with database.writing() as connection:
                connection.execute(text(f"UPDATE {dead_letters.name} SET reason = 'of_a_newer_version'"))
            one = store.get(identity(a_dead_letter()))
            assert one is not None
            reasons = [one.dead_letter.reason, *(line.reason for line in store.find(Selection(), limit=1).dead_letters)]
            reasons += [group.reason for group in store.groups(Selection(), limit=1)]
            assert [*reasons, *store.stats().by_reason] == [Reason.UNEXPLAINED] * 4

    def test_several_that_start_at_once_do_not_collide(self, address: str) -> None:
        def start(row: int) -> None:
            with opened(address) as database:
                SqlDeadLetterStore(database).keep([an_arrival(a_dead_letter(row))], NOW)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(start, range(6)))
        with opened(address, make=False) as database:
            assert SqlDeadLetterStore(database).count(Selection()) == 6

    def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(self, address: str) -> None:
        with opened(address) as database, database.writing() as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        for make in (True, False):
            with pytest.raises(MisconfiguredError, match=r"version 9999, which a newer .* run that version"):
                open_database(address, make=make)
        engine = create_engine(address)
        with engine.connect() as connection:
            assert connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one() == "9999"
        engine.dispose()

    def test_dead_letters_of_another_pipeline_are_refused(self, address: str) -> None:
        engine = create_engine(address)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE letters (a text)"))
        engine.dispose()
        with pytest.raises(MisconfiguredError, match="no dead_letter service made"):
            open_database(address)

    def test_what_only_reads_makes_no_tables(self, address: str) -> None:
        with pytest.raises(MisconfiguredError, match="start the service"):
            open_database(address, make=False)
        with opened(address):
            pass


class TestSqliteVersions(VersionsContract):
    @pytest.fixture
    def address(self, request: pytest.FixtureRequest) -> str:
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'letters.sqlite3'}"

    def test_what_is_committed_is_on_the_disk(self, address: str) -> None:
        with opened(address) as database, database.writing() as connection:
            pragmas = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}

    def test_a_command_does_not_make_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(MisconfiguredError, match=r"there is no database /.*set DATABASE"):
            open_database(f"sqlite:///{tmp_path}/none.sqlite3", make=False)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_cannot_be_opened_is_a_mistake_in_the_settings(self, tmp_path: Path) -> None:
        with pytest.raises(MisconfiguredError, match="unable to open database file"):
            open_database(f"sqlite:///{tmp_path}/no/such/folder/letters.sqlite3")

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "letters.sqlite3").write_text("no database at all, but a long enough text " * 50)
        with pytest.raises(
            MisconfiguredError,
            match=r"not a database \(DATABASE\): stop the service, move the file away, and put a backup",
        ):
            open_database(f"sqlite:///{tmp_path}/letters.sqlite3")

    @pytest.mark.parametrize("make", [True, False])
    def test_a_file_that_is_damaged_behind_its_first_page_is_refused(self, address: str, make: bool) -> None:
        with opened(address) as database:
            SqlDeadLetterStore(database).keep([an_arrival()], NOW)
        file = Path(address.removeprefix("sqlite:///"))
        whole = file.read_bytes()
        page = int.from_bytes(whole[16:18], "big")
        file.write_bytes(whole[:page] + b"\xff" * (len(whole) - page))
        with pytest.raises(
            MisconfiguredError,
            match=r"image is malformed \(DATABASE\): stop the service, move the file away, and put a backup",
        ):
            open_database(address, make=make)

    def test_a_file_that_another_holds_for_too_long_is_busy(self, address: str) -> None:
        with opened(address, timeout=timedelta(milliseconds=50)) as database:
            store = SqlDeadLetterStore(database)
            other = sqlite3.connect(address.removeprefix("sqlite:///"), isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            assert store.count(Selection()) == 0  # readers do not wait
            with pytest.raises(TransientError, match="locked"):
                store.keep([an_arrival()], NOW)
            other.execute("ROLLBACK")
            other.close()
            store.keep([an_arrival()], NOW)
            assert store.count(Selection()) == 1

    def test_a_full_disk_is_no_matter_of_the_network(self, address: str) -> None:
        with opened(address) as database:
            with database.writing() as connection:
                connection.exec_driver_sql("PRAGMA max_page_count = 1")  # so many as there are, then
                with pytest.raises(TransientError, match="the database is full") as caught, database_errors():
                    connection.exec_driver_sql("CREATE TABLE more AS SELECT randomblob(1000000) AS bytes")
            assert what_to_check(caught.value).startswith("make room on the disk of DATABASE, or give it a larger one")


class TestPostgresqlVersions(VersionsContract):
    @pytest.fixture
    def address(self, request: pytest.FixtureRequest) -> str:
        server: str = request.getfixturevalue("postgresql")
        engine = create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("DROP DATABASE IF EXISTS versions WITH (FORCE)"))
            connection.execute(text("CREATE DATABASE versions"))
        engine.dispose()
        return server.replace("/letters?", "/versions?")

    def test_a_database_that_is_not_there_is_a_mistake_in_the_settings(self, address: str) -> None:
        with pytest.raises(MisconfiguredError, match="does not exist"):
            open_database(address.replace("/versions?", "/nowhere?"))

    def test_a_server_that_does_not_answer_is_unavailable(self, tmp_path: Path) -> None:
        with pytest.raises(TransientError, match="unavailable or busy"):
            open_database(f"postgresql://u:secret@/letters?host={tmp_path}")

    @pytest.mark.parametrize(("of_the_role", "of_ours"), [("off", "on"), ("on", "on"), ("local", "local")])
    def test_what_is_committed_is_on_disk_whatever_the_role(self, address: str, of_the_role: str, of_ours: str) -> None:
        engine = create_engine(address, isolation_level="AUTOCOMMIT")
        shown = text("SHOW synchronous_commit")
        try:
            with engine.connect() as connection:
                setting = f"SET synchronous_commit = {of_the_role}"
                connection.execute(text(f"ALTER ROLE CURRENT_USER IN DATABASE versions {setting}"))
            engine.dispose()
            with engine.connect() as connection:
                assert connection.execute(shown).scalar_one() == of_the_role
        finally:
            engine.dispose()
        with opened(address) as database:
            with database.writing() as connection:
                assert connection.execute(shown).scalar_one() == of_ours
            with database.writing() as connection:  # and stays so, when the connection is used again
                assert connection.execute(shown).scalar_one() == of_ours

    def test_a_connection_that_is_cut_is_recreated(self, address: str) -> None:
        with opened(address) as database:
            store = SqlDeadLetterStore(database)
            store.keep([an_arrival()], NOW)
            with pytest.raises(TransientError, match="unavailable or busy"), database.writing() as connection:
                connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
            assert store.count(Selection()) == 1


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "not an address: sqlite:///PATH, or postgresql://USER:PASSWORD@HOST/DATABASE"),
        ("letters.sqlite3", "not an address: sqlite:///PATH, or postgresql://"),
        ("sqlite://", "in memory, which keeps nothing: sqlite:///PATH"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://u:secret@host/d", r"not supported: mysql \(sqlite, postgresql\)"),
        ("oracle+oracledb://u:secret@host/d", "not supported: oracle"),
    ],
)
def test_what_is_no_address_of_a_store_is_refused_without_its_password(address: str, message: str) -> None:
    with pytest.raises(MisconfiguredError, match=message) as caught:
        open_database(address)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_unavailable_is_named_with_what_to_check_on_one_line() -> None:
    with pytest.raises(TransientError) as caught:
        open_database("postgresql://u:secret@127.0.0.1:1/letters")
    message = str(caught.value)
    assert message.startswith("the database is unavailable or busy: ")
    assert message.endswith("(DATABASE)")
    assert "Is the server running on that host" in message
    assert message.isprintable()
    assert "secret" not in message
