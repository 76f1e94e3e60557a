"""The loop: take pieces of the key space, have them read, save how far that is, and share them with other readers.

One task per partition. Progress moves last: changes are published, Pub/Sub confirms them, the position follows; a
partition's end is one conditional write on its own row after everything of it is confirmed, and whoever surveys next
finishes what follows from it. What precedes a crash may happen twice, never not at all.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from services.bigtable_reader.core.anew import ANEW_WITH_ALL_ROWS
from services.bigtable_reader.core.outputs import Outputs
from services.bigtable_reader.core.partitions import Piece, Survey
from services.bigtable_reader.core.records import KeyRange
from services.bigtable_reader.core.resync import Kind
from services.bigtable_reader.core.sharing import claimable, fair_share, has_reached, low_watermark
from services.bigtable_reader.held import Held, Options
from services.bigtable_reader.leases import Leases
from services.bigtable_reader.marks import Marks, MarkWatch
from services.bigtable_reader.partition_reader import PartitionReader
from services.bigtable_reader.pause_watch import PauseWatch
from services.bigtable_reader.ports import (
    Catalog,
    ChangeStream,
    Clock,
    Letters,
    Metrics,
    PartitionStore,
    Publisher,
    Rows,
    Subscriptions,
)
from services.bigtable_reader.read_back import ReadBack
from services.bigtable_reader.set_aside import SettingAside
from services.bigtable_reader.snapshots import Snapshots
from services.bigtable_reader.stall_watch import StallWatch, shown
from services.bigtable_reader.table_watch import TableWatch
from shared.contracts.change_batch import Header
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.health import Health
from shared.runtime.retries import retried
from shared.runtime.stop import Stop, until_stopped
from shared.runtime.topic_watch import TopicWatch

_GONE: Final = timedelta(seconds=8)
"""After a stop, of the ten seconds that it may take."""
_DRAIN: Final = timedelta(seconds=2)
_FLUSH: Final = timedelta(seconds=4)
_SAVE: Final = timedelta(seconds=3)
"""At the end of all: the least time that is kept for it."""
_CROWDED: Final = 3
"""Surveys in a row that show more than a fair share here, before some of it is given back."""


class Reader:
    """Reads its share of a change stream's partitions until it is told to stop."""

    def __init__(
        self,
        *,
        stream: ChangeStream,
        store: PartitionStore,
        rows: Rows,
        publisher: Publisher,
        letters: Letters,
        subscriptions: Subscriptions,
        catalog: Catalog,
        outputs: Outputs,
        clock: Clock,
        metrics: Metrics,
        health: Health,
        options: Options,
        marks: Marks | None = None,
        snapshots: Callable[[SettingAside, Callable[[KeyRange, int], None], Callable[[], bool]], Snapshots]
        | None = None,
    ) -> None:
        """Take what a reader needs.

        ``snapshots`` makes what reads the rows from before the stream, told how to raise floors of what is held, and
        how to ask whether the topic is trusted. ``marks``: None where there is no mirror that could be wrong.
        """
        self._store = store
        self._publisher = publisher
        self._outputs = outputs
        self._clock = clock
        self._metrics = metrics
        self._health = health
        self._options = options
        self._leases = Leases(store, clock, metrics, options, lambda: self._topic.trusted)
        set_aside = SettingAside(letters, clock)
        self._read_back = None
        if outputs.images is not None:
            self._read_back = ReadBack(
                rows=rows,
                images=outputs.images,
                publisher=publisher,
                set_aside=set_aside,
                metrics=metrics,
                fail=self._fail,
            )
        self._partitions = PartitionReader(
            stream=stream,
            store=store,
            publisher=publisher,
            read_back=self._read_back,
            set_aside=set_aside,
            outputs=outputs,
            clock=clock,
            metrics=metrics,
            options=options,
            fail=self._fail,
            renew=self._leases.renew_now,
        )
        self._snapshots = (
            None if snapshots is None else snapshots(set_aside, self._leases.raise_floors, lambda: self._topic.trusted)
        )
        self._leaving: set[asyncio.Task[None]] = set()
        self._crowded = 0
        self._stalls = StallWatch(options.stalls, clock)
        self._pause = PauseWatch()
        self._mark = MarkWatch()
        self._table = TableWatch(
            catalog, store, metrics, options.look, self._learn, self._stalls.behind, lambda: self._pause.paused, marks
        )
        self._topic = TopicWatch(
            subscriptions.check,
            options.recheck,
            self._stalls.reached,
            metrics.topic_loses,
            anew="CHANGE_STREAM_NAME",
            lost=None if marks is None else lambda: retried(self._stop, lambda: marks.mark(Kind.TOPIC_LOST)),
        )
        self._failure: BaseException | None = None
        self._stopped_at: float | None = None
        """By the event loop's clock."""
        self._log = structlog.get_logger()

    @property
    def held(self) -> Collection[Held]:
        """Return the partitions that it holds now."""
        return list(self._leases.held.values())

    async def run(self, stop: Stop) -> None:
        """Read until asked to stop, or until every partition has reached the end asked for.

        Returns only after every task is over. MisconfiguredError, and what nobody knows, end it early; what has been
        confirmed until then is saved, and the leases are given back.
        """
        self._stop = stop
        self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            self._stopped_at = loop.time()
            loop.call_soon_threadsafe(self._wake.set)

        keepers = [
            asyncio.create_task(self._leases.keep(), name="leases"),
            asyncio.create_task(self._topic.keep_looking(), name="subscriptions"),
            asyncio.create_task(self._table.keep_looking(), name="table"),
        ]
        if self._snapshots is not None:
            keepers.append(asyncio.create_task(self._snapshots.keep_reading(), name="snapshots"))
        for keeper in keepers:
            keeper.add_done_callback(self._on_task_over)
        try:
            with stop.calling(wake):
                await until_stopped(stop, self._supervise())
        except MisconfiguredError as error:
            await self._table.look_before_the_end(error, stop)
            raise
        except TransientError:
            if not stop.requested:  # a retry that ended because of the stop, and no failure
                raise
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._wind_down()

    async def _announce(self, header: Header) -> None:
        """Publish a table's header, so that it comes to exist though it may be empty."""
        future = await self._publisher.publish(header, [])
        future.add_done_callback(self._on_announced)
        self._log.info("table_announced", table=header.table, content=header.content, columns=len(header.columns))

    async def _learn(self, families: Collection[str]) -> None:
        images = self._outputs.images
        if images is not None and images.learn(families):
            await self._announce(images.header)

    async def _supervise(self) -> None:
        for header in self._outputs.headers:
            await self._announce(header)
        await retried(self._stop, self._health.attempting(self._table.look))
        while not self._stop.requested:
            self._wake.clear()
            self._fail_if_failed()
            asked_at = asyncio.get_running_loop().time()
            survey = await retried(self._stop, self._health.attempting(self._store.survey))
            if not survey.pieces:
                raise MisconfiguredError(
                    "the partition table holds no piece of the key space, so nothing says where to go on: rows of it "
                    f"were deleted. {ANEW_WITH_ALL_ROWS}"
                )
            self._show(survey)
            if self._snapshots is not None:
                self._snapshots.surveyed(survey, asked_at)
            if all(has_reached(piece, survey, self._options.end) for piece in survey.pieces) and (
                self._snapshots is None or await retried(self._stop, self._snapshots.over)
            ):
                self._log.info("end_timestamp_reached")
                return
            if survey.paused_since is None:
                await self._tend()
                await self._take_and_give(survey)
            else:
                self._rest()
            self._health.progressed()
            self._health.ready = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll.total_seconds()):
                    await self._wake.wait()
        self._fail_if_failed()

    async def _tend(self) -> None:
        tended = await retried(self._stop, self._health.attempting(self._store.tend))
        if tended.split or tended.merged or tended.reconciled:
            self._metrics.reshaped(tended.split, tended.merged, tended.reconciled)
            self._log.info("pieces_reshaped", split=tended.split, merged=tended.merged, reconciled=tended.reconciled)
            self._wake.set()  # there are others to claim

    # Sharing

    async def _take_and_give(self, survey: Survey) -> None:
        """Claim free pieces up to a fair share; give back what is more, if it stays more."""
        share = fair_share(survey, self._options.end)
        reading = [held for held in self._leases.held.values() if not held.over and not held.leaving]
        due = claimable(survey, self._leases.held.keys(), self._options.end)
        await self._claim(due[: max(0, share - len(reading))])
        self._crowded = self._crowded + 1 if len(reading) > share else 0
        if self._crowded >= _CROWDED:
            self._crowded = 0
            # Those with the least under way: the handover waits for it.
            reading.sort(key=lambda held: (held.prefix.outstanding, held.partition.piece.id))
            for held in reading[: len(reading) - share]:
                self._give_back(held)

    def _rest(self) -> None:
        """Give everything back while the stream is paused: any reader may go on with it, which is at its position."""
        for held in list(self._leases.held.values()):
            if not held.over and not held.leaving:
                self._give_back(held)

    async def _claim(self, due: list[Piece]) -> None:
        if not due:
            return
        asked_at = asyncio.get_running_loop().time()
        for partition in await retried(self._stop, self._health.attempting(lambda: self._store.claim(due))):
            held = Held(partition)
            self._leases.take(held, asked_at)
            held.task = asyncio.create_task(
                self._partitions.follow(held, self._stop), name=f"partition {partition.piece.id}"
            )
            held.task.add_done_callback(partial(self._on_over, held))
            self._log.info(
                "partition_claimed",
                piece=partition.piece.id,
                range=str(partition.piece.range),
                low_watermark=shown(partition.low_watermark),
                fence=partition.fence,
            )
        self._leases.renew_now()  # no stamp can be made before a ceiling is saved

    def _give_back(self, held: Held) -> None:
        held.leaving = True
        task = asyncio.create_task(self._leave(held), name=f"leave {held.partition.piece.id}")
        self._leaving.add(task)
        task.add_done_callback(self._on_left)

    async def _leave(self, held: Held) -> None:
        """Stop reading a partition, let Pub/Sub confirm what is under way, and let another reader have it."""
        if held.task is not None:
            held.task.cancel()
            await asyncio.gather(held.task, return_exceptions=True)
        if held.over:  # it came to its end just now
            return
        with contextlib.suppress(TimeoutError):  # what is not confirmed by then is published again
            async with asyncio.timeout(_FLUSH.total_seconds()):
                await held.confirmed()
        await retried(self._stop, partial(self._leases.release, held))
        self._leases.drop(held)
        self._log.info("partition_given_back", piece=held.partition.piece.id, range=str(held.partition.piece.range))

    # What tasks and futures report

    def _on_over(self, held: Held, task: asyncio.Task[None]) -> None:
        if held.lease_ends is not None:
            held.lease_ends.cancel()
        # At a stop, or on its way to another reader, it stays, so that its position is saved and its lease given back.
        if held.over:
            self._leases.drop(held)
        if not task.cancelled():
            self._fail(task.exception())
        self._wake.set()

    def _on_left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        self._on_task_over(task)

    def _on_task_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._fail(task.exception())

    def _on_announced(self, done: "asyncio.Future[None]") -> None:
        if not done.cancelled():
            self._fail(done.exception())

    def _fail(self, error: BaseException | None) -> None:
        if error is None or (isinstance(error, TransientError) and self._stop.requested):
            return
        self._failure = self._failure or error
        self._wake.set()

    def _fail_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The end

    async def _wind_down(self) -> None:
        """Stop reading, let Pub/Sub confirm what it has, save how far that is, give the leases back.

        All of it before one moment, however many of them do not answer.
        """
        loop = asyncio.get_running_loop()
        gone_at = (loop.time() if self._stopped_at is None else self._stopped_at) + _GONE.total_seconds()
        save_at = gone_at - _SAVE.total_seconds()
        tasks = [held.task for held in self._leases.held.values() if held.task is not None] + list(self._leaving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._leases.held.values():
            if held.lease_ends is not None:
                held.lease_ends.cancel()
        if self._read_back is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(loop.time() + _DRAIN.total_seconds(), save_at)):
                    await self._read_back.drain(self._stop)
            await self._read_back.end()
        await self._partitions.end()
        flush = asyncio.create_task(self._publisher.close(), name="flush")
        # What is not confirmed by then is published again by whoever reads on; the leases must not wait for it.
        await asyncio.wait([flush], timeout=max(0, min(_FLUSH.total_seconds(), save_at - loop.time())))
        try:
            async with asyncio.timeout_at(gone_at):
                await retried(Stop(), self._leases.release_all)
                if self._snapshots is not None:
                    await retried(Stop(), self._snapshots.let_go)
                await retried(Stop(), self._store.leave)
        except (TransientError, MisconfiguredError, TimeoutError) as error:  # what ends the reader says more
            self._log.warning("positions_not_saved", error=str(error))
        finally:
            await asyncio.wait([flush], timeout=max(0, gone_at - loop.time()))
            flush.cancel()
            await asyncio.gather(flush, return_exceptions=True)
        self._log.info("reader_stopped", partitions=len(self._leases.held))

    def _show(self, survey: Survey) -> None:
        """Show how far all have come."""
        low = low_watermark(survey, {piece: held.prefix.low_watermark for piece, held in self._leases.held.items()})
        paused = survey.paused_since is not None
        self._pause.told(survey.paused_since)
        self._mark.told(survey.mark)
        now = asyncio.get_running_loop().time()
        self._metrics.surveyed(survey, low, self._stalls.told(low, now, paused=paused))
