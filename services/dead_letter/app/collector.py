"""The loop: pull dead letters, keep them, and only then acknowledge them.

A dead letter is in the subscription or in the store at every moment, and in both for one: what is between two lines of
`_collect` when the process dies comes again, and is known by its message id. Nothing is pulled while a message is
outstanding, so a flood fills the store and no memory.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import structlog

from services.dead_letter.app.metrics import CollectorMetrics
from services.dead_letter.core.received import Received, to_arrival
from services.dead_letter.ports import DeadLetterStore, Inbox
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.runtime.clock import Clock
from shared.runtime.health import Health
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

_WAIT: Final = timedelta(milliseconds=500)
_STATS_EVERY: Final = timedelta(seconds=10)
_STATS_AFTER: Final = timedelta(seconds=1)
_FORGET_EVERY: Final = timedelta(hours=1)
_FORGET_AT_ONCE: Final = 1_000

T = TypeVar("T")


class Collector:
    """Takes dead letters from the inbox into the store, and forgets those that have been settled for long."""

    def __init__(
        self,
        inbox: Inbox,
        store: DeadLetterStore,
        metrics: CollectorMetrics,
        health: Health,
        clock: Clock,
        keep_dead_letters_for: timedelta,
    ) -> None:
        self._inbox = inbox
        self._store = store
        self._metrics = metrics
        self._health = health
        self._clock = clock
        self._keep_dead_letters_for = keep_dead_letters_for
        self._stats_at = self._forget_at = Nanoseconds(0)
        self._unavailable: set[str] = set()

    def run(self, stop: Stop) -> None:
        """Collect until asked to stop. MisconfiguredError where someone has to act; what is outstanding comes again."""
        try:
            while not stop.requested:
                self._maintain_store(stop)
                received = self._until_back("Pub/Sub", lambda: self._inbox.pull(_WAIT), stop)
                if received:
                    self._collect(received, stop)
        except TransientError:
            if not stop.requested:  # else a retry that the stop has ended
                raise

    def _collect(self, received: Sequence[Received], stop: Stop) -> None:
        try:
            self._keep(received, stop)
        except (TransientError, MisconfiguredError):
            raise
        except Exception:
            if len(received) == 1:
                raise
            self._collect_one_by_one(received, stop)

    def _collect_one_by_one(self, received: Sequence[Received], stop: Stop) -> None:
        """Keep what can be kept, and raise an unknown error of one of them: it delays no other."""
        failure: Exception | None = None
        for one in received:
            try:
                self._keep([one], stop)
            except (TransientError, MisconfiguredError):
                raise
            except Exception as error:  # noqa: BLE001  raised again below, when the others are kept
                failure = error
                structlog.get_logger().error(
                    "dead_letter_not_stored", message_id=one.message_id, error=type(error).__name__
                )
        if failure is not None:
            raise failure

    def _keep(self, received: Sequence[Received], stop: Stop) -> None:
        arrivals = [to_arrival(one) for one in received]
        kept = self._until_back("the store", lambda: self._store.keep(arrivals, self._clock.now()), stop)
        self._until_back("Pub/Sub", lambda: self._inbox.ack([one.ack_id for one in received]), stop)
        self._metrics.kept(arrivals, kept)
        self._stats_at = min(self._stats_at, Nanoseconds(self._clock.now() + nanoseconds(_STATS_AFTER)))

    def _maintain_store(self, stop: Stop) -> None:
        """Forget what is to be forgotten, some at a time, and see what there is."""
        now = self._clock.now()
        if now >= self._forget_at:
            before = Nanoseconds(now - nanoseconds(self._keep_dead_letters_for))
            forgotten = self._until_back(
                "the store", lambda: self._store.forget(before=before, limit=_FORGET_AT_ONCE), stop
            )
            self._metrics.forgotten(forgotten)
            if forgotten:
                structlog.get_logger().info("expired_dead_letters_deleted", dead_letters=forgotten)
            if forgotten < _FORGET_AT_ONCE:
                self._forget_at = Nanoseconds(now + nanoseconds(_FORGET_EVERY))
        if not now < self._stats_at <= now + nanoseconds(_STATS_EVERY):  # later: the clock was set back
            self._metrics.show(self._until_back("the store", self._store.stats, stop))
            self._stats_at = Nanoseconds(now + nanoseconds(_STATS_EVERY))

    def _until_back(self, who: str, call: Callable[[], T], stop: Stop) -> T:
        """Return what a call returns once it does; until then the service is not ready, but alive: no restart helps."""
        for attempt in retrying(stop):
            with attempt:
                self._health.progressed()
                try:
                    value = call()
                except TransientError as error:
                    self._unavailable.add(who)
                    self._health.failed(error)
                    raise
                self._unavailable.discard(who)
                self._health.ready = not self._unavailable
                return value
        raise AssertionError("a retry ends with a value or an error")
