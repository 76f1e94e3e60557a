"""A partition that this reader holds the lease of, and how a reader reads."""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.bigtable_reader.core.partitions import Partition, Progress
from services.bigtable_reader.core.progress import ConfirmedPrefix, Place
from services.bigtable_reader.core.records import Microseconds
from services.bigtable_reader.core.stamps import Stamps

_LONGEST_TICK: Final = timedelta(seconds=5)
_LEAST_RESERVE: Final = timedelta(seconds=20)
_MARGIN: Final = 5
"""The part of a lease after which, if it was not renewed, its owner stops: others may take it only at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a reader reads."""

    owner: str
    lease: timedelta
    heartbeat: timedelta
    end: Microseconds | None = None
    poll: timedelta = timedelta(seconds=1)
    recheck: timedelta = timedelta(minutes=2)
    """How often the topic's subscriptions are looked at again."""
    look: timedelta = timedelta(minutes=1)
    """How often is looked again at what the stream never tells of the table."""
    stalls: timedelta = timedelta(minutes=5)
    """How long the low watermark stands still before that is said."""

    @property
    def tick(self) -> timedelta:
        """Return how often positions are saved and leases renewed: several times in the life of a lease."""
        return min(self.lease / 6, _LONGEST_TICK)

    @property
    def reserve(self) -> timedelta:
        """Return how far ahead of the clock stamps are reserved: further than a renewal may be late."""
        return max(self.lease, _LEAST_RESERVE)

    @property
    def trust(self) -> timedelta:
        """Return how long an owner goes on after it has asked for the last renewal that was granted."""
        return self.lease - self.lease / _MARGIN


class Held:
    """A partition that this reader has the lease of."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.prefix = ConfirmedPrefix(partition.piece.range, partition.position, partition.low_watermark)
        self.stamps = Stamps(partition.floor, partition.ceiling)
        self.least_floor = 0
        """No stamp up to it is to be made any more, as soon as the ceiling is above it."""
        self.moved = asyncio.Event()
        self.raised = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.lease_ends: asyncio.TimerHandle | None = None
        self.trusted_until = math.inf
        """By the event loop's clock."""
        self._expired = False
        self.over = False
        self.leaving = False
        """Whether it is on its way to another reader."""

    @property
    def ours(self) -> bool:
        """Tell whether something may still be published for it.

        The clock is asked, for after a pause of the whole process what has arrived is handled before any timer. Once
        no is no for ever: what was dropped for it is never confirmed, so a renewal that comes late must not revive it.
        """
        self._expired = self._expired or asyncio.get_running_loop().time() >= self.trusted_until
        return not self.over and not self._expired

    def progress(self, ceiling: int) -> Progress:
        """Return how far it has been read and confirmed."""
        return Progress(self.partition, self.prefix.position, self.prefix.low_watermark, ceiling, self.stamps.last)

    async def confirmed(self, *, all_but: int = 0) -> None:
        """Wait until no more than so many records of it wait for Pub/Sub."""
        while self.prefix.outstanding > all_but:
            self.moved.clear()
            await self.moved.wait()

    def confirm(self, places: Iterable[Place]) -> None:
        """Say that one more part of each of these records is confirmed."""
        self.prefix.confirm(places)
        self.moved.set()

    def raise_ceiling(self, ceiling: int) -> None:
        """Let stamps be made up to a ceiling that is saved."""
        self.stamps.raised(ceiling)
        self.stamps.rise(self.least_floor)
        self.raised.set()
