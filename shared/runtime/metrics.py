"""Metrics that every service has, and those of all that publish. Labels have a bound: closed lists, never keys."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, Metric

from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason

CHANGE_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 21_600)
"""The buckets of histograms of how long a change takes: from a quick one to an outage."""
MOST_TABLES: Final = 100
"""That have series of their own: a label has a bound."""
OTHER_TABLES: Final = "(others)"
"""The label of all other tables together."""
OTHER_CODE: Final = "OTHER"
CODES: Final = (
    *("ABORTED", "ALREADY_EXISTS", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INTERNAL"),
    *("INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"),
    *("UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN", OTHER_CODE),
)
"""gRPC's, and one for what has none, such as a connection that broke."""
_OF_HTTP: Final = {
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ReaderLag:
    """How far all readers are behind their source: as known last, and more by each second since.

    So it grows while the source does not answer and nothing can be known. It is NaN before it is known first: 0
    would say that a reader that has just started is in time.
    """

    def __init__(self, registry: CollectorRegistry, now: Callable[[], float] = time.monotonic) -> None:
        """Take what counts seconds."""
        self._now = now
        self._known: tuple[float, float] | None = None
        gauge = Gauge(
            "millrace_reader_lag_seconds", "The source's present time minus the low watermark.", registry=registry
        )
        gauge.set_function(lambda: math.nan if self.seconds is None else self.seconds)

    def set(self, seconds: float) -> None:
        """Say how far behind they are now."""
        self._known = (seconds, self._now())

    @property
    def seconds(self) -> float | None:
        """Return how far behind they are; None where that was never known."""
        return None if self._known is None else self._known[0] + self._now() - self._known[1]


def retry_code(error: BaseException | None) -> str:
    """Return which of `CODES` a client's error has, or that by which one of ours was caused.

    The code of one of ours may be a text that begins with it.
    """
    for one in (error, None if error is None else error.__cause__):
        found: Any = getattr(one, "grpc_status_code", None) or getattr(one, "code", None)
        found = found() if callable(found) else found
        name = found.partition(" ")[0] if isinstance(found, str) else getattr(found, "name", None)
        if name in CODES:
            return str(name)
        if found in _OF_HTTP:
            return _OF_HTTP[found]
    return OTHER_CODE


class TableLabels:
    """The names of tables as labels: `MOST_TABLES` of their own, whichever come first, and `OTHER_TABLES`."""

    def __init__(self) -> None:
        self._tables: set[str] = set()

    def of(self, table: str) -> str:
        """Return the label of a table."""
        if table not in self._tables and len(self._tables) >= MOST_TABLES:
            return OTHER_TABLES
        self._tables.add(table)
        return table


class RetryCount:
    """How many calls have been made again, by code: of this process, and of those that report to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = dict.fromkeys(CODES, 0)

    def add(self, code: str, retries: int = 1) -> None:
        """Count retries."""
        with self._lock:
            self._made[code if code in self._made else OTHER_CODE] += retries

    def made(self) -> Mapping[str, int]:
        """Return how many there were so far."""
        with self._lock:
            return dict(self._made)

    def since(self, before: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many have come since ``before``, of the codes of which any has."""
        return {code: made - before[code] for code, made in self.made().items() if made > before[code]}

    def collect(self) -> Iterable[Metric]:
        """Return what there is, for a registry."""
        family = CounterMetricFamily(
            "millrace_retries",
            "Calls that were retried because a service was unavailable or refused them for the moment.",
            labels=["code"],
        )
        for code, made in self.made().items():
            family.add_metric([code], made)
        yield family


RETRIED: Final = RetryCount()
BUILD: Final = Gauge(
    "millrace_build_info",
    "Always 1, by the service that a process is and its version.",
    ["service", "version"],
    registry=None,
)
LAST_FATAL_ERROR: Final = Gauge(
    "millrace_last_fatal_error_timestamp_seconds",
    "Unix time at which a process of this service last ended with an error, by the code of the error.",
    ["service", "code"],
    registry=None,
)
TOPICS: Final = Gauge(
    "millrace_topics_info",
    "Always 1, by the topic of change batches and the dead-letter topic that a process publishes to or takes from.",
    ["topic", "dead_letter_topic"],
    registry=None,
)
"""By these, rules find out which services belong together."""


def count_runtime(registry: CollectorRegistry) -> None:
    """Show what every service has: name, version, topics, its last end by an error, retries, what its process takes."""
    registry.register(BUILD)
    registry.register(TOPICS)
    registry.register(LAST_FATAL_ERROR)
    registry.register(RETRIED)
    ProcessCollector(registry=registry)


class PublishingMetrics:
    """What a reader has published: messages that Pub/Sub has confirmed, and changes that no message can hold."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._messages = counter("millrace_published_messages", "Change batches that Pub/Sub has confirmed.")
        dead_letters = counter("millrace_dead_letters", "Poison records that were dead-lettered.", ["reason"])
        self._dead_letters = {reason: dead_letters.labels(reason.value) for reason in Reason}
        self._took = Histogram(
            "millrace_reader_publish_seconds",
            "How long the newest change of each message took from its commit to its confirmation by Pub/Sub.",
            ["table"],
            buckets=CHANGE_SECONDS,
            registry=registry,
        )
        self._tables = TableLabels()

    def confirmed(self, messages: int) -> None:
        """Count messages that Pub/Sub has confirmed."""
        self._messages.inc(messages)

    def took(self, table: str, seconds: float) -> None:
        """Take how long it is since the newest change of a confirmed message was committed."""
        self._took.labels(self._tables.of(table)).observe(max(0.0, seconds))

    def kept(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Count dead letters that the dead-letter topic has confirmed."""
        for dead_letter in dead_letters:
            self._dead_letters[dead_letter.reason].inc()
