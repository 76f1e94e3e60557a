"""Where this service keeps what it knows, and what it inspects, as its settings name them."""

from datetime import timedelta
from typing import Final

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.schema.resync_cell import BigtableResyncStore
from services.bigtable_reader.adapters.snapshot.snapshot_row import BigtableSnapshotStore
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_table import BigtablePartitionStore, PartitionTimes
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.core.stream.topology import MergeTimeouts
from services.bigtable_reader.settings import Settings
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.reader_topic import ReaderTopic
from shared.runtime.clock import SystemClock

_MICROSECOND: Final = 1_000  # in nanoseconds


class MicrosecondClock:
    """This machine's clock."""

    def now(self) -> Microseconds:
        """Return the time."""
        return Microseconds(SystemClock().now() // _MICROSECOND)


def micros(time: Nanoseconds | None) -> Microseconds | None:
    """Return a time of the settings as Bigtable has it."""
    return None if time is None else Microseconds(time // _MICROSECOND)


def watched_table(settings: Settings) -> Table:
    """Return the watched table."""
    return Table(settings.instance_path, settings.bigtable_table, settings.app_profile)


def partition_rows(settings: Settings, channels: BigtableChannels) -> PartitionRows:
    """Return the partition table's rows of this change stream."""
    table = Table(settings.partition_instance_path, settings.partition_table, settings.partition_profile)
    return PartitionRows(channels, table, settings.stream_name)


def partition_store(
    settings: Settings, rows: PartitionRows, owner: str, retention: timedelta, topic: str | None = None
) -> BigtablePartitionStore:
    """Return the partition table as one owner sees it; ``topic``: to which that publishes."""
    return BigtablePartitionStore(
        rows,
        source=settings.table_path,
        owner=owner,
        times=PartitionTimes(
            lease=settings.lease_duration,
            retention=retention,
            merge=MergeTimeouts(merge=settings.wait_for_merge, token=settings.wait_for_token),
        ),
        topic=topic,
    )


def snapshot_store(
    settings: Settings, channels: BigtableChannels, owner: str, watching: str = ""
) -> BigtableSnapshotStore:
    """Return what there is to read of snapshots, as one owner sees it; the digest of what it watches, if it may ask."""
    rows = partition_rows(settings, channels)
    return BigtableSnapshotStore(rows, owner=owner, lease=settings.lease_duration, watching=watching)


def resync_store(settings: Settings, channels: BigtableChannels) -> BigtableResyncStore:
    """Return what needs all rows to be read again."""
    return BigtableResyncStore(partition_rows(settings, channels))


def topic_of(settings: Settings) -> ReaderTopic:
    """Return where this reader publishes."""
    return ReaderTopic(settings, "bigtable_reader")
