"""The reader's metrics, for Prometheus."""

from collections.abc import Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.spanner_reader.app.status.status import paused_tables, resync
from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.core.schema.shapes import SpannerResyncKind, SpannerResyncRequest
from services.spanner_reader.core.stream.records import RecordKind
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.metrics import ReaderMetrics
from shared.reading.status import PAUSED, READING


class SpannerReaderMetrics(ReaderMetrics):
    """Counts what was read and published, and shows how far all partitions have come."""

    def __init__(self, registry: CollectorRegistry, source: str) -> None:
        super().__init__(registry, source)
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._changes = counter("millrace_reader_changes", "Changes that this reader has read.")
        self._late = counter("millrace_reader_late_records", "Records that came after a heartbeat that excluded them.")
        self._resync_requests: Sequence[Mapping[str, object]] = ()
        self._paused_tables = gauge(
            "millrace_reader_paused_tables", "Tables that are paused and whose changes are dropped."
        )
        self._dropped = counter(
            "millrace_reader_dropped_changes",
            "Changes that this reader has dropped because their table is paused.",
            ["table"],
        )
        self._completed = counter(
            "millrace_reader_completed_changes",
            "Changes that carried only some columns and that this reader has completed from their rows of then.",
        )
        self._reconstructed = counter(
            "millrace_reader_reconstructed_changes",
            "Changes that this reader has completed from their rows of now because those of then cannot be read.",
        )
        self._completion_reads = Histogram(
            "millrace_reader_completion_read_seconds",
            "How long the reads took that completed rows, each for many changes of a table.",
            registry=registry,
        )
        self._completion_failures = counter(
            "millrace_reader_completion_failures",
            "Reads that were to complete rows and failed, and changes that cannot be completed.",
        )
        self._pauses = Pauses(Nanoseconds(0))

    def read(self, kind: RecordKind, records: int = 1, changes: int = 0) -> None:
        """Count records of one kind that were read, and the changes in them."""
        self._records.labels(kind).inc(records)
        self._changes.inc(changes)

    def reshaped(self, split: int, merged: int) -> None:
        """Count partitions that were split and merged."""
        self._split.inc(split)
        self._merged.inc(merged)

    def dropped(self, table: str, changes: int) -> None:
        """Count changes that were dropped, for their table is paused."""
        self._dropped.labels(self._tables.of(table)).inc(changes)

    def completed(self, changes: int, *, reconstructed: bool = False) -> None:
        """Count changes whose rows were completed, ``reconstructed`` from rows of another time."""
        (self._reconstructed if reconstructed else self._completed).inc(changes)

    def completion_read(self, seconds: float) -> None:
        """Count a read that completed rows, and how long it took."""
        self._completion_reads.observe(seconds)

    def completion_failed(self) -> None:
        """Count a read that was to complete rows and failed, or a change that cannot be completed."""
        self._completion_failures.inc()

    def paused(self, pauses: Pauses) -> None:
        """Show what is paused."""
        self._pauses = pauses
        self._paused.set(pauses.stream is not None)
        self._paused_tables.set(len(pauses.paused_tables))

    def violated(self) -> None:
        """Count a record that was returned after a heartbeat which said that it would not come."""
        self._late.inc()

    def set_pending_resync(self, requests: Sequence[SpannerResyncRequest], quote: str) -> None:
        """Show how many tables are pending resync, and why; ``quote`` is what the database's SQL has around a name."""
        self._resync_requests = [resync(request, quote) for request in requests]
        for kind in SpannerResyncKind:
            self._resync.labels(kind.value).set(
                sum(kind in {one.kind for one in request.findings} for request in requests)
            )

    def surveyed(self, states: Mapping[str, int], low_watermark: Nanoseconds, now: Nanoseconds) -> None:
        """Show how many partitions are in which state, and how far all of them have come."""
        self._reached(states, low_watermark, now)
        self._surveyed = {
            "state": READING if self._pauses.stream is None else PAUSED,
            "paused_tables": paused_tables(self._pauses),
            "now": format_timestamp(now),
            "partitions": dict(states),
            "low_watermark": format_timestamp(low_watermark),
        }

    def document(self) -> Mapping[str, object]:
        """Return what was shown last, for `/status`: this reader's view, where `status` asks the partition table."""
        return {
            "service": "spanner_reader",
            "state": "starting",
            **self._surveyed,
            "lag_seconds": self._lag.seconds,
            "pending_resync": self._resync_requests,
            "backlogs": self.backlog.document(),
        }
