"""Pulls messages from a subscription so that every lease taken is a message of a task, or released.

Unary Pull only: what a streaming pull has buffered in a worker that meanwhile does something else is withheld from
everyone. A call in flight is awaited, because what a cancelled pull has leased comes back only when its deadline has
passed, an attempt later. That goes for calls that end by their own deadline too, and the service lets them (see
googleapis/python-pubsub#343): so the pull that waits has a long one, and is kept from one wait to the next.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from zlib import crc32

import grpc
import pyarrow as pa
import structlog

from services.cdc_consumer.adapters.stream.data_files import DataFile
from services.cdc_consumer.adapters.stream.message_data import pack
from services.cdc_consumer.core.stream.messages import KEPT_SCHEMA, MESSAGE_SCHEMA, PORTION_SCHEMA
from shared.contracts.change_batch import BUCKET
from shared.contracts.errors import TransientError
from shared.pubsub.errors import pubsub_errors, status_of
from shared.pubsub.leases import PubsubLeases
from shared.pubsub.stubs import PullRequest, pull_stub, routing

IN_FLIGHT: Final = 4
_MOST_PER_PULL: Final = 1_000
_LARGEST_MESSAGE: Final = 10_500_000  # bytes, with what an answer has beside it: Pub/Sub takes ten million
_SHRINKS: Final = 8  # times at most, from one answer to the next: one of small messages may be an exception
_TIMEOUT: Final = 30.0
_LONGEST_PULL: Final = timedelta(minutes=10)
_DIGITS: Final = 10  # more are no number of a bucket
_POLL: Final = 0.2  # seconds between two checks of whether to go on waiting
# An answer of this size says that there is more: one goes on after the linger. (The emulator gives 100 at most.)
_BEHIND_MESSAGES: Final = 10
_BEHIND_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PullLimits:
    """How much one read takes, and how long: ``linger`` when quiet, up to ``longest`` while there is more at once."""

    messages: int
    bytes: int
    linger: timedelta
    longest: timedelta


class Puller:
    """Pulls from one subscription. ``wait`` and ``clock`` are the thread's own but in tests."""

    def __init__(
        self,
        channel: grpc.Channel,
        subscription: str,
        leases: PubsubLeases,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._pull = pull_stub(channel)
        self._subscription = subscription
        self._metadata = routing("subscription", subscription)
        self._leases = leases
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._waiting: tuple[Any, threading.Event] | None = None
        self._mean = _LARGEST_MESSAGE  # bytes of a message, of the latest answers; the largest before there are any
        self.released = 0

    def first(
        self,
        timeout: timedelta,
        most: int,
        lasts: timedelta = _LONGEST_PULL,
        enough: Callable[[], bool] = lambda: False,
    ) -> Any | None:
        """Wait until there are messages, at most for ``timeout`` or until ``enough``; return some, or None.

        The pull that waits goes on when this returns None, for ``lasts`` in all, and the next call waits for the same.
        """
        if self._waiting is None:
            request = PullRequest(subscription=self._subscription, max_messages=most)
            call = self._pull.future(request, timeout=lasts.total_seconds(), metadata=self._metadata)
            answered = threading.Event()
            call.add_done_callback(lambda _call: answered.set())
            self._waiting = call, answered
        call, answered = self._waiting
        until = time.monotonic() + timeout.total_seconds()
        while not answered.wait(max(0.0, min(_POLL, until - time.monotonic()))):
            if enough() or time.monotonic() >= until:
                return None
        self._waiting = None
        with pubsub_errors(f"pull from {self._subscription}"):
            try:
                response = call.result()
            except grpc.RpcError as error:
                if status_of(error)[0] is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return None
                raise
        return response if response.received_messages else None

    def wait_no_more(self, timeout: timedelta) -> None:
        """End the pull that waits: release what it brings within ``timeout``, then cancel it."""
        if self._waiting is None:
            return
        (call, answered), self._waiting = self._waiting, None
        if not answered.wait(timeout.total_seconds()):
            call.cancel()
            answered.wait(_POLL)
        if call.done() and not call.cancelled():
            self._release([(call, 0)])

    def now(self, most: int) -> Any | None:
        """Return up to ``most`` messages that are there, without waiting; TransientError if Pub/Sub is unavailable."""
        call = self._pull_now(most)
        with pubsub_errors(f"pull from {self._subscription}"):
            response = call.result()
        return response if response.received_messages else None

    def collect(self, limits: PullLimits) -> Iterator[Any]:
        """Yield what is there, answer by answer, without waiting for what is not.

        When quiet: at once, and again at the end of the linger. When behind: several pulls in flight until a limit is
        reached. The limit of messages is kept; that of bytes is, if messages are not larger than the latest were: a
        pull asks for as many as fit by their mean size, for Pub/Sub's Pull knows no limit of bytes. An answer in
        flight when the caller breaks off is awaited and released.
        """
        in_flight: deque[tuple[Any, int]] = deque()
        began = self._clock()
        depth, asked, taken, size = 1, 0, 0, 0
        share = max(1, min(_MOST_PER_PULL, limits.messages // IN_FLIGHT))
        going_on = True
        try:
            while True:
                while going_on and len(in_flight) < depth and size < limits.bytes and taken + asked < limits.messages:
                    fit = (limits.bytes - size) // self._mean - asked
                    if fit < 1 and in_flight:
                        break
                    most = min(share, limits.messages - taken - asked, max(1, fit))
                    in_flight.append((self._pull_now(most), most))
                    asked += most
                if not in_flight:
                    return
                call, most = in_flight.popleft()
                asked -= most
                response = self._answer(call)
                if response is None:
                    going_on = False
                    continue
                messages, answered = len(response.received_messages), response.ByteSize()
                taken += messages
                size += answered
                if messages:
                    self._mean = max(1, answered // messages, self._mean // _SHRINKS)
                    yield response
                elapsed = timedelta(seconds=self._clock() - began)
                if messages >= min(_BEHIND_MESSAGES, most) or answered >= _BEHIND_BYTES:
                    depth = min(depth + 1, IN_FLIGHT)
                    going_on = elapsed < limits.longest
                elif elapsed >= limits.linger:
                    going_on = False
                elif not in_flight:
                    self._wait((limits.linger - elapsed).total_seconds())
        finally:
            self._release(in_flight)

    def _pull_now(self, most: int) -> Any:
        request = PullRequest(subscription=self._subscription, max_messages=most, return_immediately=True)
        return self._pull.future(request, timeout=_TIMEOUT, metadata=self._metadata)

    def _answer(self, call: Any) -> Any | None:
        """Return an answer, or None where Pub/Sub is unavailable: what was read is handed on, the rest can wait."""
        try:
            with pubsub_errors(f"pull from {self._subscription}"):
                return call.result()
        except TransientError as error:
            structlog.get_logger().warning("pull_failed", subscription=self._subscription, error=str(error))
            return None

    def _release(self, in_flight: Sequence[tuple[Any, int]]) -> None:
        ids: list[str] = []
        for call, _most in in_flight:
            if call.exception() is None:
                ids += ack_ids(call.result())
        if ids:
            self._leases.release(ids)
            self.released += len(ids)
            structlog.get_logger().info("messages_released", messages=len(ids))


def ack_ids(response: Any) -> list[str]:
    """Return the leases that an answer has taken."""
    return [received.ack_id for received in response.received_messages]


def to_portions(response: Any, tasks: Sequence[int], file: DataFile | None = None) -> pa.RecordBatch:
    """Return an answer's messages in rows of `PORTION_SCHEMA`, one for each of the sink's ``tasks`` that gets some.

    All messages of an ordering key are for one task, and it is the same in every process. ``file``: where their data
    goes; None: it travels with them.
    """
    portions: dict[int, list[Any]] = {}
    for one in response.received_messages:
        task = tasks[_task_of(_key(one.message), len(tasks))]
        portions.setdefault(task, []).append(one)
    packed = [pack(_to_messages(received, file)) for received in portions.values()]
    columns: list[Sequence[Any]] = [list(portions), [crc32(each) for each in packed], packed]
    return _to_batch(columns, PORTION_SCHEMA)


def _task_of(key: str, tasks: int) -> int:
    """Return which of so many tasks a key is for: the buckets of a table, which keys end with, go to each in turn.

    By a hash of the whole key, as of a key of another form, one of eight tasks had up to half as much again as the
    mean, by what tables were called.
    """
    table, _, bucket = key.rpartition("/")
    number = bucket.removeprefix("snapshot-")
    if not (number.isascii() and number.isdigit() and len(number) < _DIGITS):
        return crc32(key.encode()) % tasks
    return (crc32(table.encode()) + int(number)) % tasks


def _to_messages(received: Sequence[Any], file: DataFile | None) -> pa.RecordBatch:
    messages = [one.message for one in received]
    times = [message.publish_time for message in messages]
    data = [message.data for message in messages]
    columns: list[Sequence[Any]] = [
        [one.ack_id for one in received],
        [message.message_id for message in messages],
        [_key(message) for message in messages],
        data if file is None else [None] * len(data),
        [list(message.attributes.items()) for message in messages],
        [time.seconds * 1_000_000 + time.nanos // 1_000 for time in times],
        [one.delivery_attempt for one in received],
    ]
    return _to_batch(columns, MESSAGE_SCHEMA) if file is None else _to_batch([*columns, file.keep(data)], KEPT_SCHEMA)


def _key(message: Any) -> str:
    return str(message.ordering_key or message.attributes.get(BUCKET, ""))


def _to_batch(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
