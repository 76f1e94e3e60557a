"""A reader of the real adapters on a database of the emulator, with a fake topic: what is published, as messages."""

import asyncio
from datetime import timedelta

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.snapshot.rows import SpannerRows
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.app.stream.owned_partition import SpannerReaderOptions
from services.spanner_reader.app.stream.reader import SpannerOutput, SpannerReader, SpannerStores, WatchedDatabase
from services.spanner_reader.core.stream.changes import ChangeMaker
from shared.contracts.change_batch import encode_batch
from shared.contracts.timestamps import Nanoseconds
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.spanner_reader import FakePublisher, Topic
from tests.fakes.subscriptions import FakeSubscriptions

LEASE = timedelta(seconds=30)
SECONDS = 60


def read_all(source: SpannerDatabase, stream: str, start: Nanoseconds, partitions: SpannerDatabase) -> list[bytes]:
    """Return the change batches of a stream from ``start`` until now, announcements of tables among them.

    The partition table is made in ``partitions``, which may be the same database.
    """
    topic = Topic()
    asyncio.run(asyncio.wait_for(_read(source, stream, start, partitions, topic), SECONDS))
    return [encode_batch(header, changes) for header, changes in topic.batches]


async def _read(
    source: SpannerDatabase, stream: str, start: Nanoseconds, partitions: SpannerDatabase, topic: Topic
) -> None:
    channels = SpannerChannels(source.instance.address)
    try:
        database, end = SpannerDatabaseClient(source.path, channels), source.now()
        elsewhere = database if partitions.path == source.path else SpannerDatabaseClient(partitions.path, channels)
        for each in (database, elsewhere):
            await each.learn_dialect()
        store = SpannerPartitionStore(elsewhere, "Partitions", change_stream=stream, owner="test", lease=LEASE)
        catalog = SpannerCatalog(database, stream)
        tables = (await catalog.inspect()).watched
        await store.create_table()
        await store.add_root(start, end)
        reader = SpannerReader(
            WatchedDatabase(
                stream=SpannerChangeStream(database, stream),
                catalog=catalog,
                rows=SpannerRows(database, data_boost=False),
            ),
            SpannerStores(
                partitions=store,
                shapes=SpannerShapeStore(elsewhere, "Partitions"),
                pauses=SpannerPauseStore(elsewhere, "Partitions"),
            ),
            SpannerOutput(
                publisher=FakePublisher(topic),
                subscriptions=FakeSubscriptions(),
                changes=ChangeMaker(source.path, 16, {table.name: table.primary_key for table in tables}),
            ),
            Monitoring(FakeMetrics(), Health()),
            SpannerReaderOptions(owner="test", lease=LEASE, heartbeat=timedelta(seconds=1), end=end),
        )
        await reader.run(Stop())
    finally:
        await channels.close()
