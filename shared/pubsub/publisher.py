"""Publishes changes as change batches: packed by the packer's clock, confirmed by receipt, bounded in bytes.

Nothing is given up on the quiet: a future resolves when Pub/Sub has all its changes, or fails with why it never will.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle
from typing import Any, Final, Self

import grpc
import structlog

from shared.contracts.change_batch import BUCKET, Change, Header, encode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import key_text, ordering_key
from shared.contracts.safe_age import MAX_OUTSTANDING_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.pubsub.dead_letters import AsyncDeadLetterPublisher
from shared.pubsub.errors import pubsub_errors
from shared.pubsub.key_rests import REST, KeyRests
from shared.pubsub.outage import Outage
from shared.pubsub.packer import REQUEST_BYTES, Message, Oversized, PackedRequest, Packer, PackerLimits, Receipt
from shared.pubsub.stubs import PublishRequest, PubsubMessage, publish_stub, routing
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop

OUTSTANDING_BYTES: Final = 64 * 1024 * 1024
_BETWEEN_REQUESTS: Final = 0.01
"""Seconds from one request to the next where messages have no ordering keys: what comes meanwhile goes together."""
_CHECK_CLOCK: Final = timedelta(minutes=1)
_SECOND: Final = 1_000_000_000  # in nanoseconds
_TIMEOUT: Final = 30.0
_DEAD_LETTERS_AT_ONCE: Final = 500
_LAST_CHANCE: Final = timedelta(seconds=8)  # of the ten seconds in which a stopped process has to be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherOptions:
    """What a publisher packs and holds at most, and for how long it waits."""

    failed_in: str
    """Which service a dead letter says that it failed in."""
    limits: PackerLimits | None = None
    outstanding_bytes: int = OUTSTANDING_BYTES
    last_chance: timedelta = _LAST_CHANCE
    """For what is left when the publisher is closed."""
    rest: timedelta = REST
    ordered: bool = True
    """Whether messages have ordering keys. If not, they say in an attribute which of them are of the same rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherHooks:
    """The clocks that a publisher reads, and what it calls with the number of messages that Pub/Sub has confirmed."""

    clock: Clock = field(default_factory=SystemClock)
    monotonic: Callable[[], float] = time.monotonic
    confirmed: Callable[[int], None] = lambda _messages: None
    took: Callable[[str, float], None] = lambda _table, _seconds: None
    """Called for each message of changes of the stream with their table and how long ago the newest was committed."""


class BatchPublisher:
    """Publishes to one topic. All its methods are called in one event loop; use it as ``async with``."""

    def __init__(
        self,
        channels: grpc.aio.Channel | Sequence[grpc.aio.Channel],
        topic: str,
        dead_letters: AsyncDeadLetterPublisher,
        stop: Stop,
        options: PublisherOptions,
        hooks: PublisherHooks | None = None,
    ) -> None:
        """Take channels that have room for all requests under way, which they share."""
        hooks = hooks or PublisherHooks()
        several = channels if isinstance(channels, Sequence) else [channels]
        self._stubs = cycle([publish_stub(channel) for channel in several])
        self._topic = topic
        self._dead_letters = dead_letters
        self._stop = stop
        self._failed_in = options.failed_in
        self._confirmed = hooks.confirmed
        self._took = hooks.took
        self._clock = hooks.clock
        self._ordered = options.ordered
        self._packer = Packer(options.limits, paced=options.rest > timedelta(), ordered=options.ordered)
        self._rests = KeyRests(options.rest, hooks.clock, self._is_half_full, self._rested)
        self._most_outstanding = options.outstanding_bytes
        self._last_chance = options.last_chance
        self._gate = asyncio.Lock()  # hands out room in the order in which it was asked for
        self._room = asyncio.Event()
        self._confirmed_of: dict[str, asyncio.Event] = {}
        """Of keys that some wait for."""
        self._next_request = 0.0
        """By the event loop's clock, where messages have no ordering keys."""
        self._is_pump_timed = False
        """Whether a timer is set for the next request: there is one at most for all that wait."""
        self._futures: dict[Receipt, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._oversized: deque[Oversized] = deque()
        self._is_dead_lettering = False
        self._pump_is_due = False
        self._error: BaseException | None = None
        self._closed = False
        self._outage = Outage(topic, hooks.monotonic)
        self._awake_at: Nanoseconds | None = None
        self._next_check: asyncio.TimerHandle | None = None

    @property
    def outstanding_bytes(self) -> int:
        """Return how many bytes wait for their confirmation."""
        return self._packer.outstanding_bytes

    def why_not_ready(self) -> str:
        """Return which topic, of the changes or of the dead letters, has an outage. Any thread may ask."""
        return self._outage.why_not_ready() or self._dead_letters.why_not_ready()

    async def publish(self, header: Header, changes: Sequence[tuple[str, Change]]) -> "asyncio.Future[None]":
        """Take changes, each with its ordering key, as soon as there is room; none announces the header's table.

        The future resolves when Pub/Sub has confirmed all of them (of a change too large for any message: its dead
        letter), and fails with TransientError where a stop came first, or they have waited for longer than
        `MAX_OUTSTANDING_AGE`, or this process has stood still for as long; or with MisconfiguredError.
        """
        taken_at = self._clock.now()
        keys = {key for key, _change in changes}
        while True:
            await self._share(keys)
            async with self._gate:
                while self._packer.outstanding_bytes >= self._most_outstanding and self._error is None:
                    self._room.clear()
                    await self._room.wait()
                self._refuse_if_over()
                if self._over_share(keys) is not None:
                    continue
                announce_under = ordering_key(header.table, 0)
                omitted_before = self._packer.old_values_omitted
                receipt, oversized = self._packer.add(header, changes, announce_under, taken_at)
                omitted = self._packer.old_values_omitted - omitted_before
                break
        if changes:
            self._rests.came(changes)
        future = asyncio.get_running_loop().create_future()
        self._futures[receipt] = future
        if self._awake_at is None:
            self._check_clock()
        elif self._is_outstanding_too_long(self._awake_at):  # they may have been read before that
            self._break(_stale(f"this process stood still from {format_timestamp(self._awake_at)} on"))
            return future
        if omitted:
            structlog.get_logger().warning("old_values_omitted", table=header.table, changes=omitted)
        self._oversized += oversized
        if oversized and not self._is_dead_lettering:
            self._is_dead_lettering = True
            self._start(self._dead_letter_oversized())
        if not self._pump_is_due:  # once a turn of the loop, so that what is published in one turn is packed together
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)
        return future

    def hurry(self, seconds: float = 0.0) -> None:
        """Have what was taken, and what is taken for so long, published soon: someone waits for a confirmation."""
        self._rests.hurry(seconds)

    async def close(self) -> None:
        """Publish what is left for some seconds, then return; the futures of what is not confirmed by then fail."""
        self._closed = True
        if self._next_check is not None:
            self._next_check.cancel()
        self._packer.hurry()
        self._pump()
        last_chance = asyncio.ensure_future(asyncio.sleep(self._last_chance.total_seconds()))
        while self._tasks and not last_chance.done():
            await asyncio.wait({*self._tasks, last_chance}, return_when=asyncio.FIRST_COMPLETED)
        last_chance.cancel()
        if not self._packer.idle:
            self._break(TransientError(f"stopped before {self._topic} confirmed everything"))
        await asyncio.gather(*self._tasks, last_chance, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def _share(self, keys: Collection[str]) -> None:
        """Wait while one of the keys has more than its share of the room; other keys do not wait for it.

        A key may take as much as is free. So one whose requests are slow takes half of the room at most, two a third
        each, and what is of other keys goes on.
        """
        while self._error is None and (key := self._over_share(keys)) is not None:
            await self._confirmed_of.setdefault(key, asyncio.Event()).wait()

    def _over_share(self, keys: Collection[str]) -> str | None:
        free = self._most_outstanding - self._packer.outstanding_bytes
        bytes_of = self._packer.bytes_of
        return next((key for key in keys if 0 < bytes_of(key) >= free), None) if free > 0 else None

    def _pump(self) -> None:
        self._pump_is_due = False
        if self._error is not None or self._waits_for_others():
            return
        for request in self._packer.requests():
            self._start(self._publish(request))
            if not self._closed:
                self._rests.begin(request.of_keys)

    def _waits_for_others(self) -> bool:
        """Return whether the last request was a moment ago, so that the next waits for what comes until then."""
        if self._ordered or self._closed:
            return False
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now < self._next_request:
            self._pump_is_due = True
            if not self._is_pump_timed:
                self._is_pump_timed = True
                loop.call_at(self._next_request, self._timed_pump)
            return True
        self._next_request = now + _BETWEEN_REQUESTS
        return False

    def _timed_pump(self) -> None:
        self._is_pump_timed = False
        self._pump()

    def _is_half_full(self) -> bool:
        """Return whether others may soon have to wait for room."""
        return 2 * self._packer.outstanding_bytes > self._most_outstanding

    def _rested(self, keys: Collection[str]) -> None:
        for key in keys:
            self._packer.interval_ended(key)
        self._pump()

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, request: PackedRequest) -> None:
        try:
            messages = [
                batch_message(message, key, ordered=self._ordered)
                for key, some in request.of_keys.items()
                for message in some
            ]
            await self._send(PublishRequest(topic=self._topic, messages=messages), request.taken_at)
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait must learn of it
            self._break(error)
            return
        if self._error is None:
            self._confirmed(len(messages))
            self._time(request.messages)
            self._resolve(self._packer.confirm(*request.of_keys))
            for key in request.of_keys if self._confirmed_of else ():
                if (waited_for := self._confirmed_of.pop(key, None)) is not None:
                    waited_for.set()
            self._room.set()
            self._pump()

    def _time(self, messages: Sequence[Message]) -> None:
        now = self._clock.now()
        for message in messages:
            if message.changes and message.header.origin == "stream":
                committed = parse_timestamp(message.changes[-1].commit_timestamp)
                self._took(message.header.table, (now - committed) / _SECOND)

    async def _send(self, wire: Any, taken_at: Nanoseconds) -> None:
        """Make a request until Pub/Sub confirms it; TransientError where its changes have waited for too long."""
        self._refuse_stale(taken_at)
        failed: list[TransientError] = []
        try:
            await self._attempt(wire)
        except TransientError as error:
            failed.append(error)
        else:  # nearly always: nothing that makes attempts is needed
            return
        async for attempt in retrying_async(self._stop, name="BatchPublisher._publish"):
            self._refuse_stale(taken_at)
            with attempt:
                if failed:
                    raise failed.pop()
                await self._attempt(wire)

    async def _attempt(self, wire: Any) -> None:
        with self._outage.attempt(), pubsub_errors(f"publish to {self._topic}"):
            await next(self._stubs)(wire, timeout=_TIMEOUT, metadata=routing("topic", self._topic))

    def _refuse_stale(self, taken_at: Nanoseconds) -> None:
        if self._is_outstanding_too_long(taken_at):
            raise _stale(f"changes have waited for {self._topic} since {format_timestamp(taken_at)}")

    def _is_outstanding_too_long(self, taken_at: Nanoseconds) -> bool:
        """Return whether what was taken then may be of a reader that is long replaced.

        By the clock of the day: another may stand still for as long as the machine does.
        """
        return timedelta(microseconds=(self._clock.now() - taken_at) // 1_000) > MAX_OUTSTANDING_AGE

    def _check_clock(self) -> None:
        """Note every now and then that this process is awake, but not after it has stood still for too long."""
        if self._awake_at is None or not self._is_outstanding_too_long(self._awake_at):
            self._awake_at = self._clock.now()
        self._next_check = asyncio.get_running_loop().call_later(_CHECK_CLOCK.total_seconds(), self._check_clock)

    async def _dead_letter_oversized(self) -> None:
        """Publish a dead letter of each oversized change, many at a time, until none is left."""
        while self._oversized:
            some = [self._oversized.popleft() for _ in range(min(len(self._oversized), _DEAD_LETTERS_AT_ONCE))]
            dead_letters = [self._dead_letter(one) for one in some]
            for dead_letter in dead_letters:
                structlog.get_logger().warning(
                    "change_dead_lettered",
                    reason=dead_letter.reason.value,
                    table=dead_letter.table,
                    payload_bytes=dead_letter.payload_bytes,
                )
            try:
                await self._dead_letters.keep(dead_letters)
            except Exception as error:  # noqa: BLE001
                self._break(error)
                return
            if self._error is not None:
                return
            for one in some:
                self._resolve(self._packer.settle(one))
            self._room.set()
        self._is_dead_lettering = False

    def _dead_letter(self, oversized: Oversized) -> DeadLetter:
        header = oversized.header
        return DeadLetter(
            data=oversized.key.encode(),
            attributes=_attributes(header, [oversized.commit_timestamp]),
            ordering_key=oversized.ordering_key,
            reason=Reason.TOO_LARGE,
            detail=f"the change takes {oversized.size} bytes, a message takes {REQUEST_BYTES}",
            failed_at=self._clock.now(),
            failed_in=self._failed_in,
            table=header.table,
            key=key_text(header.table, header.key_types(), oversized.key.encode()),
            sequence=oversized.sequence,
            commit_timestamp=oversized.commit_timestamp,
            payload_bytes=oversized.size,
        )

    def _resolve(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            future = self._futures.pop(receipt, None)
            if future is not None and not future.done():  # its caller may have given up waiting
                future.set_result(None)

    def _break(self, error: BaseException) -> None:
        """Fail everything that waits, and everything that comes: nothing of a key may overtake what failed."""
        if self._error is not None:
            return
        self._error = error
        log = structlog.get_logger()
        if isinstance(error, TransientError):  # a stop, or no answer in time: what is not confirmed is read again
            log.warning("publishing_stopped", topic=self._topic, error=str(error))
        else:
            log.error("publishing_stopped", topic=self._topic, error=str(error))
        for receipt in self._packer.abandon():
            future = self._futures.pop(receipt, None)
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen: a caller that was itself cancelled will not come back for it
        self._room.set()
        for waited_for in self._confirmed_of.values():
            waited_for.set()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _refuse_if_over(self) -> None:
        if isinstance(self._error, MisconfiguredError | TransientError):
            raise self._error
        if self._error is not None:
            raise RuntimeError("publishing has failed") from self._error
        if self._closed:
            raise RuntimeError("the publisher is closed")


def _stale(why: str) -> TransientError:
    return TransientError(
        f"{why}: deletes that others have published meanwhile may soon be forgotten by BigQuery, so what was read "
        "has to be read again"
    )


def batch_message(message: Message, ordering_key: str, *, ordered: bool = True) -> Any:
    """Return a change batch as a Pub/Sub message; not ``ordered``, its key is an attribute (`BUCKET`)."""
    attributes = _attributes(message.header, [change.commit_timestamp for change in message.changes])
    if not ordered:
        attributes[BUCKET] = ordering_key
    return PubsubMessage(
        data=encode_batch(message.header, message.changes),
        attributes=attributes,
        ordering_key=ordering_key if ordered else "",
    )


def _attributes(header: Header, commit_timestamps: Sequence[str]) -> dict[str, str]:
    """Return what lets other subscribers filter without parsing; a commit timestamp for each change."""
    attributes = {
        "source": header.source,
        "table": header.table,
        "change_count": str(len(commit_timestamps)),
        "format": str(header.format),
    }
    if commit_timestamps:
        times = {_instant(text): text for text in commit_timestamps}
        attributes["first_commit_timestamp"] = times[min(times)]
        attributes["last_commit_timestamp"] = times[max(times)]
    return attributes


def _instant(text: str) -> str:
    """Order RFC 3339 texts by time: in UTC, without the Z, they sort as the instants do (and need no parsing)."""
    return (text if text.endswith("Z") else format_timestamp(parse_timestamp(text)))[:-1]
