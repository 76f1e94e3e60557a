"""A reader of the real adapters on a database of the emulator, with a fake topic: what is published, as messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from deploy.local.platform.source import SpannerDatabase
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
from shared.contracts.change_batch import encode_batch
from shared.contracts.tables_file import Mode, TableOptions
from shared.contracts.timestamps import Nanoseconds
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.spanner_reader import FakePublisher, Topic
from tests.fakes.subscriptions import FakeSubscriptions

SECONDS = 60


@dataclass
class Adapters:
    """What a reader of a stream ``FOR`` some tables is made of; its partition table may be in another database."""

    database: SpannerDatabaseClient
    stream: str
    catalog: SpannerCatalog
    partitions: SpannerPartitionStore
    shapes: SpannerShapeStore
    pauses: SpannerPauseStore

    def reader(
        self,
        topic: Topic,
        changes: ChangeMaker,
        options: SpannerReaderOptions,
        metrics: SpannerMetrics,
        tables: WatchedTables | None = None,
    ) -> SpannerReader:
        return SpannerReader(
            WatchedDatabase(
                stream=SpannerChangeStream(self.database, self.stream),
                catalog=self.catalog,
                rows=SpannerRows(self.database, data_boost=False),
            ),
            SpannerStores(partitions=self.partitions, shapes=self.shapes, pauses=self.pauses),
            SpannerOutput(
                publisher=FakePublisher(topic),
                subscriptions=FakeSubscriptions(),
                changes=changes,
                tables=tables or WatchedTables(),
            ),
            Monitoring(metrics, Health()),
            options,
        )


@asynccontextmanager
async def adapters(
    source: SpannerDatabase, stream: str, partitions: SpannerDatabase, *, owner: str = "test", lease: timedelta
) -> AsyncIterator[Adapters]:
    """Connect, and make the partition table where there is none."""
    channels = SpannerChannels(source.instance.address)
    try:
        database = SpannerDatabaseClient(source.path, channels)
        elsewhere = database if partitions.path == source.path else SpannerDatabaseClient(partitions.path, channels)
        for each in (database, elsewhere):
            await each.learn_dialect()
        store = SpannerPartitionStore(elsewhere, "Partitions", change_stream=stream, owner=owner, lease=lease)
        await store.create_table()
        yield Adapters(
            database,
            stream,
            SpannerCatalog(database, stream),
            store,
            SpannerShapeStore(elsewhere, "Partitions"),
            SpannerPauseStore(elsewhere, "Partitions"),
        )
    finally:
        await channels.close()


def read_all(source: SpannerDatabase, stream: str, start: Nanoseconds, partitions: SpannerDatabase) -> list[bytes]:
    """Return the change batches of a stream from ``start`` until now, announcements of tables among them.

    The partition table is made in ``partitions``, which may be the same database.
    """
    topic = read_until(source.now(), source, stream, start, partitions)
    return [encode_batch(header, changes) for header, changes in topic.batches]


def read_until(
    end: Nanoseconds,
    source: SpannerDatabase,
    stream: str,
    start: Nanoseconds,
    partitions: SpannerDatabase,
    mode: Mode = "mirror",
) -> Topic:
    """Read a stream up to ``end``, from ``start`` or from where it was read up to the last time."""
    topic, lease = Topic(), timedelta(seconds=30)

    async def reading() -> None:
        async with adapters(source, stream, partitions, lease=lease) as made:
            tables = (await made.catalog.inspect()).watched
            await made.partitions.add_root(start, end)
            reader = made.reader(
                topic,
                ChangeMaker(source.path, 16, {table.name: table.primary_key for table in tables}),
                SpannerReaderOptions(owner="test", lease=lease, heartbeat=timedelta(seconds=1), end=end),
                SpannerMetrics(),
                WatchedTables(options=lambda name: TableOptions(name=name, mode=mode)),
            )
            await reader.run(Stop())

    asyncio.run(asyncio.wait_for(reading(), SECONDS))
    return topic
