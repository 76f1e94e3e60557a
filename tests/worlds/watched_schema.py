"""A watched Spanner database whose schema changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from google.cloud.spanner_v1 import TransactionOptions, TransactionSelector

from deploy.local.platform.source import SpannerDatabase, Value, Write
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient, Statement
from services.spanner_reader.app.schema.schema_watch import remember_start
from services.spanner_reader.app.stream.owned_partition import SpannerReaderOptions
from services.spanner_reader.core.schema.shapes import SpannerResyncRequest
from services.spanner_reader.core.stream.changes import ChangeMaker
from shared.contracts.change_batch import Header
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.spanner_reader import Topic
from tests.worlds.spanner_reading import adapters

LEASE = timedelta(seconds=10)


@dataclass
class Watched:
    """A database whose one stream is ``everything`` or names ``t``; its readers' changes and resync requests."""

    database: SpannerDatabase
    partitions: SpannerDatabase
    started: Nanoseconds = field(default_factory=lambda: Nanoseconds(0))
    topic: Topic = field(default_factory=Topic)
    metrics: SpannerMetrics = field(default_factory=SpannerMetrics)

    @property
    def postgresql(self) -> bool:
        return self.database.postgresql

    def alter(self, googlesql: str, postgresql: str) -> None:
        self.database.alter(postgresql if self.postgresql else googlesql)

    def write(self, table: str, **row: Value) -> Nanoseconds:
        return self.database.commit([Write("insert_or_update", table, row)])

    @asynccontextmanager
    async def reading(
        self,
        *,
        inspect_every: timedelta = timedelta(milliseconds=200),
        remembering_start: bool = False,
        owner: str = "test",
        metrics: SpannerMetrics | None = None,
    ) -> AsyncIterator[None]:
        """Run a reader of the real adapters with a fake topic."""
        stop = Stop()
        async with adapters(self.database, "s", self.partitions, owner=owner, lease=LEASE) as made:
            if remembering_start:
                seen = await made.catalog.inspect()
                options = TablesFile().options
                await remember_start(made.catalog, made.shapes, lambda _table: True, options, self.started, seen)
            await made.partitions.add_root(self.started, None)
            reader = made.reader(
                self.topic,
                ChangeMaker("//spanner/s", 16, {}),
                SpannerReaderOptions(
                    owner=owner, lease=LEASE, heartbeat=timedelta(seconds=1), inspect_every=inspect_every
                ),
                metrics or self.metrics,
            )
            task = asyncio.create_task(reader.run(stop))
            try:
                yield
            finally:
                stop.request()
                await asyncio.wait_for(task, 20)

    async def partitioned_dml(self, statement: str) -> None:
        """Run a statement as partitioned DML, as `gcloud spanner databases execute-sql --enable-partitioned-dml`."""
        channels = SpannerChannels(self.database.instance.address)
        try:
            database = SpannerDatabaseClient(self.database.path, channels)
            session = await database.session()
            options = TransactionOptions(partitioned_dml=TransactionOptions.PartitionedDml())
            begun = await channels.client.begin_transaction(
                request={"session": session, "options": options}, metadata=database.metadata
            )
            await channels.client.execute_sql(
                Statement(statement).request(session, TransactionSelector(id=begun.id)), metadata=database.metadata
            )
        finally:
            await channels.close()

    async def synced(self, table: str) -> bool:
        channels = SpannerChannels(self.database.instance.address)
        try:
            partitions = SpannerDatabaseClient(self.partitions.path, channels)
            await partitions.learn_dialect()
            return await SpannerShapeStore(partitions, "Partitions").synced(table)
        finally:
            await channels.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110  Spanner sends no notification
                await asyncio.sleep(0.02)

    def resync_requests(self) -> dict[str, set[tuple[str, tuple[str, ...]]]]:
        requests = self.pending_resync()
        return {one.table: {(each.kind.value, each.columns) for each in one.findings} for one in requests}

    def pending_resync(self) -> list[SpannerResyncRequest]:
        return list(self.metrics.requests)

    def announced(self, table: str) -> list[list[str]]:
        headers: list[Header] = [header for header, changes in self.topic.batches if not changes]
        return [[column.name for column in header.columns] for header in headers if header.table == table]

    def changes(self, table: str) -> int:
        return sum(len(changes) for header, changes in self.topic.batches if header.table == table)


def maker_of(dialect: str, database: Callable[..., SpannerDatabase]) -> Callable[..., Watched]:
    """Return a function that makes a database with table ``t`` and a stream ``FOR`` these tables."""
    postgresql = dialect == "PostgreSQL"

    def made(watching: str = "t", captured: str = "NEW_ROW") -> Watched:
        if postgresql:
            table = "CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, a varchar, b bigint)"
            stream = f"CREATE CHANGE STREAM s FOR {watching} WITH (value_capture_type = '{captured}')"
        else:
            table = "CREATE TABLE t (id INT64 NOT NULL, a STRING(MAX), b INT64) PRIMARY KEY (id)"
            stream = f"CREATE CHANGE STREAM s FOR {watching} OPTIONS (value_capture_type = '{captured}')"
        watched = database(table, stream, postgresql=postgresql)
        return Watched(watched, database(postgresql=postgresql), watched.now())

    return made
