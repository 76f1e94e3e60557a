"""A reader's metrics in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.spanner_reader.core.records import StreamRecord
from services.spanner_reader.core.shapes import Mark
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
    ranges_left: Mapping[str, int] = field(default_factory=dict)
    losing: bool = False
    marks: Sequence[Mark] = ()
    states: Mapping[str, int] = field(default_factory=dict)
    low_watermark: Nanoseconds | None = None
    now: Nanoseconds | None = None

    def read(self, record: StreamRecord, changes: int) -> None:
        """Count a record that was read, and the changes in it."""
        self.read_changes += changes

    def published(self, changes: int) -> None:
        """Count changes that Pub/Sub has confirmed."""
        self.published_changes += changes

    def reshaped(self, split: int, merged: int) -> None:
        """Count partitions that were split and merged."""
        self.split += split
        self.merged += merged

    def snapshot_read(self, rows: int) -> None:
        """Count rows of snapshots."""
        self.snapshot_rows += rows

    def snapshots_left(self, ranges: Mapping[str, int]) -> None:
        """Remember what is left."""
        self.ranges_left = ranges

    def violated(self) -> None:
        """Count a record that came after its heartbeat."""
        self.violations += 1

    def topic_loses(self) -> None:
        """Show that the topic does not keep what is published to it."""
        self.losing = True

    def need_resync(self, marks: Sequence[Mark], quote: str) -> None:
        """Remember which tables need re-sync."""
        self.marks = marks

    def surveyed(self, states: Mapping[str, int], low_watermark: Nanoseconds, now: Nanoseconds) -> None:
        """Remember what was shown."""
        self.states = states
        self.low_watermark = low_watermark
        self.now = now
