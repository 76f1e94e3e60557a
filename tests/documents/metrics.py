"""`docs/reference/metrics.md`: every metric of every service, from the classes that count."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.wiring.stores import MicrosecondClock
from services.cdc_consumer.app.status.apply_watermarks import ApplyWatermarks
from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.core.stream.counts import MOST_SOURCES
from services.dead_letter.app.metrics import ApiMetrics, CollectorMetrics
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from shared.pubsub.backlogs import MOST_SUBSCRIPTIONS
from shared.runtime.clock import SystemClock
from shared.runtime.metrics import MOST_TABLES, RETRIED, count_runtime

FILE: Final = "reference/metrics.md"


def _consumer(registry: CollectorRegistry) -> None:
    ConsumerMetrics(registry, SystemClock())
    ApplyWatermarks(registry, dict)


def _collector(registry: CollectorRegistry) -> None:
    CollectorMetrics(registry, SystemClock())
    ApiMetrics(registry)


SERVICES: Final[Mapping[str, Callable[[CollectorRegistry], object]]] = {
    "spanner_reader": lambda registry: SpannerReaderMetrics(registry, ""),
    "bigtable_reader": lambda registry: BigtableReaderMetrics(registry, "", MicrosecondClock()),
    "cdc_consumer": _consumer,
    "dead_letter": _collector,
}

LABELS: Final[Mapping[str, str]] = {
    "code": "gRPC's status codes and `OTHER`; of the last error, a code of the error messages, or `failed`",
    "dead_letter_topic": "the full name of a dead-letter topic, one of a process",
    "kind": "of record, or of what was done to a table: a closed list",
    "reason": "why a record is a dead letter: the closed list in [dead letters](dead-letters.md)",
    "result": "`sent`, or why a dead letter was not sent again: a closed list",
    "route": "the template of a route of the HTTP API, such as `/v1/dead-letters/{dead_letter}`",
    "service": "the four services",
    "source": f"a source, as messages name it; {MOST_SOURCES} at most",
    "stage": "`commit_to_published`, `published_to_applied`",
    "state": "of a partition, or of a dead letter: a closed list",
    "status": "an HTTP status",
    "store": "`source_stream`, `subscription`, `dead_letter_subscription`",
    "subscription": f"the full name of a subscription; {MOST_SUBSCRIPTIONS} at most of each of the two topics",
    "table": f"a table; {MOST_TABLES} at most, and `(others)` where all others are counted, too",
    "topic": "the full name of a topic, one of a process; empty where the dead-letter service has no `TOPIC`",
    "version": "the version that runs",
    "what": "`new`, `again`, `seen`",
}
"""Every label that there is, with its bound. Keys, ids and words of errors are none."""

_SUFFIX: Final = {"counter": "_total"}

_HEAD: Final = """# Metrics

<!-- Made from the classes that count by `make docs`; a test fails where they differ. Change those, not this file. -->

Each service serves its metrics on `PORT` at `/metrics`, as Prometheus reads them. Counters begin at 0 with the process.
What a reader does not know yet, such as its lag before its source has answered, is `NaN`.
The consumer's metrics include what Spark's workers count. [Monitor](../how-to/monitor.md) has alerts.

| Question | Metric |
|---|---|
| How far behind are the readers (commit to confirmed)? | `millrace_reader_lag_seconds` |
| How long does a change take? | `millrace_reader_publish_seconds`, `millrace_consumer_stage_seconds`, by table |
| What does not go on? | `millrace_consumer_oldest_outstanding_message_age_seconds` |
| Up to when has a source arrived at the consumer? | `millrace_consumer_source_watermark_timestamp_seconds` |
| How long is what waits still kept? | `millrace_retention_left_seconds`, by store |
| Why did a service start again? | `millrace_last_fatal_error_timestamp_seconds` |
| What waits for a person? | `millrace_dead_letter_oldest_open_age_seconds` |

Labels have few values, whatever the data:

| Label | Values |
|---|---|
"""


class Recording(CollectorRegistry):
    """A registry that remembers what was registered with it, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        """Remember it, too."""
        super().register(collector)
        self.collectors.append(collector)


def collectors(register: Callable[[CollectorRegistry], object]) -> Sequence[Collector]:
    """Return what is registered."""
    registry = Recording()
    register(registry)
    return registry.collectors


def labels_of(collector: Collector) -> Sequence[str]:
    """Return the names of a metric's labels."""
    names: Sequence[str] = getattr(collector, "_labelnames", ())
    return ("code",) if collector is RETRIED else names


def text() -> str:
    """Return the whole document."""
    lines = [_HEAD + "\n".join(f"| `{name}` | {bound} |" for name, bound in LABELS.items()) + "\n"]
    sections = {**SERVICES, "every service": count_runtime}
    for title, register in sections.items():
        lines += [
            f"## {title}\n",
            "| Metric | Type | Labels | Meaning |",
            "|---|---|---|---|",
            *_rows(collectors(register)),
            "",
        ]
    return "\n".join(lines)


def _rows(registered: Sequence[Collector]) -> Iterator[str]:
    for collector in registered:
        for family in _families(collector):
            name = f"{family.name}{_SUFFIX.get(family.type, '')}"
            labels = " ".join(f"`{label}`" for label in labels_of(collector))
            yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def _families(collector: Any) -> Sequence[Any]:
    return list(collector.describe() if hasattr(collector, "describe") else collector.collect())
