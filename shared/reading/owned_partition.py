"""A partition that a reader owns: read until it ends, and recorded as over only after all of it is confirmed."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import structlog

from shared.contracts.errors import TransientError
from shared.reading.confirmed_prefix import ConfirmedPrefix, Place, TimeT
from shared.runtime.retries import retried, retrying_async
from shared.runtime.stop import Stop

_LOAD_OVER: Final = 300.0
"""Seconds over which a load is averaged: what is busier for a moment only is not worth a handover."""
_UNCONFIRMED: Final = 20_000
"""Records of one partition that may wait for Pub/Sub; the publisher bounds their bytes, this bounds their number."""
_HURRIED: Final = 1.0
"""Seconds after which the publisher is hurried again where nothing was confirmed: less than a hurry lasts."""

RecordedT = TypeVar("RecordedT")


class OwnedPartition(ABC, Generic[TimeT]):
    """A partition that this reader has the lease of."""

    def __init__(self, watermark: TimeT, load: float = 0.0) -> None:
        """Go on from where it was claimed; ``load``: as its former owner saved it last."""
        self.prefix: ConfirmedPrefix[TimeT, str] = ConfirmedPrefix(watermark)
        self.moved = asyncio.Event()
        """Set when Pub/Sub has confirmed one of its records."""
        self.task: asyncio.Task[None] | None = None
        self.lease_ends: asyncio.TimerHandle | None = None
        self.trusted_until = math.inf
        """By the event loop's clock."""
        self.over = False
        """Whether this reader has no more part in it: the lease is lost or released, or the partition has ended."""
        self.leaving = False
        """Whether it is on its way to another reader."""
        self.load = load
        """Records read per second."""
        self.hurry: Callable[[], None] = lambda: None
        """Called before a confirmation is waited for: the publisher may hold changes back to publish more together."""
        self._measured: tuple[float, int] | None = None
        """When it was, by the event loop's clock, and how many records had been read."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Return what names it in the partition table."""

    @property
    @abstractmethod
    def position(self) -> object:
        """Return where it is read on when a query has broken off."""

    @property
    @abstractmethod
    def log_fields(self) -> Mapping[str, str]:
        """Return what names it in the log."""

    @property
    def ours(self) -> bool:
        """Return whether its lease may still be extended."""
        return not self.over

    @property
    def outstanding(self) -> int:
        """Return how many of its records wait for Pub/Sub."""
        return self.prefix.outstanding

    def confirm(self, places: Iterable[Place[TimeT, str]]) -> None:
        """Say that one more part of each of these records is confirmed."""
        self.prefix.confirm(places)
        self.moved.set()

    def measure(self, now: float) -> None:
        """Take into its load what was read since this was called last; ``now``: by the event loop's clock."""
        before, taken = self._measured, self.prefix.taken
        self._measured = now, taken
        if before is None or now <= before[0]:
            return
        seconds = now - before[0]
        rate = max(0, taken - before[1]) / seconds  # less, where it is read again from an earlier position
        self.load += (rate - self.load) * -math.expm1(-seconds / _LOAD_OVER)

    async def confirmed(self) -> None:
        """Wait until none of its records waits for Pub/Sub."""
        while self.outstanding:
            self.hurry()
            self.moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_HURRIED):
                    await self.moved.wait()

    async def room(self, needs_more: Callable[[], bool] = lambda: False) -> None:
        """Wait while too many of its records wait for Pub/Sub, but not for what only further records can release."""
        while self.outstanding > _UNCONFIRMED and not needs_more():
            self.hurry()
            self.moved.clear()
            await self.moved.wait()

    async def end(self, record: Callable[[], Awaitable[RecordedT | None]], stop: Stop) -> RecordedT | None:
        """Have the end of the partition recorded once everything of it is confirmed, and return what that returned.

        ``record`` returns None where the lease was lost, so that nothing is recorded.
        """
        await self.confirmed()
        recorded = await retried(stop, record)
        self.over = True
        if recorded is None:
            structlog.get_logger().warning("lease_lost", **self.log_fields, why="taken by another reader")
        return recorded

    def end_timer(self) -> None:
        """Cancel the timer of its lease."""
        if self.lease_ends is not None:
            self.lease_ends.cancel()


async def read_to_the_end(owned: OwnedPartition[Any], read: Callable[[], Awaitable[None]], stop: Stop) -> None:
    """Read a partition until it is over; where ``read`` breaks off, or returns early, it is called again."""

    async def read_on() -> None:
        position = owned.position
        try:
            await read()
        except TransientError as error:
            if owned.over:
                return
            if stop.requested or owned.position == position:
                raise
            # It got somewhere before it broke off: no reason to wait longer and longer from one break to the next.
            structlog.get_logger().warning("partition_restarted", **owned.log_fields, error=str(error))

    while not owned.over:
        async for attempt in retrying_async(stop, name=f"read partition {owned.key}"):
            with attempt:
                await read_on()
