"""The leases of one reader: renewed while it reads, saved with how far each partition is, and released at the end."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import structlog

from shared.contracts.errors import TransientError
from shared.reading.metrics import ReaderMetrics
from shared.reading.owned_partition import OwnedPartition

_LONGEST_TICK: Final = timedelta(seconds=5)
_TOO_LATE: Final = "not renewed in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """How a reader reads and shares partitions."""

    owner: str
    lease: timedelta
    heartbeat: timedelta
    poll: timedelta = timedelta(seconds=1)
    recheck: timedelta = timedelta(minutes=2)
    """How often the reader checks the subscriptions of the topic."""
    inspect_every: timedelta = timedelta(minutes=1)
    """How often the reader inspects what the stream does not report, such as the schema."""

    topic_heartbeat: timedelta = timedelta(minutes=1)
    """How often the reader publishes how far it is."""

    @property
    def tick(self) -> timedelta:
        """Return how often the reader saves progress and renews leases: several times in the life of a lease."""
        return min(self.lease / 6, _LONGEST_TICK)

    @property
    def trust(self) -> timedelta:
        """Return how long an owner goes on after it has asked for the last renewal that was granted."""
        return self.lease


OwnedT = TypeVar("OwnedT", bound=OwnedPartition[Any])
ProgressT = TypeVar("ProgressT")
ProgressT_contra = TypeVar("ProgressT_contra", contravariant=True)


class PartlySavedError(TransientError):
    """Progress of some partitions was saved, and their leases renewed; of others that is not known."""

    def __init__(self, message: str, lost: Collection[str], unknown: Collection[str]) -> None:
        super().__init__(message)
        self.lost = lost
        self.unknown = unknown


class LeaseStore(Protocol[ProgressT_contra]):
    """What keeps progress and leases."""

    async def advance(self, progress: Sequence[ProgressT_contra], *, release: bool = False) -> Collection[str]:
        """Save progress and renew the leases, or release them; return the partitions that are no longer ours."""


class PartitionLeases(ABC, Generic[OwnedT, ProgressT]):
    """Keeps the leases of the partitions that this reader owns, until they are lost or released."""

    not_saved: ClassVar[str]
    """The log event of progress that could not be saved."""

    def __init__(
        self,
        store: LeaseStore[ProgressT],
        metrics: ReaderMetrics,
        options: ReaderOptions,
        is_durable: Callable[[], bool],
    ) -> None:
        """``is_durable`` returns False while no subscription keeps what is published; no progress is saved then."""
        self._store = store
        self._metrics = metrics
        self._options = options
        self._is_durable = is_durable
        self.owned: dict[str, OwnedT] = {}
        self._saving = asyncio.Lock()
        self._renewal = asyncio.Event()
        self._log = structlog.get_logger()

    @abstractmethod
    def _to_save(self, owned: Sequence[OwnedT]) -> Sequence[ProgressT]:
        """Return the progress of partitions that are read on."""

    @abstractmethod
    def _to_release(self, owned: OwnedT, *, durable: bool) -> ProgressT:
        """Return the progress of a partition that another reader may take; what it was claimed with if not durable."""

    def _renewed(self, owned: OwnedT, saved: ProgressT) -> None:
        """Take what was saved when the lease was renewed."""

    async def keep(self) -> None:
        """Save the progress of all partitions and renew their leases, again and again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.tick.total_seconds()):
                    await self._renewal.wait()
            self._renewal.clear()
            await self._save()

    def renew_now(self) -> None:
        """Renew the leases without waiting for the next tick."""
        self._renewal.set()

    def take(self, owned: OwnedT, asked_at: float) -> None:
        """Own a partition by a lease that was asked for then, by the event loop's clock."""
        self.owned[owned.key] = owned
        self._extend(owned, asked_at)

    def drop(self, owned: OwnedT) -> None:
        """Own a partition no more."""
        self.owned.pop(owned.key, None)

    async def release(self, some: Collection[OwnedT]) -> None:
        """Save how far partitions are, and let other readers have them."""
        async with self._saving:  # or a renewal that is on its way would come after, and keep them from everybody
            for owned in some:
                owned.over = True
            await self._release(some)

    async def release_all(self) -> None:
        """Save how far all partitions are, and let other readers have them. No renewal may be on its way."""
        await self._release(self.owned.values())

    async def _release(self, owned: Collection[OwnedT]) -> None:
        durable = self._is_durable()
        await self._store.advance([self._to_release(one, durable=durable) for one in owned], release=True)

    async def _save(self) -> None:
        async with self._saving:
            for one in list(self.owned.values()):
                if not one.ours:  # its timer comes later where the whole process stood still
                    self._lose(one, _TOO_LATE)
            owned = [one for one in self.owned.values() if not one.over]
            if not owned or not self._is_durable():
                return
            asked_at = asyncio.get_running_loop().time()
            for one in owned:
                one.measure(asked_at)
            progress = self._to_save(owned)
            unknown: Collection[str] = ()
            try:
                lost = await self._store.advance(progress)
            except PartlySavedError as error:  # the others' leases are renewed: one row must not end them
                self._log.warning(self.not_saved, error=str(error))
                lost, unknown = error.lost, error.unknown
            except TransientError as error:  # again at the next tick; the leases' own timers keep running
                self._log.warning(self.not_saved, error=str(error))
                return
        for one, saved in zip(owned, progress, strict=True):
            if one.key in unknown:
                continue
            if one.key in lost:
                self._lose(one, "taken by another reader")
            else:
                self._extend(one, asked_at)
                self._renewed(one, saved)

    def _extend(self, owned: OwnedT, asked_at: float) -> None:
        """Stop reading when a lease that was asked for then is about to end, unless it is extended again."""
        owned.end_timer()
        if not owned.ours:
            self._lose(owned, _TOO_LATE)
            return
        owned.trusted_until = asked_at + self._options.trust.total_seconds()
        owned.lease_ends = asyncio.get_running_loop().call_at(owned.trusted_until, self._lose, owned, _TOO_LATE)

    def _lose(self, owned: OwnedT, why: str) -> None:
        if owned.over or owned.task is None or owned.task.done():
            return
        owned.over = True
        owned.task.cancel()
        self._metrics.lease_lost()
        self._log.warning("lease_lost", **owned.log_fields, why=why)
