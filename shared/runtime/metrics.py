"""Metrics that every service has, and those of all that publish. Labels have a bound: closed lists, never keys."""

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason


class RetryCount:
    """How many calls have been made again: of this process, and of those that report to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made = 0

    def add(self, retries: int = 1) -> None:
        """Count retries."""
        with self._lock:
            self.made += retries

    def collect(self) -> Iterable[Metric]:
        """Return what there is, for a registry."""
        yield CounterMetricFamily(
            "millrace_retries",
            "Calls that were retried because a service was unavailable or refused them for the moment.",
            value=self.made,
        )


class BuildInfo:
    """Which service a process is, and of which version; nothing before it has started."""

    def __init__(self) -> None:
        self._names: tuple[str, str] | None = None

    def name(self, service: str, version: str) -> None:
        """Take what it is, once it is known."""
        self._names = service, version

    def collect(self) -> Iterable[Metric]:
        """Return what there is, for a registry."""
        family = GaugeMetricFamily(
            "millrace_build_info",
            "Always 1, by the service that a process is and its version.",
            labels=["service", "version"],
        )
        if self._names is not None:
            family.add_metric(self._names, 1)
        yield family


RETRIED: Final = RetryCount()
BUILD: Final = BuildInfo()


def count_runtime(registry: CollectorRegistry) -> None:
    """Show what every service has: its name and version, its retries, what its process takes (CPU, memory, files)."""
    registry.register(BUILD)
    registry.register(RETRIED)
    ProcessCollector(registry=registry)


class PublishingMetrics:
    """What a reader has published: messages that Pub/Sub has confirmed, and changes that no message can hold."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._messages = counter("millrace_published_messages", "Change batches that Pub/Sub has confirmed.")
        letters = counter("millrace_dead_letters", "Poison records that were dead-lettered.", ["reason"])
        self._letters = {reason: letters.labels(reason.value) for reason in Reason}

    def confirmed(self, messages: int) -> None:
        """Count messages that Pub/Sub has confirmed."""
        self._messages.inc(messages)

    def kept(self, letters: Sequence[DeadLetter]) -> None:
        """Count dead letters that the dead-letter topic has confirmed."""
        for letter in letters:
            self._letters[letter.reason].inc()
