"""Where this service keeps what it knows, as its settings name it."""

from dataclasses import replace

from services.spanner_reader.adapters.snapshot.snapshot_table import SpannerSnapshotStore
from services.spanner_reader.adapters.spanner.connection import (
    CallOptions,
    SpannerChannels,
    SpannerDatabaseClient,
    directed_reads,
)
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.settings import Settings, replicas
from shared.pubsub.reader_topic import ReaderTopic
from shared.reading.byte_budget import ByteBudget


def open_channels(settings: Settings, budget: ByteBudget | None = None) -> SpannerChannels:
    """Return the connections to Spanner, or to its emulator. MisconfiguredError where no credentials are found.

    ``budget``: of what streaming calls have brought and is not handed over.
    """
    return SpannerChannels(settings.spanner_emulator_host, settings.spanner_endpoint, budget)


def databases(settings: Settings, channels: SpannerChannels) -> tuple[SpannerDatabaseClient, SpannerDatabaseClient]:
    """Return the watched database and the one of the partition table, which may be the same."""
    chosen = None if settings.directed_reads is None else directed_reads(replicas(settings.directed_reads))
    options = CallOptions(priority=settings.spanner_priority, directed_reads=chosen)
    with_role = replace(options, role=settings.database_role)
    database = SpannerDatabaseClient(settings.database_path, channels, options=with_role)
    if settings.partition_database_path == settings.database_path:
        return database, database
    return database, SpannerDatabaseClient(settings.partition_database_path, channels, options=options)


async def learn_dialects(*databases: SpannerDatabaseClient) -> None:
    """Ask each database for its dialect."""
    for database in dict.fromkeys(databases):
        await database.learn_dialect()


def partition_store(
    settings: Settings, partitions: SpannerDatabaseClient, owner: str, topic: str | None = None
) -> SpannerPartitionStore:
    """Return the partition table as one owner sees it; ``topic``: to which that publishes."""
    return SpannerPartitionStore(
        partitions,
        settings.partition_table,
        change_stream=settings.source,
        owner=owner,
        lease=settings.lease_duration,
        topic=topic,
    )


def snapshot_store(
    settings: Settings, partitions: SpannerDatabaseClient, owner: str, topic: str | None = None
) -> SpannerSnapshotStore:
    """Return the table of snapshots as one owner sees it; ``topic``: to which that publishes."""
    lease = settings.lease_duration
    return SpannerSnapshotStore(partitions, settings.partition_table, owner=owner, lease=lease, topic=topic)


def topic_of(settings: Settings) -> ReaderTopic:
    """Return where this reader publishes."""
    return ReaderTopic(settings, "spanner_reader")
