"""The life of a reader: claim partitions, have them read, share them with other readers, wind down.

What a source does differently, it does behind `Source`. Progress moves last: changes are published, Pub/Sub confirms
them, then the partition's progress is saved with its lease. What precedes a crash may happen twice, never not at all.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.leases import PartitionLeases, ReaderOptions
from shared.reading.owned_partition import OwnedPartition, read_to_the_end
from shared.reading.shares import Shares
from shared.runtime.health import Health
from shared.runtime.metrics import RETRIED, retry_code
from shared.runtime.retries import retried, what_to_check
from shared.runtime.stop import Stop, unless_stopped, until_stopped

_GONE: Final = timedelta(seconds=7.5)
"""After a stop, of the ten seconds that it may take: a call that is given up then takes a moment, as the process does.
"""
_FLUSH: Final = timedelta(seconds=4)
_SAVE: Final = timedelta(seconds=3)
"""The least time that is kept for saving at the end."""
_CONFIRM: Final = timedelta(seconds=2)
"""For what is under way when a partition is handed over; what is not confirmed by then is published again."""
_CROWDED: Final = 3
"""Surveys in a row that show more than a fair share here, before the reader releases some of it."""
_AT_ONCE: Final = 100
"""Partitions that are claimed or released together. Between two such steps leases are renewed, and a partition is not
read only while its own step lasts."""
_SURVEYED_TOGETHER: Final = 10
"""Readers that survey at the full pace; more of them survey as often as these, all together."""

DueT = TypeVar("DueT")
OwnedT = TypeVar("OwnedT", bound=OwnedPartition[Any])


@dataclass(frozen=True, slots=True)
class Round(Generic[DueT]):
    """What one survey of all partitions asks of this reader."""

    shares: Shares
    """Who owns what."""
    due: Mapping[str, DueT]
    """The partitions that it may claim, by their keys, the most urgent first."""
    paused: bool = False
    """Whether the stream is paused, so that no reader owns any partition."""


MetricsT = TypeVar("MetricsT")


@dataclass(frozen=True, slots=True)
class Monitoring(Generic[MetricsT]):
    """What shows others how the reading goes."""

    metrics: MetricsT
    health: Health


class Source(Protocol[DueT, OwnedT]):
    """What partitions are read from. A method that raises TransientError is called again."""

    def keepers(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return, by name, what runs beside the reading until it is cancelled."""

    async def begin(self) -> None:
        """Do what precedes the first survey."""

    async def survey(self) -> Round[DueT] | None:
        """Survey all partitions, and return what to do; None where all have reached the end that was asked for."""

    async def claim(self, due: Sequence[DueT]) -> Iterable[OwnedT]:
        """Take those that are still free, and return them."""

    async def read(self, owned: OwnedT, stop: Stop) -> None:
        """Read a partition from its position until its query ends, and record its end if it has ended.

        Called again, from the position that is reached by then, until the partition is over. TransientError where the
        query breaks off.
        """

    async def end_in_error(self, error: MisconfiguredError) -> None:
        """Do what is left to do when an error ends the reader."""

    async def drain(self, until: float) -> None:
        """Publish what was read, until a time of the event loop's clock; no partition is read from then on."""

    async def release(self) -> None:
        """Release everything but the partitions."""


class Flushed(Protocol):
    """What publishes."""

    def hurry(self, seconds: float = 0.0) -> None:
        """Have what was published, and what is published for so long, confirmed soon."""

    async def close(self) -> None:
        """Return when Pub/Sub has confirmed what was published, or will not."""


class Supervisor(Generic[DueT, OwnedT]):
    """Reads its share of a source's partitions, one task each, until it is asked to stop."""

    def __init__(
        self, leases: PartitionLeases[OwnedT, Any], publisher: Flushed, health: Health, options: ReaderOptions
    ) -> None:
        self._leases = leases
        self._publisher = publisher
        self._health = health
        self._options = options
        self._found: Round[DueT] = Round(Shares({}, {}, ()), {})
        """By the last survey."""
        self._handing_over: asyncio.Task[None] | None = None
        self._crowded = 0
        self._stopped_at: float | None = None
        """By the event loop's clock."""
        self._log = structlog.get_logger()

    async def run(self, source: Source[DueT, OwnedT], stop: Stop) -> None:
        """Read until asked to stop, or until every partition has reached the end asked for.

        Returns only after every task is over. MisconfiguredError, and errors of an unknown kind, end it early; what has
        been confirmed until then is saved, and the leases are released.
        """
        self._source = source
        self._stop = stop
        self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[None] = loop.create_future()

        def stopped() -> None:
            self._stopped_at = loop.time()
            loop.call_soon_threadsafe(self._wake.set)

        coroutines = {"leases": self._leases.keep(), **source.keepers()}
        beside = [asyncio.create_task(coroutine, name=name) for name, coroutine in coroutines.items()]
        for keeper in beside:
            keeper.add_done_callback(self.note)
        with stop.calling(stopped):
            supervising = asyncio.create_task(until_stopped(stop, self._supervise()), name="supervise")
            supervising.add_done_callback(self._on_supervised)
            try:
                with unless_stopped(stop):
                    await self._outcome
            except MisconfiguredError as error:
                await source.end_in_error(error)
                raise
            finally:
                # No renewal may be on its way when the leases are released: it would come after, and take them again.
                for task in (supervising, *beside):
                    task.cancel()
                await asyncio.gather(supervising, *beside, return_exceptions=True)
                not_drained = await self._wind_down()
        if not_drained is not None:
            raise not_drained

    def wake(self) -> None:
        """Survey again without waiting for the next poll."""
        self._wake.set()

    def fail(self, error: BaseException | None) -> None:
        """End the reader with an error; the first one counts, and None is no error."""
        if error is None or (isinstance(error, TransientError) and self._stop.requested):
            return
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def note(self, done: "asyncio.Future[None]") -> None:
        """End the reader with the error of a task or a future, if it has one."""
        if not done.cancelled():
            self.fail(done.exception())

    def _on_supervised(self, done: asyncio.Task[None]) -> None:
        self.note(done)
        if not self._outcome.done():
            self._outcome.set_result(None)

    async def _supervise(self) -> None:
        await retried(self._stop, self._health.attempting(self._source.begin))
        while not self._stop.requested:
            self._wake.clear()
            found = await retried(self._stop, self._health.attempting(self._source.survey))
            if found is None:
                self._log.info("end_timestamp_reached")
                return
            self._found = found
            is_claimed = found.paused or await self._claim(found)
            self._share()
            self._health.progressed()
            if is_claimed:
                self._health.ready = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_next_survey()):
                    await self._wake.wait()

    def _until_next_survey(self) -> float:
        """Return how long the reader waits, in seconds: many readers together survey no more often than a few do.

        A reader with too few partitions does not wait longer: no reader reads what others release for it meanwhile.
        """
        poll, shares = self._options.poll.total_seconds(), self._found.shares
        if self._found.paused or shares.is_short(owned.key for owned in self._reading()):
            return poll
        longest = max(poll, self._options.tick.total_seconds())
        return min(longest, poll * max(1.0, len(shares.readers) / _SURVEYED_TOGETHER))

    # Sharing

    def _reading(self) -> list[OwnedT]:
        return [owned for owned in self._leases.owned.values() if not owned.over and not owned.leaving]

    async def _claim(self, found: Round[DueT]) -> bool:
        """Claim free partitions up to a fair share; return whether no attempt failed.

        What fails is tried again after the next survey: that may show a pause, or other free partitions.
        """
        failed: list[TransientError] = []
        keys = found.shares.to_claim((owned.key for owned in self._reading()), found.due)
        for first in range(0, len(keys), _AT_ONCE):
            asked_at = asyncio.get_running_loop().time()
            due = [found.due[key] for key in keys[first : first + _AT_ONCE]]
            claim = self._health.attempting(partial(self._source.claim, due))
            try:
                claimed = await claim()
            except TransientError as error:  # meanwhile this reader is not ready
                RETRIED.add(retry_code(error))
                failed.append(error)
                continue
            for owned in claimed:
                self._leases.take(owned, asked_at)
                reading = partial(self._source.read, owned, self._stop)
                owned.hurry = partial(self._publisher.hurry, _CONFIRM.total_seconds())
                name = f"partition {owned.key}"
                owned.task = asyncio.create_task(read_to_the_end(owned, reading, self._stop), name=name)
                owned.task.add_done_callback(partial(self._on_over, owned))
        if failed:
            self._log.warning("partitions_not_claimed", error=str(failed[0]), fix=what_to_check(failed[0]))
        return not failed

    def _on_over(self, owned: OwnedT, task: asyncio.Task[None]) -> None:
        owned.end_timer()
        # At a stop, or on its way to another reader, it stays, so that its progress is saved and its lease released.
        if owned.over:
            self._leases.drop(owned)
        self.note(task)
        self._wake.set()

    def _share(self) -> None:
        """Release what is more than a fair share, if it stays more; everything while the stream is paused."""
        self._crowded = self._crowded + 1 if self._to_release() else 0
        is_running = self._handing_over is not None and not self._handing_over.done()
        if self._crowded >= (1 if self._found.paused else _CROWDED) and not is_running:
            self._crowded = 0
            self._handing_over = asyncio.create_task(self._hand_over(), name="hand over")
            self._handing_over.add_done_callback(self.note)

    def _to_release(self) -> Sequence[OwnedT]:
        # Those with the fewest records outstanding first: the handover waits for them.
        reading = {
            owned.key: owned for owned in sorted(self._reading(), key=lambda owned: (owned.outstanding, owned.key))
        }
        if self._found.paused:  # any reader may go on with it, from the progress that is saved
            return list(reading.values())
        if not self._found.shares.are_uneven:
            return ()
        return [reading[key] for key in self._found.shares.to_release(list(reading))]

    async def _hand_over(self) -> None:
        while some := self._to_release()[:_AT_ONCE]:
            await self._leave(some)

    async def _leave(self, some: Sequence[OwnedT]) -> None:
        """Stop reading partitions, let Pub/Sub confirm what is under way, and let other readers have them."""
        for owned in some:
            owned.leaving = True
            if owned.task is not None:
                owned.task.cancel()
        await asyncio.gather(*(owned.task for owned in some if owned.task is not None), return_exceptions=True)
        left = [owned for owned in some if not owned.over]  # the others came to their end just now
        with contextlib.suppress(TimeoutError):  # what is not confirmed by then is published again
            async with asyncio.timeout(_CONFIRM.total_seconds()):
                for owned in left:
                    await owned.confirmed()
        await retried(self._stop, partial(self._leases.release, left))
        for owned in left:
            self._leases.drop(owned)
        self._log.info("partitions_released", partitions=len(left), readers=len(self._found.shares.readers))

    # The end

    async def _wind_down(self) -> BaseException | None:
        """Stop reading, let Pub/Sub confirm what it has, save how far that is, release the leases.

        All of it before one moment, however many of them do not answer. Return the error of a source that could not
        be drained: what it has confirmed until then is saved all the same.
        """
        loop = asyncio.get_running_loop()
        gone_at = (loop.time() if self._stopped_at is None else self._stopped_at) + _GONE.total_seconds()
        save_at = gone_at - _SAVE.total_seconds()
        tasks = [owned.task for owned in self._leases.owned.values() if owned.task is not None]
        tasks += [] if self._handing_over is None else [self._handing_over]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for owned in self._leases.owned.values():
            owned.end_timer()
        [not_drained] = await asyncio.gather(self._source.drain(save_at), return_exceptions=True)
        if not_drained is not None:
            self._log.warning("source_not_drained", error=str(not_drained))
        flush = asyncio.create_task(self._publisher.close(), name="flush")
        # What is not confirmed by then is published again by the next owner; the leases must not wait for it.
        await asyncio.wait([flush], timeout=max(0, min(_FLUSH.total_seconds(), save_at - loop.time())))
        try:
            async with asyncio.timeout_at(gone_at):
                await retried(Stop(), self._leases.release_all)
                await retried(Stop(), self._source.release)
        except (TransientError, MisconfiguredError, TimeoutError) as error:  # what ends the reader says more
            why = str(error) or "the partition table did not answer in time"
            self._log.warning("leases_not_released", error=why)
        finally:
            await asyncio.wait([flush], timeout=max(0, gone_at - loop.time()))
            flush.cancel()
            await asyncio.gather(flush, return_exceptions=True)
        self._log.info("reader_stopped", partitions=len(self._leases.owned))
        return not_drained
