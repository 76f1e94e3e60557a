"""A Spanner database with interleaved tables and a change stream, and the reader of it in this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deploy.local.platform.source import Operation, SpannerDatabase, Value, Write
from shared.contracts.change_batch import Change
from shared.contracts.tables_file import Mode
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.spanner_reader import Topic
from tests.worlds.spanner_reading import read_until

TABLES = (
    """CREATE TABLE Singers (Id INT64 NOT NULL, Base STRING(10) NOT NULL, Name STRING(64), Born DATE,
         Next INT64 AS (Id + 1) STORED) PRIMARY KEY (Base, Id DESC)""",
    """CREATE TABLE Albums (Base STRING(10) NOT NULL, Id INT64 NOT NULL, Album INT64 NOT NULL, Title STRING(MAX))
         PRIMARY KEY (Base, Id DESC, Album), INTERLEAVE IN PARENT Singers ON DELETE CASCADE""",
    "CREATE TABLE Tags (Tag STRING(20) NOT NULL, Id INT64 NOT NULL) PRIMARY KEY (Tag, Id)",
    "CREATE CHANGE STREAM Everything FOR Singers, Albums, Tags OPTIONS (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')",
)


@dataclass
class Source:
    """A watched database, and the time at which it was empty."""

    database: SpannerDatabase
    started: Nanoseconds

    def commit(self, *writes: tuple[Operation, str, Mapping[str, Value]]) -> Nanoseconds:
        return self.database.commit([Write(operation, table, row) for operation, table, row in writes])

    def read_all(self, stream: str = "Everything", end: Nanoseconds | None = None, *, mode: Mode = "mirror") -> Topic:
        """Read until now, with a reader of the real adapters and a fake publisher.

        From the time it was empty, or from where it was read up to the last time. ``mode`` is that of all tables.
        """
        return read_until(end or self.database.now(), self.database, stream, self.started, self.database, mode)


def a_source(database: Callable[..., SpannerDatabase]) -> Source:
    """Return a fresh database with interleaved tables, a table of key columns only, and a change stream."""
    made = database(*TABLES)
    return Source(made, made.now())


def changes_of(topic: Topic, table: str) -> list[Change]:
    return [change for header, changes in topic.batches if header.table == table for change in changes]


def singer(number: int, name: str | None = "n") -> dict[str, Value]:
    return {"Base": "b", "Id": number, "Name": name}
