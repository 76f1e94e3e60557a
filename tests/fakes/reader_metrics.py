"""A reader's metrics in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.core.schema.shapes import SpannerResyncRequest
from services.spanner_reader.core.stream.records import RecordKind
from shared.contracts.timestamps import Nanoseconds


@dataclass
class FakeMetrics:
    """Counts in memory."""

    read_changes: int = 0
    published_changes: int = 0
    split: int = 0
    merged: int = 0
    violations: int = 0
    snapshot_rows: int = 0
    completed_changes: Counter[str] = field(default_factory=Counter)
    completion_reads: int = 0
    completion_failures: int = 0
    dropped_changes: Counter[str] = field(default_factory=Counter)
    pauses: Pauses | None = None
    leases_lost: int = 0
    retention: timedelta | None = None
    losing: bool = False
    requests: Sequence[SpannerResyncRequest] = ()
    low_watermark: Nanoseconds | None = None
    now: Nanoseconds | None = None

    def read(self, kind: RecordKind, records: int = 1, changes: int = 0) -> None:
        """Count records that were read, and the changes in them."""
        self.read_changes += changes

    def published(self, changes: int) -> None:
        """Count changes that Pub/Sub has confirmed."""
        self.published_changes += changes

    def reshaped(self, split: int, merged: int) -> None:
        """Count partitions that were split and merged."""
        self.split += split
        self.merged += merged

    def dropped(self, table: str, changes: int) -> None:
        """Count changes that were dropped."""
        self.dropped_changes[table] += changes

    def paused(self, pauses: Pauses) -> None:
        """Remember what is paused."""
        self.pauses = pauses

    def completed(self, changes: int, *, reconstructed: bool = False) -> None:
        """Count completed changes."""
        self.completed_changes["reconstructed" if reconstructed else "exact"] += changes

    def completion_read(self, seconds: float) -> None:
        """Count reads."""
        self.completion_reads += 1

    def completion_failed(self) -> None:
        """Count failures."""
        self.completion_failures += 1

    def lease_lost(self) -> None:
        """Count a lost partition."""
        self.leases_lost += 1

    def kept_for(self, retention: timedelta, left: timedelta) -> None:
        """Remember the retention."""
        self.retention = retention

    def snapshot_read(self, table: str, rows: int) -> None:
        """Count rows of snapshots."""
        self.snapshot_rows += rows

    def snapshots_left(self, ranges: Mapping[str, int]) -> None:
        """Remember nothing."""

    def violated(self) -> None:
        """Count a record that came after its heartbeat."""
        self.violations += 1

    def topic_loses(self) -> None:
        """Show that the topic does not keep what is published to it."""
        self.losing = True

    def set_pending_resync(self, requests: Sequence[SpannerResyncRequest], quote: str) -> None:
        """Remember which tables are pending resync."""
        self.requests = requests

    def surveyed(self, states: Mapping[str, int], low_watermark: Nanoseconds, now: Nanoseconds) -> None:
        """Remember what was shown."""
        self.low_watermark = low_watermark
        self.now = now
