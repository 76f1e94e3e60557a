"""What both readers count and show, for Prometheus."""

import math
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from shared.contracts.timestamps import Nanoseconds
from shared.runtime.backlog import BacklogMetrics
from shared.runtime.metrics import PublishingMetrics, ReaderLag, TableLabels

_SECOND: Final = 1_000_000_000


class ReaderMetrics:
    """Counts what is published, and shows how far all partitions have come. A reader adds what its source has.

    What is not known yet is NaN, of which no alert fires: 0 would be an answer.
    """

    def __init__(self, registry: CollectorRegistry, source: str) -> None:
        """``source``: the change stream's full name, as messages have it."""
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._records = counter("millrace_reader_records", "Change stream records that this reader has read.", ["kind"])
        self.publishing = PublishingMetrics(registry)
        """What the publisher counts by itself."""
        self.backlog = BacklogMetrics(registry)
        """What waits for the consumer, and how long all stores still keep what waits."""
        self._published = counter("millrace_published_changes", "Changes that Pub/Sub has confirmed.")
        self._snapshot_rows = counter(
            "millrace_reader_snapshot_rows", "Snapshot rows that Pub/Sub has confirmed.", ["table"]
        )
        self._snapshot_ranges = gauge(
            "millrace_reader_snapshot_ranges_left",
            "Key ranges that snapshots have left to read, by all readers together.",
            ["table"],
        )
        self._tables = TableLabels()
        self._ranges_shown: Collection[str] = ()
        self._partitions = gauge("millrace_partitions", "Partitions by state.", ["state"])
        self._split = counter("millrace_partitions_split", "Partitions that this reader has split.")
        self._merged = counter("millrace_partitions_merged", "Partitions that this reader has merged.")
        self._low_watermark = gauge(
            "millrace_reader_low_watermark_timestamp_seconds",
            "Unix time up to which every change is confirmed by Pub/Sub.",
        )
        self._lag = ReaderLag(registry)
        self._retention = gauge("millrace_reader_retention_seconds", "How long the change stream retains its records.")
        paused = gauge("millrace_reader_paused", "1 while the stream is paused, else 0.", ["source"])
        self._paused = paused.labels(source)
        for unknown in (self._low_watermark, self._retention, self._paused):
            unknown.set(math.nan)
        self._leases_lost = counter(
            "millrace_reader_leases_lost", "Partition leases that were lost to another reader or not renewed in time."
        )
        self._resync = gauge(
            "millrace_reader_tables_pending_resync",
            "Tables that are pending resync, by what changed their data without change records.",
            ["kind"],
        )
        self._surveyed: Mapping[str, object] = {}

    def published(self, changes: int) -> None:
        """Count changes that Pub/Sub has confirmed."""
        self._published.inc(changes)

    def snapshot_read(self, table: str, rows: int) -> None:
        """Count rows of a table's snapshots that Pub/Sub has confirmed."""
        self._snapshot_rows.labels(self._tables.of(table)).inc(rows)

    def snapshots_left(self, ranges: Mapping[str, int]) -> None:
        """Show how many ranges of which tables are left to be read."""
        left: dict[str, int] = dict.fromkeys(self._ranges_shown, 0)
        for table, number in ranges.items():
            left[self._tables.of(table)] = left.get(self._tables.of(table), 0) + number
        for table, number in left.items():
            self._snapshot_ranges.labels(table).set(number)
        self._ranges_shown = left.keys()

    def lease_lost(self) -> None:
        """Count a partition that was lost to another reader, or whose lease could not be renewed in time."""
        self._leases_lost.inc()

    def kept_for(self, retention: timedelta, left: timedelta) -> None:
        """Show for how long the stream keeps what is not read yet, and for how long still the oldest of it."""
        self._retention.set(retention.total_seconds())
        self.backlog.stream_keeps(left)

    def _reached(self, states: Mapping[str, int], low_watermark: Nanoseconds, now: Nanoseconds) -> None:
        """Show how many partitions are in which state, and how far all of them have come."""
        for state, count in states.items():
            self._partitions.labels(state).set(count)
        self._low_watermark.set(low_watermark / _SECOND)
        self._lag.set(max(0, now - low_watermark) / _SECOND)
