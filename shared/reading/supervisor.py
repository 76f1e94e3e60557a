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
from shared.runtime.health import Health
from shared.runtime.retries import retried
from shared.runtime.stop import Stop, unless_stopped, until_stopped

_GONE: Final = timedelta(seconds=7.5)
"""After a stop, of the ten seconds that it may take: a call that is given up then takes a moment, as the process does.
"""
_FLUSH: Final = timedelta(seconds=4)
_SAVE: Final = timedelta(seconds=3)
"""The least time that is kept for saving at the end."""
_CROWDED: Final = 3
"""Surveys in a row that show more than a fair share here, before the reader releases some of it."""

DueT = TypeVar("DueT")
OwnedT = TypeVar("OwnedT", bound=OwnedPartition)


@dataclass(frozen=True, slots=True)
class Round(Generic[DueT]):
    """What one survey of all partitions asks of this reader."""

    share: int
    """How many partitions it may own."""
    due: Sequence[DueT]
    """The partitions that it may claim, the most urgent first."""
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

    async def let_go(self) -> None:
        """Release everything but the partitions."""


class Flushed(Protocol):
    """What publishes."""

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
        self._leaving: set[asyncio.Task[None]] = set()
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
            if found.paused:
                # Any reader may go on with it, from the progress that is saved.
                for owned in self._reading():
                    self._release(owned)
            else:
                await self._claim_and_share(found)
            self._health.progressed()
            self._health.ready = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll.total_seconds()):
                    await self._wake.wait()

    # Sharing

    def _reading(self) -> list[OwnedT]:
        return [owned for owned in self._leases.owned.values() if not owned.over and not owned.leaving]

    async def _claim_and_share(self, found: Round[DueT]) -> None:
        """Claim free partitions up to a fair share; release what is more, if it stays more."""
        reading = self._reading()
        await self._claim(found.due[: max(0, found.share - len(reading))])
        self._crowded = self._crowded + 1 if len(reading) > found.share else 0
        if self._crowded >= _CROWDED:
            self._crowded = 0
            # Those with the fewest records outstanding: the handover waits for them.
            reading.sort(key=lambda owned: (owned.outstanding, owned.key))
            for owned in reading[: len(reading) - found.share]:
                self._release(owned)

    async def _claim(self, due: Sequence[DueT]) -> None:
        if not due:
            return
        asked_at = asyncio.get_running_loop().time()
        claim = self._health.attempting(lambda: self._source.claim(due))
        for owned in await retried(self._stop, claim):
            self._leases.take(owned, asked_at)
            reading = partial(self._source.read, owned, self._stop)
            owned.task = asyncio.create_task(read_to_the_end(owned, reading, self._stop), name=f"partition {owned.key}")
            owned.task.add_done_callback(partial(self._on_over, owned))

    def _on_over(self, owned: OwnedT, task: asyncio.Task[None]) -> None:
        owned.end_timer()
        # At a stop, or on its way to another reader, it stays, so that its progress is saved and its lease released.
        if owned.over:
            self._leases.drop(owned)
        self.note(task)
        self._wake.set()

    def _release(self, owned: OwnedT) -> None:
        owned.leaving = True
        task = asyncio.create_task(self._leave(owned), name=f"leave {owned.key}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.add_done_callback(self.note)

    async def _leave(self, owned: OwnedT) -> None:
        """Stop reading a partition, let Pub/Sub confirm what is under way, and let another reader have it."""
        if owned.task is not None:
            owned.task.cancel()
            await asyncio.gather(owned.task, return_exceptions=True)
        if owned.over:  # it came to its end just now
            return
        with contextlib.suppress(TimeoutError):  # what is not confirmed by then is published again
            async with asyncio.timeout(_FLUSH.total_seconds()):
                await owned.confirmed()
        await retried(self._stop, partial(self._leases.release, owned))
        self._leases.drop(owned)
        self._log.info("partition_given_back", **owned.log_fields)

    # The end

    async def _wind_down(self) -> BaseException | None:
        """Stop reading, let Pub/Sub confirm what it has, save how far that is, release the leases.

        All of it before one moment, however many of them do not answer. Return the error of a source that could not
        be drained: what it has confirmed until then is saved all the same.
        """
        loop = asyncio.get_running_loop()
        gone_at = (loop.time() if self._stopped_at is None else self._stopped_at) + _GONE.total_seconds()
        save_at = gone_at - _SAVE.total_seconds()
        tasks = [owned.task for owned in self._leases.owned.values() if owned.task is not None] + list(self._leaving)
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
                await retried(Stop(), self._source.let_go)
        except (TransientError, MisconfiguredError, TimeoutError) as error:  # what ends the reader says more
            self._log.warning(self._leases.not_saved, error=str(error))
        finally:
            await asyncio.wait([flush], timeout=max(0, gone_at - loop.time()))
            flush.cancel()
            await asyncio.gather(flush, return_exceptions=True)
        self._log.info("reader_stopped", partitions=len(self._leases.owned))
        return not_drained
