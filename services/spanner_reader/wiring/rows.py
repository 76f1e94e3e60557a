"""`python -m services.spanner_reader rows`: answer, line by line, what a command of the consumer asks of tables' rows.

That command starts this as its child. It takes the reader's own settings.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.snapshot.rows import SpannerRows
from services.spanner_reader.adapters.stream.topic_table import SpannerTopicStore
from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.source_rows import SpannerSourceRows
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.settings import Settings
from services.spanner_reader.wiring.stores import databases, learn_dialects, open_channels, partition_store, topic_of
from shared.pubsub.publisher import BatchPublisher
from shared.reading.source_rows import answer_requests
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file


async def rows(settings: Settings) -> int:
    """Answer requests until there are none left; return the exit code."""
    _text, file = load_tables_file(settings.tables_file)
    async with open_channels(settings) as channels:
        stop = Stop()
        database, partitions = databases(settings, channels)
        await database.learn_dialect()

        @asynccontextmanager
        async def publisher() -> AsyncIterator[BatchPublisher]:
            await learn_dialects(partitions)
            store = partition_store(settings, partitions, owner="command")
            if await store.exists() and not await store.is_empty():  # nor is it another change stream's
                await SpannerTopicStore(partitions, settings.partition_table).check(topic_of(settings).identity)
            async with topic_of(settings).checked_publisher(stop) as opened:
                yield opened

        catalog = SpannerCatalog(database, settings.change_stream)
        retention = (await catalog.definition()).retention.total_seconds()
        changes = ChangeMaker(settings.source, settings.buckets, {}, lambda table: file.options(table).buckets)
        answers = SpannerSourceRows(
            MirroredTables(catalog, changes, file.included),
            SpannerRows(database, data_boost=False),  # in key order: an interrupted reading continues
            publisher,
            stop,
        )
        await answer_requests(answers, sys.stdin.buffer, sys.stdout.buffer, retention)
    return 0
