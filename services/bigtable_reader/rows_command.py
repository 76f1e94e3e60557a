"""`python -m services.bigtable_reader rows`: answer, line by line, what a command of the consumer asks of the rows.

That command starts this as its child; nobody types it. It takes the reader's own settings.
"""

import sys
from datetime import timedelta
from functools import partial

from services.bigtable_reader.adapters.catalog import BigtableCatalog
from services.bigtable_reader.adapters.connection import Channels, Table
from services.bigtable_reader.adapters.partition_rows import PartitionRows
from services.bigtable_reader.adapters.partition_table import BigtablePartitionStore
from services.bigtable_reader.adapters.rows import BigtableRows
from services.bigtable_reader.adapters.scan import BigtableScan
from services.bigtable_reader.adapters.snapshot_row import BigtableSnapshotStore
from services.bigtable_reader.core.filters import Watched
from services.bigtable_reader.core.images import ImageMaker
from services.bigtable_reader.core.partitions import Survey
from services.bigtable_reader.core.records import Microseconds
from services.bigtable_reader.core.seen import require_the_same_cluster
from services.bigtable_reader.core.snapshot import watched_ranges
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.snapshot_command import key_of
from services.bigtable_reader.source_rows import PublishedRows
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.checked_publisher import checked_publisher
from shared.pubsub.names import topic_path
from shared.pubsub.packer import Limits
from shared.runtime.clock import SystemClock
from shared.runtime.source_rows import answer_requests
from shared.runtime.stop import Stop
from shared.runtime.tables_file import load_tables_file


async def rows(settings: Settings) -> int:
    """Answer requests until there are none any more; return the exit code."""
    _text, file = load_tables_file(settings.tables_file)
    name = settings.bigtable_table
    options = file.options(name)
    if not file.included(name) or options.mode == "history":
        raise MisconfiguredError(f"table {name} has no mirror to compare with: see the tables file (include, mode)")
    channels = Channels(settings.bigtable_emulator_host)
    stop = Stop()
    try:
        table = Table(settings.instance_path, name, settings.app_profile)
        partitions = PartitionRows(
            channels,
            Table(settings.partition_instance_path, settings.partition_table, settings.partition_profile),
            settings.stream_name,
        )
        store = BigtablePartitionStore(
            partitions,
            source=settings.table_path,
            owner="",
            lease=settings.lease_duration,
            retention=timedelta(0),
        )
        snapshots = BigtableSnapshotStore(partitions, owner="", lease=settings.lease_duration)
        found, known = await BigtableCatalog(channels, table).seen(), await store.seen()
        if known is not None and found.routed_to is not None:
            require_the_same_cluster(known.routed_to, found.routed_to)
        watched = Watched(options.bigtable)

        async def look() -> Survey:
            return await store.view(Microseconds(SystemClock().now() // 1_000))

        async def run() -> int:
            snapshot = await snapshots.survey()
            return 0 if snapshot is None else snapshot.run

        pattern, versions = watched.family_pattern(), options.bigtable.versions
        answers = PublishedRows(
            table=name,
            keys=watched_ranges(prefix.encode() for prefix in options.bigtable.key_prefixes),
            images=ImageMaker(
                source=settings.source,
                table=name,
                options=options.bigtable,
                families=found.families,
                buckets=options.buckets or settings.buckets,
                watched=watched,
            ),
            watched=watched,
            key_of=partial(key_of, options=options.bigtable),
            scan=BigtableScan(channels, table, family_pattern=pattern, versions=versions),
            rows=BigtableRows(channels, table, family_pattern=pattern, versions=versions),
            look=look,
            run=run,
            publisher=lambda: checked_publisher(
                settings.pubsub_emulator_host,
                topic_path(settings.project, settings.topic),
                topic_path(settings.project, settings.dead_letter_topic),
                stop,
                keep_messages_for=settings.keep_messages_for,
                limits=Limits(changes_per_message=settings.batch_changes, bytes_per_message=settings.batch_bytes),
                failed_in="bigtable_reader",
            ),
            stop=stop,
        )
        await answer_requests(answers, sys.stdin.buffer, sys.stdout.buffer)
    finally:
        await channels.close()
    return 0
