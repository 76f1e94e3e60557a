"""What waits in a subscription, and how long each store still keeps what waits in it: as metrics of the readers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

Store = Literal["source_stream", "subscription", "dead_letter_subscription"]
SOURCE_STREAM: Final[Store] = "source_stream"
SUBSCRIPTION: Final[Store] = "subscription"
DEAD_LETTER_SUBSCRIPTION: Final[Store] = "dead_letter_subscription"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionBacklog:
    """One subscription by its full name: what waits in it, and how long it keeps that. None: not known."""

    name: str
    store: Store
    retention: timedelta
    oldest: timedelta | None
    """Age of the oldest message that is not acked."""
    messages: int | None


class BacklogMetrics:
    """Shows backlogs and retentions. What is no longer known is not shown."""

    def __init__(self, registry: CollectorRegistry, now: Callable[[], float] = time.monotonic) -> None:
        """``now``: what counts seconds."""
        self._now = now
        gauge = partial(Gauge, registry=registry)
        self._messages = gauge(
            "millrace_subscription_backlog_messages",
            "Messages that a subscription of the topic or of the dead-letter topic holds.",
            ["subscription"],
        )
        self._age = gauge(
            "millrace_subscription_oldest_message_age_seconds",
            "Age of the oldest message of a subscription that is not acked.",
            ["subscription"],
        )
        self._retention = gauge(
            "millrace_subscription_retention_seconds",
            "How long a subscription keeps a message that is not acked.",
            ["subscription"],
        )
        self._left = gauge(
            "millrace_retention_left_seconds",
            "How long each store still keeps the oldest of what waits in it.",
            ["store"],
        )
        self._failed = Counter(
            "millrace_subscription_reads_failed",
            "Reads of the backlogs from Cloud Monitoring that failed.",
            registry=registry,
        )
        self._backlogs: Sequence[SubscriptionBacklog] = ()

    def stream_keeps(self, left: timedelta) -> None:
        """Show how long the change stream still keeps what is not read; it falls until this is known again."""
        until = self._now() + left.total_seconds()
        self._left.labels(SOURCE_STREAM).set_function(lambda: until - self._now())

    def failed(self) -> None:
        """Count that the backlogs could not be read."""
        self._failed.inc()

    def show(self, backlogs: Sequence[SubscriptionBacklog]) -> None:
        """Show these, and no others; none at all: nothing is known."""
        for name in {one.name for one in self._backlogs} - {one.name for one in backlogs}:
            for gauge in (self._messages, self._age, self._retention):
                gauge.remove(name)
        self._backlogs = tuple(backlogs)
        for one in backlogs:
            self._retention.labels(one.name).set(one.retention.total_seconds())
            _show(self._messages, one.name, one.messages)
            _show(self._age, one.name, None if one.oldest is None else one.oldest.total_seconds())
        for store in (SUBSCRIPTION, DEAD_LETTER_SUBSCRIPTION):
            known = [one.retention - one.oldest for one in backlogs if one.store == store and one.oldest is not None]
            _show(self._left, store, min(known).total_seconds() if known else None)

    def document(self) -> Sequence[Mapping[str, object]]:
        """Return what is shown, for `/status`. Any thread may ask."""
        return [
            {
                "subscription": one.name,
                "retention_seconds": one.retention.total_seconds(),
                "oldest_seconds": None if one.oldest is None else one.oldest.total_seconds(),
                "messages": one.messages,
            }
            for one in self._backlogs
        ]


def _show(gauge: Gauge, label: str, value: float | None) -> None:
    if value is None:
        gauge.remove(label)
    else:
        gauge.labels(label).set(value)
