"""The reader's metrics, for Prometheus."""

from collections import Counter as Counting
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.bigtable_reader.app.status.status import STATES, pending_resync, state
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.core.stream.records import (
    ChangeKind,
    CloseStream,
    DataChange,
    Heartbeat,
    Microseconds,
    StreamRecord,
)
from services.bigtable_reader.core.stream.sharing import unread
from services.bigtable_reader.ports import VersionClock
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.metrics import ReaderMetrics
from shared.reading.status import PAUSED, READING

_SECOND: Final = 1_000_000


class BigtableReaderMetrics(ReaderMetrics):
    """Counts what was read and published, and shows how far all key ranges of the key space have come."""

    def __init__(self, registry: CollectorRegistry, source: str, clock: VersionClock) -> None:
        super().__init__(registry, source)
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._clock = clock
        self._changes = {kind: self._records.labels(kind.lower()) for kind in get_args(ChangeKind)}
        self._heartbeats, self._closings = self._records.labels("heartbeat"), self._records.labels("close_stream")
        self._rows = counter("millrace_reader_rows_read_back", "Rows that were read back after a change.")
        self._asked = counter("millrace_reader_read_backs_requested", "Records whose row was to be read back.")
        self._unread = gauge("millrace_reader_unread_ranges", "Key ranges that no running reader has leased.")
        self._reconciled = counter(
            "millrace_partitions_reconciled", "Partitions that had waited for a merge that did not come."
        )
        self._stalled = gauge(
            "millrace_reader_low_watermark_stalled_seconds",
            "How long the low watermark has not moved, while changes are still published.",
        )
        last_commit = gauge(
            "millrace_reader_latest_commit_timestamp_seconds",
            "Unix time of the latest commit that this reader has read.",
        )
        last_commit.set_function(lambda: self._newest / _SECOND)
        self._families = counter("millrace_reader_family_changes", "Changes of the table's column families.")
        self._kinds: set[str] = set(BigtableResyncKind)
        self._newest = 0

    def read(self, records: Sequence[StreamRecord]) -> None:
        """Count records that were read, users' and garbage collection's."""
        changes = [record for record in records if isinstance(record, DataChange)]
        for kind, number in Counting([record.kind for record in changes]).items():
            self._changes[kind].inc(number)
        self._newest = max([self._newest, *[record.commit for record in changes]])
        if len(changes) < len(records):
            self._heartbeats.inc(sum(isinstance(record, Heartbeat) for record in records))
            self._closings.inc(sum(isinstance(record, CloseStream) for record in records))

    def read_back(self, rows: int, records: int) -> None:
        """Count rows that were read back, and the records that asked for it."""
        self._rows.inc(rows)
        self._asked.inc(records)

    def reshaped(self, split: int, merged: int, reconciled: int) -> None:
        """Count key ranges that were split, merged and reconciled."""
        self._split.inc(split)
        self._merged.inc(merged)
        self._reconciled.inc(reconciled)

    def families_changed(self) -> None:
        """Count that families were added or dropped."""
        self._families.inc()

    def surveyed(self, survey: BigtablePartitionSurvey, low_watermark: Microseconds, stalled_for: timedelta) -> None:
        """Show how many key ranges are in which state, how far all have come, and since when that stands still."""
        states = Counting(state(stream_range, survey) for stream_range in survey.stream_ranges)
        low, now = Nanoseconds(low_watermark * 1_000), Nanoseconds(self._clock.now() * 1_000)
        self._reached({name: states[name] for name in STATES}, low, now)
        self._unread.set(len(unread(survey)))
        self._stalled.set(stalled_for.total_seconds())
        self._paused.set(survey.paused_since is not None)
        found = set() if survey.resync_request is None else {finding.kind for finding in survey.resync_request.findings}
        self._kinds |= found
        for kind in self._kinds:
            self._resync.labels(kind).set(kind in found)
        self._surveyed = {
            "state": READING if survey.paused_since is None else PAUSED,
            "partitions": {name: states[name] for name in STATES},
            "low_watermark": format_timestamp(low),
            "low_watermark_stalled_seconds": stalled_for.total_seconds(),
            "pending_resync": pending_resync(survey),
        }

    def document(self) -> Mapping[str, object]:
        """Return what was shown last, for `/status`: this reader's view, where `status` asks the partition table."""
        return {
            "service": "bigtable_reader",
            "state": "starting",
            **self._surveyed,
            "lag_seconds": self._lag.seconds,
            "backlogs": self.backlog.document(),
        }
