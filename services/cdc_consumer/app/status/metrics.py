"""The consumer's metrics, for Prometheus."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import accumulate, islice
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric

from services.cdc_consumer.app.status.oldest_messages import OldestMessages
from services.cdc_consumer.core.stream.counts import APPEND_SECONDS, Appends, Report, newest_heartbeats, stages
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.runtime.clock import SteadyClock
from shared.runtime.metrics import CHANGE_SECONDS, MOST_TABLES, RETRIED, TableLabels

_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "messages": ("consumer_messages", "Messages that were received, each redelivery counted."),
    "changes": ("consumer_changes", "Changes in the messages that were received."),
    "rows_written": ("consumer_written_rows", "Rows that BigQuery has accepted."),
    "superseded": (
        "consumer_superseded_changes",
        "Changes that were not written because a newer one of their row was.",
    ),
    "left_out": ("consumer_excluded_changes", "Changes of tables that the tables file excludes."),
    "outdated": (
        "consumer_outdated_snapshot_rows",
        "Snapshot rows that were not applied because they came too late.",
    ),
    "taken": ("leases_acquired", "Messages that the Spark source has leased."),
    "acked": ("leases_acked", "Messages that were acked."),
    "deferred": ("leases_nacked", "Messages that were nacked because their table failed."),
    "released": ("leases_released", "Messages that failed tasks have released."),
    "not_kept": ("dead_letters_not_kept", "Dead letters that Pub/Sub refused, counted at each delivery."),
}
"""The name and the description of the counter of each field of `Counts`."""
_IDLE: Final = timedelta(minutes=10)
"""After which BigQuery closes a connection that is not used."""


class AppendTimes:
    """How long BigQuery took to answer append requests, by what processes report."""

    def __init__(self) -> None:
        self._appends = Appends()

    def add(self, appends: Appends) -> None:
        """Add what a process reports."""
        self._appends = self._appends.plus(appends)

    def collect(self) -> Iterable[Metric]:
        """Return what there is, for a registry."""
        total = self._appends
        bounds = [*map(str, map(float, APPEND_SECONDS)), "+Inf"]
        yield HistogramMetricFamily(
            "millrace_consumer_append_seconds",
            "Time between append requests and their answers.",
            buckets=list(zip(bounds, [*accumulate(total.within), total.requests], strict=True)),
            sum_value=total.seconds,
        )


class FailingSince:
    """Since when the messages of each table are nacked."""

    def __init__(self) -> None:
        self.tables: Callable[[], Mapping[str, int]] = dict
        """Return them, and since when in microseconds, the longest first."""
        self._labelnames = ("table",)

    def collect(self) -> Iterable[Metric]:
        """Return what there is, for a registry."""
        metric = GaugeMetricFamily(
            "millrace_consumer_table_failing_since_timestamp_seconds",
            "Unix time since when a table's messages are nacked, for the first hundred tables.",
            labels=self._labelnames,
        )
        for table, since in islice(self.tables().items(), MOST_TABLES):
            metric.add_metric((table,), since / 1e6)
        yield metric


class ConsumerMetrics:
    """Adds up what the processes report."""

    def __init__(
        self, registry: CollectorRegistry, clock: SteadyClock, oldest_messages: OldestMessages | None = None
    ) -> None:
        gauge = partial(Gauge, registry=registry)

        def counter(name: str, documentation: str) -> Callable[[int], None]:
            return Counter(f"millrace_{name}", documentation, registry=registry).inc

        self._clock = clock
        self._counters = {field: counter(*named) for field, named in _COUNTERS.items()}
        self._micro_batches = counter("consumer_micro_batches", "Micro-batches that had messages.")
        dead_letters = Counter(
            "millrace_dead_letters", "Poison records that were dead-lettered.", ["reason"], registry=registry
        )
        self._dead_letters = {reason.value: dead_letters.labels(reason.value) for reason in Reason}
        self._applied = gauge(
            "millrace_consumer_latest_commit_timestamp_seconds", "Unix time of the latest commit that was applied."
        )
        self._heartbeats = gauge(
            "millrace_consumer_source_watermark_timestamp_seconds",
            "Unix time up to which readers have published every change of a source, by the heartbeats that arrived.",
            ["source"],
        )
        self._sources: Mapping[str, int] = {}
        self._tables_in_trouble = gauge(
            "millrace_consumer_failing_tables", "Tables whose messages are nacked at present."
        )
        self._failing_since = FailingSince()
        registry.register(self._failing_since)
        self._tables_refused = gauge(
            "millrace_consumer_refused_tables", "Tables whose changes are dead-lettered at present."
        )
        self._tables_pending_resync = gauge(
            "millrace_consumer_tables_pending_resync", "Tables that are dropped or pending resync at present."
        )
        self._stages = Histogram(
            "millrace_consumer_stage_seconds",
            "How long the newest change of a table took in each stage, once for each task that has applied some.",
            ["table", "stage"],
            buckets=CHANGE_SECONDS,
            registry=registry,
        )
        self._tables = TableLabels()
        self._oldest_messages = oldest_messages or OldestMessages(clock)
        oldest = Gauge(
            "millrace_consumer_oldest_outstanding_message_age_seconds",
            "Age of the oldest message that is outstanding in a task, or 0.",
            registry=registry,
        )
        oldest.set_function(self._oldest_age)
        self._appends = counter("consumer_appends", "Append requests that BigQuery has answered.")
        self._appended_bytes = counter(
            "consumer_appended_bytes", "Bytes of the append requests that BigQuery has answered."
        )
        self._append_times = AppendTimes()
        registry.register(self._append_times)
        self._connections: dict[str, tuple[int, Nanoseconds]] = {}
        connections = Gauge(
            "millrace_consumer_append_connections", "Open connections to BigQuery's write API.", registry=registry
        )
        connections.set_function(self._connections_open)
        self.leases = {"taken": 0, "acked": 0, "deferred": 0, "released": 0}
        """What became of leases in all. What is missing from the sum was left to its deadline by a death."""

    def show_tables(
        self,
        failing: Callable[[], Mapping[str, int]],
        refused: Callable[[], Collection[str]],
        pending_resync: Callable[[], Collection[str]],
    ) -> None:
        """Show which tables fail, how many are refused, and how many lack rows, by what the consumer's status says."""
        self._failing_since.tables = failing
        self._tables_in_trouble.set_function(lambda: len(failing()))
        self._tables_refused.set_function(lambda: len(refused()))
        self._tables_pending_resync.set_function(lambda: len(pending_resync()))

    def take(self, report: Report) -> None:
        """Add what a process reports."""
        counts = report.counts
        self._oldest_messages.take(report)
        if report.process and report.connections is not None:
            self._connections[report.process] = report.connections, self._clock.now()
        for code, retries in report.retries.items():
            RETRIED.add(code, retries)
        self._appends(report.appends.requests)
        self._appended_bytes(report.appends.bytes)
        self._append_times.add(report.appends)
        if counts.messages:
            self._micro_batches(1)
        for field, count in self._counters.items():
            count(getattr(counts, field))
        for name in self.leases:
            self.leases[name] += getattr(counts, name)
        for reason, dead_letters in counts.dead_letters.items():
            self._dead_letters.get(reason, self._dead_letters[Reason.UNEXPLAINED.value]).inc(dead_letters)
        for table, note in counts.tables.items():
            for stage, seconds in stages(note.latest).items():
                if seconds is not None:
                    self._stages.labels(self._tables.of(table), stage).observe(max(0.0, seconds))
        if counts.heartbeats:
            self._sources = newest_heartbeats(self._sources, counts.heartbeats)
            for source, until in self._sources.items():
                self._heartbeats.labels(source).set(until / 1e6)
        if counts.max_commit_timestamp is not None:
            self._applied.set(counts.max_commit_timestamp / 1e6)

    def left(self) -> Mapping[str, int]:
        """Return what became of leases, and how many are left to their deadlines, once no message is leased."""
        taken, *settled = self.leases.values()
        return {**self.leases, "left": taken - sum(settled)}

    def _connections_open(self) -> int:
        """Return how many there are; a process that has said nothing for so long is gone, or has none."""
        since = self._clock.now() - nanoseconds(_IDLE)
        connections = list(self._connections.items())
        for process, (_count, at) in connections:
            if at < since:
                self._connections.pop(process, None)
        return sum(count for _process, (count, at) in connections if at >= since)

    def _oldest_age(self) -> float:
        oldest = self._oldest_messages.oldest()
        return 0.0 if oldest is None else max(0.0, self._clock.now() / 1e9 - oldest / 1e6)
