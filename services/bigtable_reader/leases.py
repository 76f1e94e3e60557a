"""What a reader holds: leases that are renewed, positions that are saved with them, and ceilings of stamps."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from services.bigtable_reader.core.partitions import PieceId, Progress, overlapping
from services.bigtable_reader.core.records import KeyRange
from services.bigtable_reader.held import Held, Options
from services.bigtable_reader.ports import Clock, Metrics, PartitionStore
from shared.contracts.errors import TransientError

_MICROSECOND: Final = timedelta(microseconds=1)
_TOO_LATE: Final = "not renewed in time"


class Leases:
    """Keeps the leases of what this reader holds, until they are lost or given back."""

    def __init__(
        self, store: PartitionStore, clock: Clock, metrics: Metrics, options: Options, is_trusted: Callable[[], bool]
    ) -> None:
        """Take who tells whether what is published is kept: as long as it is not, no position is saved."""
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._options = options
        self._is_trusted = is_trusted
        self.held: dict[PieceId, Held] = {}
        self._saving = asyncio.Lock()
        self._renewal = asyncio.Event()
        self._log = structlog.get_logger()

    async def keep(self) -> None:
        """Save all positions, raise the ceilings and renew the leases, again and again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.tick.total_seconds()):
                    await self._renewal.wait()
            self._renewal.clear()
            await self._save()

    def renew_now(self) -> None:
        """Let that happen now."""
        self._renewal.set()

    def take(self, held: Held, asked_at: float) -> None:
        """Hold a partition by a lease that was asked for then, by the event loop's clock."""
        self.held[held.partition.piece.id] = held
        self._extend(held, asked_at)

    def drop(self, held: Held) -> None:
        """Hold a partition no more."""
        self.held.pop(held.partition.piece.id, None)

    def raise_floors(self, keys: KeyRange, floor: int) -> None:
        """Let no stamp up to a number be made for keys any more, and have that saved: at the second renewal at last."""
        low = [one for one in self.held.values() if not one.over and one.stamps.last < floor]
        for one in low:
            if overlapping([one.partition.piece.range, keys]):
                one.least_floor = max(one.least_floor, floor)
                one.stamps.rise(floor)
                self.renew_now()

    async def release(self, held: Held) -> None:
        """Save how far a partition is, and let other readers have it."""
        async with self._saving:  # or a renewal that is on its way would come after, and keep it from everybody
            held.over = True
            await self._store.advance([self._progress(held)], release=True)

    async def release_all(self) -> None:
        """Save how far all partitions are, and let other readers have them."""
        await self._store.advance([self._progress(held) for held in self.held.values()], release=True)

    async def _save(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._saving:
            held = [one for one in self.held.values() if not one.over]
            if not held or not self._is_trusted():
                return
            asked_at = loop.time()
            now, ahead = self._clock.now(), self._options.reserve // _MICROSECOND
            for one in held:  # what is read from now on may be published under the time, though nothing changes
                if now < one.stamps.ceiling:
                    one.stamps.rise(now)
            progress = [one.progress(max(one.stamps.wanted(now, ahead), one.least_floor + ahead)) for one in held]
            try:
                lost = await self._store.advance(progress)
            except TransientError as error:  # again at the next tick; the leases' own timers keep running
                self._log.warning("positions_not_saved", error=str(error))
                return
        for one, saved in zip(held, progress, strict=True):
            if one.partition.piece.id in lost:
                self._lose(one, "taken by another reader")
            else:
                self._extend(one, asked_at)
                one.raise_ceiling(saved.ceiling)

    def _extend(self, held: Held, asked_at: float) -> None:
        """Stop reading when a lease that was asked for then is about to end, unless it is extended again."""
        if held.lease_ends is not None:
            held.lease_ends.cancel()
        if not held.ours:
            self._lose(held, _TOO_LATE)
            return
        held.trusted_until = asked_at + self._options.trust.total_seconds()
        held.lease_ends = asyncio.get_running_loop().call_at(held.trusted_until, self._lose, held, _TOO_LATE)

    def _lose(self, held: Held, why: str) -> None:
        if held.over or held.task is None or held.task.done():
            return
        held.over = True
        held.task.cancel()
        self._metrics.lease_lost()
        self._log.warning("lease_lost", piece=held.partition.piece.id, range=str(held.partition.piece.range), why=why)

    def _progress(self, held: Held) -> Progress:
        """Return how far a partition is that is given back: no stamp is made for it here any more."""
        last = held.stamps.last
        if self._is_trusted():
            return held.progress(last)
        return Progress(held.partition, held.partition.position, held.partition.low_watermark, last, last)
