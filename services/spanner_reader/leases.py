"""What a reader holds: leases that are renewed, and watermarks that are saved with them."""

import asyncio
from collections.abc import Callable

import structlog

from services.spanner_reader.core.records import PartitionToken
from services.spanner_reader.held import Held, Options
from services.spanner_reader.ports import Metrics, PartitionStore, Progress
from shared.contracts.errors import TransientError


class Leases:
    """Keeps the leases of what this reader holds, until they are lost or given back."""

    def __init__(
        self, store: PartitionStore, metrics: Metrics, options: Options, is_trusted: Callable[[], bool]
    ) -> None:
        """Take who tells whether what is published is kept: as long as it is not, no watermark is saved."""
        self._store = store
        self._metrics = metrics
        self._options = options
        self._is_trusted = is_trusted
        self._saving = asyncio.Lock()
        self.held: dict[PartitionToken, Held] = {}
        self._log = structlog.get_logger()

    async def keep(self) -> None:
        """Save the watermarks of all partitions and renew their leases, again and again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._options.tick.total_seconds())
            async with self._saving:
                held = [one for one in self.held.values() if not one.over]
                if not held or not self._is_trusted():
                    continue
                asked_at = loop.time()
                try:
                    lost = await self._store.advance([one.progress for one in held])
                except TransientError as error:  # again at the next tick; the leases' own timers keep running
                    self._log.warning("watermarks_not_saved", error=str(error))
                    continue
            for one in held:
                if one.partition.token in lost:
                    self._lose(one, "taken by another reader")
                else:
                    self._extend(one, asked_at)

    def take(self, held: Held, asked_at: float) -> None:
        """Hold a partition by a lease that was asked for then, by the event loop's clock."""
        self.held[held.partition.token] = held
        self._extend(held, asked_at)

    def drop(self, held: Held) -> None:
        """Hold a partition no more."""
        self.held.pop(held.partition.token, None)

    async def release(self, held: Held) -> None:
        """Save how far a partition is, and let other readers have it."""
        async with self._saving:  # or a renewal that is on its way would come after, and keep it from everybody
            held.over = True
            await self._store.advance([self._progress(held)], release=True)

    async def release_all(self) -> None:
        """Save how far all partitions are, and let other readers have them."""
        await self._store.advance([self._progress(held) for held in self.held.values()], release=True)

    def _extend(self, held: Held, asked_at: float) -> None:
        """Stop reading when a lease that was asked for then ends, unless it is extended again."""
        if held.lease_ends is not None:
            held.lease_ends.cancel()
        if not held.over:
            ends = asked_at + self._options.lease.total_seconds()
            held.lease_ends = asyncio.get_running_loop().call_at(ends, self._lose, held, "not renewed in time")

    def _lose(self, held: Held, why: str) -> None:
        if held.over or held.task is None or held.task.done():
            return
        held.over = True
        held.task.cancel()
        self._metrics.lease_lost()
        self._log.warning("lease_lost", partition_token=held.partition.token, why=why)

    def _progress(self, held: Held) -> Progress:
        return held.progress if self._is_trusted() else Progress(held.partition, held.partition.watermark)
