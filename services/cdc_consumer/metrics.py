"""The consumer's metrics, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.cdc_consumer.counts import Counts


class ConsumerMetrics:
    """Adds up what the micro-batches report."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str) -> Callable[[int], None]:
            return Counter(f"millrace_{name}", documentation, registry=registry).inc

        self._messages = counter("consumer_messages", "Messages that came, redelivered ones each time")
        self._changes = counter("consumer_changes", "Changes in them")
        self._rows_written = counter("consumer_rows_written", "Rows that BigQuery has accepted")
        self._superseded = counter("consumer_superseded", "Changes not written, for a newer one of their row was")
        self._micro_batches = counter("consumer_micro_batches", "Micro-batches that had messages")
        self._taken = counter("leases_taken", "Messages that a task held")
        self._acked = counter("leases_acked", "Messages acknowledged")
        self._put_off = counter("leases_put_off", "Messages put off, for their table was in trouble")
        self._given_back = counter("leases_given_back", "Messages given back by tasks that failed")
        self._letters = Counter("millrace_dead_letters", "Records set aside", ["reason"], registry=registry)
        self._applied = Gauge(
            "millrace_consumer_latest_commit_seconds",
            "Unix time of the latest commit that has been applied",
            registry=registry,
        )
        self._tables_in_trouble = Gauge(
            "millrace_consumer_tables_in_trouble",
            "Tables in trouble in the last micro-batch that had messages",
            registry=registry,
        )

    def take(self, counts: Counts) -> None:
        """Add what became of a micro-batch's messages."""
        self._micro_batches(1)
        self._messages(counts.messages)
        self._changes(counts.changes)
        self._rows_written(counts.rows_written)
        self._superseded(counts.superseded)
        self._taken(counts.messages)
        self._acked(counts.acked)
        self._put_off(counts.put_off)
        self._given_back(counts.given_back)
        for reason, letters in counts.letters.items():
            self._letters.labels(reason).inc(letters)
        self._tables_in_trouble.set(len(counts.tables_in_trouble))
        if counts.max_commit_timestamp is not None:
            self._applied.set(counts.max_commit_timestamp / 1e6)
