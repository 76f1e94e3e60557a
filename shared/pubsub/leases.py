"""Leases on Pub/Sub messages: acknowledge, release, defer, and keep them while work goes on."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import Any, Final

import grpc
import structlog

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import pubsub_errors
from shared.pubsub.stubs import (
    AcknowledgeRequest,
    GetSubscriptionRequest,
    ModifyAckDeadlineRequest,
    acknowledge_stub,
    get_subscription_stub,
    modify_ack_deadline_stub,
    routing,
)
from shared.runtime.clock import SystemClock
from shared.runtime.portions import cut
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

LONGEST_DEADLINE: Final = timedelta(seconds=600)  # Pub/Sub takes no longer one
_REQUEST_BYTES: Final = 480_000  # Pub/Sub's limit is 512 KiB; an ack id of the service has about 200 bytes
_IN_FLIGHT: Final = 4
_TIMEOUT: Final = 10.0
_TIMEOUT_OF_READING: Final = 30.0
_RETRY_BUDGET: Final = timedelta(seconds=30)
_AGAIN: Final = 1.0  # seconds after which a failed extension is tried again


class PubsubLeases:
    """The leases that one process holds on one subscription's messages. Safe to use from any thread."""

    def __init__(
        self,
        channel: grpc.Channel,
        subscription: str,
        ack_deadline: timedelta,
        stop: Stop,
        budget: timedelta = _RETRY_BUDGET,
        timeout: float = _TIMEOUT,
    ) -> None:
        """``budget``: how long what fails transiently is sent again; ``timeout``: of each call, in seconds."""
        self._acknowledge = acknowledge_stub(channel)
        self._modify = modify_ack_deadline_stub(channel)
        self._subscription = subscription
        self._metadata = routing("subscription", subscription)
        self._ack_deadline = ack_deadline
        self._stop = stop
        self._budget = budget
        self._timeout = timeout
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._keepers: list[Keeper] = []
        self.acked = 0
        self.released = 0
        self.deferred_count = 0
        self.deferred_until = 0  # by when the last of those comes again, in microseconds

    def ack(self, ack_ids: Sequence[str]) -> None:
        """Say that these messages are done: Pub/Sub may forget them. TransientError if Pub/Sub is unavailable.

        Their leases are kept until that has succeeded.
        """
        requests = [
            AcknowledgeRequest(subscription=self._subscription, ack_ids=chunk) for chunk in self._portions(ack_ids)
        ]
        self._send("acknowledge", self._acknowledge, requests)
        self._stop_extending(ack_ids, wait=False)  # an extension that overtakes an ack finds nothing to extend
        with self._lock:
            self.acked += len(ack_ids)

    def release(self, ack_ids: Sequence[str]) -> None:
        """Let these messages be delivered again at once. TransientError if Pub/Sub is unavailable."""
        self._send_ending_leases("release", ack_ids, timedelta(0))
        with self._lock:
            self.released += len(ack_ids)

    def defer(self, ack_ids: Sequence[str], delay: timedelta) -> None:
        """Let these messages come again after ``delay`` (600 s at most). TransientError if Pub/Sub is unavailable."""
        delay = min(delay, LONGEST_DEADLINE)
        self._send_ending_leases("defer", ack_ids, delay)
        with self._lock:
            self.deferred_count += len(ack_ids)
            if ack_ids:
                until = self._clock.now() // 1000 + delay // timedelta(microseconds=1)
                self.deferred_until = max(self.deferred_until, until)

    @contextmanager
    def keeping(self, ack_ids: Sequence[str]) -> Iterator[None]:
        """Extend these leases while the block runs, except those acked, released or deferred meanwhile.

        The first extension goes out before the block begins; nothing is extended once it has ended.
        """
        with self.keeper(ack_ids, at_once=True):
            yield

    @contextmanager
    def keeper(self, ack_ids: Iterable[str] = (), *, at_once: bool = False) -> Iterator["Keeper"]:
        """Do the same for leases that are added as they are taken; first after a third of the deadline."""
        keeper = Keeper(self.extend, self._ack_deadline)
        keeper.add(ack_ids)
        with self._lock:
            self._keepers.append(keeper)
        try:
            with keeper.running(at_once):
                yield keeper
        finally:
            with self._lock:
                self._keepers.remove(keeper)

    def extend(self, ack_ids: Sequence[str], times: int = 1) -> None:
        """Lease these messages for a whole deadline from now, or several. Tried once: a keeper has its own rhythm."""
        deadline = min(self._ack_deadline * times, LONGEST_DEADLINE)
        failures = self._attempt(self._modify, self._deadlines(ack_ids, deadline))
        for _request, error in failures:
            with pubsub_errors(f"extend leases on {self._subscription}"):
                raise error

    def _send_ending_leases(self, what: str, ack_ids: Sequence[str], deadline: timedelta) -> None:
        """Set deadlines that nothing extends; where that fails, keep the leases as before."""
        stopped = self._stop_extending(ack_ids, wait=True)
        try:
            self._send(what, self._modify, self._deadlines(ack_ids, deadline))
        except TransientError:
            for keeper, kept in stopped:
                keeper.add(kept)
            raise

    def _stop_extending(self, ack_ids: Sequence[str], *, wait: bool) -> Sequence[tuple["Keeper", Sequence[str]]]:
        with self._lock:
            keepers = list(self._keepers)
        return [(keeper, keeper.remove(ack_ids, wait=wait)) for keeper in keepers]

    def _deadlines(self, ack_ids: Sequence[str], deadline: timedelta) -> list[Any]:
        return [
            ModifyAckDeadlineRequest(
                subscription=self._subscription, ack_ids=chunk, ack_deadline_seconds=ceil(deadline.total_seconds())
            )
            for chunk in self._portions(ack_ids)
        ]

    def _portions(self, ack_ids: Sequence[str]) -> Iterator[Sequence[str]]:
        """Cut ack ids into requests below Pub/Sub's limit."""
        return cut(ack_ids, lambda one: len(one) + 4, _REQUEST_BYTES - len(self._subscription))

    def _send(self, what: str, stub: Any, requests: Sequence[Any]) -> None:
        """Send all requests, and those that fail transiently again, until the budget is spent or a stop ends it."""
        remaining = list(requests)
        for attempt in retrying(self._stop, self._budget):
            with attempt:
                failures = self._attempt(stub, remaining)
                remaining = [request for request, _error in failures]
                for _request, error in failures:
                    with pubsub_errors(f"{what} on {self._subscription}"):
                        raise error

    def _attempt(self, stub: Any, requests: Sequence[Any]) -> list[tuple[Any, grpc.RpcError]]:
        """Send each request once, several at a time; return those that failed."""
        failures = []
        for start in range(0, len(requests), _IN_FLIGHT):
            calls = [
                (request, stub.future(request, timeout=self._timeout, metadata=self._metadata))
                for request in requests[start : start + _IN_FLIGHT]
            ]
            for request, call in calls:
                error = call.exception()
                if error is not None:
                    failures.append((request, error))
        return failures


class Keeper:
    """A thread that extends leases every third of the deadline, whatever happens to single extensions."""

    def __init__(self, extend: Callable[[Sequence[str]], None], ack_deadline: timedelta) -> None:
        self._extend = extend
        self._every = ack_deadline.total_seconds() / 3
        self._ids: dict[str, None] = {}
        self._lock = threading.Lock()
        self._extending = threading.Lock()
        self._ended = threading.Event()

    @property
    def kept(self) -> Sequence[str]:
        """Return the leases that are kept."""
        with self._lock:
            return list(self._ids)

    def add(self, ack_ids: Iterable[str]) -> None:
        """Keep these leases too."""
        with self._lock:
            self._ids.update(dict.fromkeys(ack_ids))

    def remove(self, ack_ids: Iterable[str], *, wait: bool) -> Sequence[str]:
        """Keep these leases no longer; return those that were kept.

        With ``wait`` no extension of them is still under way: one that overtook the release of a message would
        withhold it for another deadline. An ack need not wait: there is nothing left that could be extended.
        """
        with self._lock:
            kept = [ack_id for ack_id in ack_ids if ack_id in self._ids]
            for ack_id in kept:
                self._ids.pop(ack_id, None)
        if wait:
            with self._extending:
                pass
        return kept

    @contextmanager
    def running(self, at_once: bool) -> Iterator[None]:
        """Extend while the block runs; the thread is joined at its end."""
        wait = self._turn() if at_once else self._every
        thread = threading.Thread(target=self._run, args=(wait,), name="lease keeper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self, wait: float) -> None:
        while not self._ended.wait(wait):
            wait = self._turn()

    def _turn(self) -> float:
        """Extend once; return after how many seconds to do so again."""
        with self._extending:
            ack_ids = self.kept
            if not ack_ids:
                return self._every
            try:
                self._extend(ack_ids)
            except (TransientError, MisconfiguredError, grpc.RpcError) as error:
                # The work goes on: what is lost is a lease, and a message that comes twice does no harm.
                structlog.get_logger().warning("leases_not_extended", leases=len(ack_ids), error=str(error))
                return min(_AGAIN, self._every)
        return self._every


def ack_deadline_of(channel: grpc.Channel, subscription: str, timeout: float = _TIMEOUT_OF_READING) -> timedelta:
    """Return how long a subscription's messages are leased for."""
    request = GetSubscriptionRequest(subscription=subscription)
    with pubsub_errors(f"read subscription {subscription}"):
        found = get_subscription_stub(channel)(request, timeout=timeout, metadata=routing("subscription", subscription))
    return timedelta(seconds=found.ack_deadline_seconds or 10)
