"""A partition that a reader holds the lease of, and how a reader reads."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.spanner_reader.core.partitions import Partition
from services.spanner_reader.core.watermark import ConfirmedPrefix
from services.spanner_reader.ports import Progress
from shared.contracts.timestamps import Nanoseconds

_LONGEST_TICK: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a reader reads."""

    owner: str
    lease: timedelta
    heartbeat: timedelta
    end: Nanoseconds | None = None
    poll: timedelta = timedelta(seconds=1)
    recheck: timedelta = timedelta(minutes=2)
    """How often the topic's subscriptions are looked at again."""
    keep_messages: timedelta = timedelta(days=7)
    """How long a subscription keeps messages."""
    look: timedelta = timedelta(minutes=1)
    """How often the schema is looked at again."""
    keep_finished: timedelta = timedelta(days=1)
    """How long finished partitions are remembered, at the least."""
    tidy: timedelta = timedelta(minutes=10)

    @property
    def tick(self) -> timedelta:
        """Return how often watermarks are saved and leases renewed: several times in the life of a lease."""
        return min(self.lease / 6, _LONGEST_TICK)


class Held:
    """A partition that this reader has the lease of."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.prefix = ConfirmedPrefix(partition.watermark)
        self.moved = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.lease_ends: asyncio.TimerHandle | None = None
        self.over = False
        self.leaving = False
        """Whether it is on its way to another reader."""

    @property
    def progress(self) -> Progress:
        """Return how far it has been read and confirmed."""
        return Progress(self.partition, self.prefix.watermark)

    async def confirmed(self, *, all_but: int = 0) -> None:
        """Wait until no more than so many records of it wait for Pub/Sub."""
        while self.prefix.outstanding > all_but:
            self.moved.clear()
            await self.moved.wait()
