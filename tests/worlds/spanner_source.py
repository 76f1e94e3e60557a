"""A Spanner database with interleaved tables and a change stream, and the reader of it in this process."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from deploy.local.platform.source import Operation, SpannerDatabase, Value, Write
from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.snapshot.rows import SpannerRows
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.app.schema.schema_watch import WatchedTables
from services.spanner_reader.app.stream.owned_partition import SpannerReaderOptions
from services.spanner_reader.app.stream.reader import SpannerOutput, SpannerReader, SpannerStores, WatchedDatabase
from services.spanner_reader.core.stream.changes import ChangeMaker
from shared.contracts.change_batch import Change
from shared.contracts.tables_file import Mode, TableOptions
from shared.contracts.timestamps import Nanoseconds
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.spanner_reader import FakePublisher, Topic
from tests.fakes.subscriptions import FakeSubscriptions

TABLES = (
    """CREATE TABLE Singers (Id INT64 NOT NULL, Base STRING(10) NOT NULL, Name STRING(64), Born DATE,
         Next INT64 AS (Id + 1) STORED) PRIMARY KEY (Base, Id DESC)""",
    """CREATE TABLE Albums (Base STRING(10) NOT NULL, Id INT64 NOT NULL, Album INT64 NOT NULL, Title STRING(MAX))
         PRIMARY KEY (Base, Id DESC, Album), INTERLEAVE IN PARENT Singers ON DELETE CASCADE""",
    "CREATE TABLE Tags (Tag STRING(20) NOT NULL, Id INT64 NOT NULL) PRIMARY KEY (Tag, Id)",
    "CREATE CHANGE STREAM Everything FOR Singers, Albums, Tags OPTIONS (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')",
)
HEARTBEAT = timedelta(seconds=1)


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
        topic = Topic()
        asyncio.run(asyncio.wait_for(self._read(stream, topic, end or self.database.now(), mode), 60))
        return topic

    async def _read(self, stream: str, topic: Topic, end: Nanoseconds, mode: Mode) -> None:
        channels = SpannerChannels(self.database.instance.address)
        try:
            database = SpannerDatabaseClient(self.database.path, channels)
            await database.learn_dialect()
            lease = timedelta(seconds=30)
            store = SpannerPartitionStore(database, "Partitions", change_stream=stream, owner="test", lease=lease)
            catalog = SpannerCatalog(database, stream)
            tables = (await catalog.inspect()).watched
            await store.create_table()
            await store.add_root(self.started, end)
            reader = SpannerReader(
                WatchedDatabase(
                    stream=SpannerChangeStream(database, stream),
                    catalog=catalog,
                    rows=SpannerRows(database, data_boost=False),
                ),
                SpannerStores(
                    partitions=store,
                    shapes=SpannerShapeStore(database, "Partitions"),
                    pauses=SpannerPauseStore(database, "Partitions"),
                ),
                SpannerOutput(
                    publisher=FakePublisher(topic),
                    subscriptions=FakeSubscriptions(),
                    changes=ChangeMaker("//spanner/s", 16, {table.name: table.primary_key for table in tables}),
                    tables=WatchedTables(options=lambda name: TableOptions(name=name, mode=mode)),
                ),
                Monitoring(FakeMetrics(), Health()),
                SpannerReaderOptions(owner="test", lease=lease, heartbeat=HEARTBEAT, end=end),
            )
            await reader.run(Stop())
        finally:
            await channels.close()


def a_source(database: Callable[..., SpannerDatabase]) -> Source:
    """Return a fresh database with interleaved tables, a table of key columns only, and a change stream."""
    made = database(*TABLES)
    return Source(made, made.now())


def changes_of(topic: Topic, table: str) -> list[Change]:
    return [change for header, changes in topic.batches if header.table == table for change in changes]


def singer(number: int, name: str | None = "n") -> dict[str, Value]:
    return {"Base": "b", "Id": number, "Name": name}
