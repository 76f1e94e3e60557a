"""`python -m services.bigtable_reader rows`: answer, line by line, what a command of the consumer asks of the rows.

That command starts this as its child. It takes the reader's own settings.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog
from services.bigtable_reader.adapters.snapshot.scan import BigtableScan
from services.bigtable_reader.adapters.stream.rows import BigtableRows
from services.bigtable_reader.adapters.stream.topic_cell import check_topic
from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.source_rows import BigtableSourceRows
from services.bigtable_reader.commands.snapshot import key_of
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker
from services.bigtable_reader.core.schema.seen import require_the_same_cluster
from services.bigtable_reader.core.schema.watching import check_the_same_is_watched, watching_of
from services.bigtable_reader.core.snapshot.snapshot import watched_ranges
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.wiring.stores import (
    MicrosecondClock,
    partition_rows,
    partition_store,
    resync_store,
    snapshot_store,
    topic_of,
    watched_table,
)
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.publisher import BatchPublisher
from shared.reading.source_rows import answer_requests
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file


async def rows(settings: Settings) -> int:
    """Answer requests until there are none left; return the exit code.

    MisconfiguredError where readers watch something else: what this command would answer, or publish, is not of theirs.
    """
    _text, file = load_tables_file(settings.tables_file)
    name = settings.bigtable_table
    options = file.options(name)
    if not file.included(name) or options.mode == "history":
        raise MisconfiguredError(
            "bigtable-table-without-mirror",
            f"table {name} has no mirror to compare with: see the tables file (include, mode)",
        )
    async with BigtableChannels(settings.bigtable_emulator_host) as channels:
        stop, clock = Stop(), MicrosecondClock()
        table = watched_table(settings)
        partitions = partition_rows(settings, channels)
        store = partition_store(settings, partitions, "", timedelta(0))
        snapshots = snapshot_store(settings, channels, "")
        watching, resyncs = watching_of(options.mode, options.bigtable), resync_store(settings, channels)
        found, known = await BigtableCatalog(channels, table).seen(), await store.seen()
        if known is not None and found.routed_to is not None:
            require_the_same_cluster(known.routed_to, found.routed_to)
        check_the_same_is_watched(watching, await resyncs.watching())
        watched = Watched(options.bigtable)

        async def survey() -> tuple[BigtablePartitionSurvey, int]:
            stream_ranges, snapshot = await store.view(clock.now()), await snapshots.survey()
            return stream_ranges, 0 if snapshot is None else snapshot.run

        @asynccontextmanager
        async def publisher() -> AsyncIterator[BatchPublisher]:
            check_the_same_is_watched(watching, await resyncs.watching())  # now, for readers may have come since
            await check_topic(partitions, topic_of(settings).identity)
            async with topic_of(settings).checked_publisher(stop) as opened:
                yield opened

        images = ImageMaker(
            source=settings.source,
            table=name,
            options=options.bigtable,
            families=found.families,
            buckets=options.buckets or settings.buckets,
            watched=watched,
        )
        answers = BigtableSourceRows(
            MirroredRows(images, watched_ranges(prefix.encode() for prefix in options.bigtable.key_prefixes)),
            partial(key_of, options=options.bigtable),
            BigtableScan(channels, table, watched),
            BigtableRows(channels, table, watched),
            survey,
            publisher,
        )
        await answer_requests(answers, sys.stdin.buffer, sys.stdout.buffer, found.retention or 0)
    return 0
