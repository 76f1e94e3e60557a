"""The service's metrics, for Prometheus, and what the collector says of itself at `/status`."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.dead_letter.app.replay.replay import REPLAY_RESULTS
from services.dead_letter.core.dead_letters import Arrival, DeadLetterStats, State
from services.dead_letter.ports import Kept
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.clock import Clock

_SECOND: Final = 1_000_000_000
_API_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 1, 5, 25, 100)


class CollectorMetrics:
    """What came and what is there. Reasons and states are closed lists: each has its line from the beginning."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._clock = clock
        self._stats: DeadLetterStats | None = None
        self._latest: Nanoseconds | None = None
        self._kept_in_all: Tally[str] = Tally()
        came = counter(
            "millrace_dead_letter_received", "Dead letters that were received, each delivery counted.", ["reason"]
        )
        self._came = {reason: came.labels(reason.value) for reason in Reason}
        kept = counter(
            "millrace_dead_letter_kept",
            "Dead letters that were stored, by whether they were new, failed again or were delivered again.",
            ["what"],
        )
        self._kept = {what: kept.labels(what) for what in ("new", "again", "seen")}
        self._forgotten = counter(
            "millrace_dead_letter_deleted", "Dead letters that were deleted because they were no longer open."
        )
        by_state = gauge("millrace_dead_letter_stored", "Dead letters in the store, by state.", ["state"])
        self._by_state = {state: by_state.labels(state.value) for state in State}
        by_reason = gauge("millrace_dead_letter_open", "Open dead letters, by reason.", ["reason"])
        self._open = {reason: by_reason.labels(reason.value) for reason in Reason}
        self._bytes = gauge("millrace_dead_letter_payload_bytes", "Bytes of the payloads of all dead letters.")
        oldest = gauge(
            "millrace_dead_letter_oldest_open_age_seconds",
            "Time since the oldest open dead letter failed, or 0, by reason.",
            ["reason"],
        )
        for reason in Reason:
            oldest.labels(reason.value).set_function(partial(self._oldest_age, reason))

    def kept(self, arrivals: Sequence[Arrival], kept: Kept) -> None:
        """Count dead letters that are durable now."""
        for reason, count in Tally(arrival.dead_letter.reason for arrival in arrivals).items():
            self._came[reason].inc(count)
        for what, count in (("new", kept.new), ("again", kept.again), ("seen", kept.seen)):
            self._kept[what].inc(count)
            self._kept_in_all[what] += count
        self._latest = self._clock.now()

    def forgotten(self, count: int) -> None:
        """Count dead letters that were deleted."""
        self._forgotten.inc(count)

    def show(self, stats: DeadLetterStats) -> None:
        """Show what the store holds now."""
        self._stats = stats
        for state, gauge in self._by_state.items():
            gauge.set(stats.by_state.get(state, 0))
        for reason, gauge in self._open.items():
            gauge.set(stats.by_reason.get(reason, 0))
        self._bytes.set(stats.payload_bytes)

    def document(self) -> Mapping[str, object]:
        """Return what `/status` says."""
        document: dict[str, object] = {
            "kept": {what: self._kept_in_all[what] for what in ("new", "again", "seen")},
            "latest": None if self._latest is None else format_timestamp(self._latest),
        }
        stats = self._stats
        if stats is not None:
            document |= {
                "dead_letters": {state.value: stats.by_state.get(state, 0) for state in State},
                "open_by_reason": {reason.value: count for reason, count in stats.by_reason.items()},
                "open_by_table": dict(stats.by_table),
                "oldest_open": None if stats.oldest_open is None else format_timestamp(stats.oldest_open),
                "payload_bytes": stats.payload_bytes,
            }
        return document

    def _oldest_age(self, reason: Reason) -> float:
        if self._stats is None or (oldest := self._stats.oldest_by_reason.get(reason)) is None:
            return 0.0
        return max(0.0, (self._clock.now() - oldest) / _SECOND)


class ApiMetrics:
    """The HTTP API's. Labels are of few values: the templates of routes, and the statuses that it answers with."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """``registry`` None: nothing shows them."""
        counter = partial(Counter, registry=registry)
        self._requests = counter(
            "millrace_dead_letter_api_requests",
            "HTTP API requests that were answered, by route and HTTP status.",
            ["route", "status"],
        )
        self._seconds = Histogram(
            "millrace_dead_letter_api_request_seconds",
            "How long HTTP API requests took, until the last byte of the answer was sent.",
            ["route"],
            buckets=_API_SECONDS,
            registry=registry,
        )
        replayed = counter(
            "millrace_dead_letter_replayed",
            "Dead letters that executed replays of the API and the console went through, by result.",
            ["result"],
        )
        self._replayed = {result: replayed.labels(result) for result in REPLAY_RESULTS}

    def replayed(self, results: Mapping[str, int]) -> None:
        """Count what a replay has come to since it was counted last."""
        for result, count in results.items():
            self._replayed[result].inc(count)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request; ``route`` is a template such as ``/v1/dead-letters/{dead_letter}``, or ``none``."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
