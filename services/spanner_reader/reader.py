"""The loop: take partitions, have them read, save how far that is, and share them with the other readers.

One task per partition. Progress moves last: changes are published, Pub/Sub confirms them, the watermark follows; a
partition is FINISHED, and its children are known, in one transaction after everything of it is confirmed. What
precedes a crash may happen twice, never not at all.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from services.spanner_reader.core.changes import ChangeMaker
from services.spanner_reader.core.partitions import (
    Partition,
    State,
    Survey,
    claimable,
    fair_share,
    has_reached,
    low_watermark,
)
from services.spanner_reader.core.resync import ROWS_AGAIN
from services.spanner_reader.held import Held, Options
from services.spanner_reader.leases import Leases
from services.spanner_reader.partition_reader import PartitionReader
from services.spanner_reader.pause_watch import PauseWatch
from services.spanner_reader.ports import (
    Catalog,
    ChangeStream,
    Metrics,
    PartitionStore,
    PauseStore,
    Publisher,
    ShapeStore,
    Subscriptions,
)
from services.spanner_reader.position_age import PositionAge
from services.spanner_reader.schema_watch import SchemaWatch
from services.spanner_reader.snapshots import Snapshots
from services.spanner_reader.topic_loss import mark_lost
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TableOptions
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.health import Health
from shared.runtime.retries import retried
from shared.runtime.stop import Stop, unless_stopped, until_stopped
from shared.runtime.topic_watch import TopicWatch

_GONE: Final = timedelta(seconds=7.5)
"""After a stop, of the ten seconds that it may take: a call that is given up then takes a moment, as the process does.
"""
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
        publisher: Publisher,
        subscriptions: Subscriptions,
        catalog: Catalog,
        shapes: ShapeStore,
        pauses: PauseStore,
        changes: ChangeMaker,
        metrics: Metrics,
        health: Health,
        options: Options,
        included: Callable[[str], bool] = lambda _table: True,
        table_options: Callable[[str], TableOptions] | None = None,
        snapshots: Callable[[Callable[[], bool], Callable[[str], bool]], Snapshots] | None = None,
    ) -> None:
        """Take what a reader needs; changes of a table that is not ``included`` are read and not published.

        ``snapshots`` makes what reads the rows from before the stream, told how to ask whether the topic is trusted,
        and whether a table is paused.
        """
        self._store = store
        self._shapes = shapes
        self._publisher = publisher
        self._metrics = metrics
        self._health = health
        self._options = options
        self._pauses = PauseWatch(pauses, metrics)
        self._age = PositionAge(metrics)
        self._schema = SchemaWatch(
            catalog=catalog,
            shapes=shapes,
            publisher=publisher,
            changes=changes,
            metrics=metrics,
            included=included,
            every=options.look,
            fail=self._fail,
            table_options=table_options,
        )
        self._partitions = PartitionReader(
            stream=stream,
            store=store,
            publisher=publisher,
            schema=self._schema,
            pauses=self._pauses,
            changes=changes,
            metrics=metrics,
            options=options,
            included=included,
            fail=self._fail,
        )
        self._leaving: set[asyncio.Task[None]] = set()
        self._crowded = 0
        self._attend_at = 0.0
        self._low_watermark: Nanoseconds | None = None
        self._topic = TopicWatch(
            subscriptions.check,
            options.recheck,
            self._reached,
            metrics.topic_loses,
            anew="PARTITION_TABLE",
            lost=self._mark_lost,
        )
        self._leases = Leases(store, metrics, options, lambda: self._topic.trusted)
        self._snapshots = None if snapshots is None else snapshots(lambda: self._topic.trusted, self._pauses.rests)
        self._failure: BaseException | None = None
        self._stopped_at: float | None = None
        """By the event loop's clock."""
        self._log = structlog.get_logger()

    async def run(self, stop: Stop) -> None:
        """Read until asked to stop, or until every partition has reached the end asked for.

        Returns only after every task is over. MisconfiguredError, and what nobody knows, end it early; what has been
        confirmed until then is saved, and the leases are given back.
        """
        self._stop = stop
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            self._stopped_at = loop.time()
            loop.call_soon_threadsafe(self._wake.set)

        keepers = [
            asyncio.create_task(self._leases.keep(), name="leases"),
            asyncio.create_task(self._topic.keep_looking(), name="subscriptions"),
            asyncio.create_task(self._keep_tidy(), name="finished partitions"),
            asyncio.create_task(self._keep_looking(), name="schema"),
            asyncio.create_task(self._keep_reading_snapshots(), name="snapshots"),
        ]
        for keeper in keepers:
            keeper.add_done_callback(self._on_keeper_over)
        try:
            with unless_stopped(stop), stop.calling(wake):
                await until_stopped(stop, self._supervise())
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._wind_down()

    async def _supervise(self) -> None:
        await retried(self._stop, self._health.attempting(self._schema.look))
        self._looked.set()
        while not self._stop.requested:
            self._wake.clear()
            self._fail_if_failed()
            await self._attend()
            survey = await retried(self._stop, self._health.attempting(self._store.survey))
            await retried(self._stop, self._health.attempting(self._pauses.look))
            self._partitions.now = survey.now
            self._show(survey)
            if not survey.unfinished:
                raise MisconfiguredError(
                    "the partition table holds no partition that is not finished, so nothing says where to go on: "
                    f"rows of it were deleted. Start anew with another PARTITION_TABLE, and {ROWS_AGAIN}"
                )
            if all(has_reached(partition, self._options.end) for partition in survey.unfinished) and (
                self._snapshots is None or await retried(self._stop, self._snapshots.over)
            ):
                self._log.info("end_timestamp_reached")
                return
            if self._pauses.known.stream is None:
                await self._take_and_give(survey)
            else:
                self._rest()
            self._health.progressed()
            self._health.ready = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll.total_seconds()):
                    await self._wake.wait()
        self._fail_if_failed()

    # Sharing

    async def _take_and_give(self, survey: Survey) -> None:
        """Claim free partitions up to a fair share; give back what is more, if it stays more."""
        share = fair_share(survey.unfinished, readers=survey.readers | {self._options.owner}, end=self._options.end)
        reading = [held for held in self._leases.held.values() if not held.over and not held.leaving]
        due = claimable(
            survey.unfinished,
            owner=self._options.owner,
            holding=self._leases.held.keys(),
            now=survey.now,
            end=self._options.end,
        )
        await self._claim(due[: max(0, share - len(reading))])
        self._crowded = self._crowded + 1 if len(reading) > share else 0
        if self._crowded >= _CROWDED:
            self._crowded = 0
            # Those with the least under way: the handover waits for it.
            reading.sort(key=lambda held: (held.prefix.outstanding, held.partition.token))
            for held in reading[: len(reading) - share]:
                self._give_back(held)

    def _rest(self) -> None:
        """Give everything back while the stream is paused: any reader may go on with it, which is at its watermark."""
        for held in list(self._leases.held.values()):
            if not held.over and not held.leaving:
                self._give_back(held)

    async def _claim(self, due: list[Partition]) -> None:
        if not due:
            return
        tokens = [partition.token for partition in due]
        asked_at = asyncio.get_running_loop().time()
        claim = self._health.attempting(lambda: self._store.claim(tokens, self._options.end))
        for partition in await retried(self._stop, claim):
            held = Held(partition)
            self._leases.take(held, asked_at)
            held.task = asyncio.create_task(
                self._partitions.follow(held, self._stop), name=f"partition {partition.token}"
            )
            held.task.add_done_callback(partial(self._on_over, held))
            self._log.info(
                "partition_claimed",
                partition_token=partition.token,
                watermark=format_timestamp(partition.watermark),
                fencing=partition.fencing,
            )

    def _give_back(self, held: Held) -> None:
        held.leaving = True
        task = asyncio.create_task(self._leave(held), name=f"leave {held.partition.token}")
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
        self._log.info("partition_given_back", partition_token=held.partition.token)

    # What else is done every now and then

    async def _keep_tidy(self) -> None:
        """Forget finished partitions that nothing depends on any more, so that the table does not grow for ever."""
        while True:
            try:
                if forgotten := await self._store.forget_finished(self._options.keep_finished):
                    self._log.info("finished_partitions_forgotten", partitions=forgotten)
            except TransientError as error:
                self._log.warning("finished_partitions_not_forgotten", error=str(error))
            await asyncio.sleep(self._options.tidy.total_seconds())

    async def _keep_looking(self) -> None:
        await self._looked.wait()
        await self._schema.keep_looking()

    async def _keep_reading_snapshots(self) -> None:
        await self._looked.wait()
        if self._snapshots is not None:
            await self._snapshots.keep_reading()

    async def _mark_lost(self) -> None:
        kept, recheck = self._options.keep_messages, self._options.recheck
        await retried(self._stop, lambda: mark_lost(self._store, self._shapes, kept=kept, recheck=recheck))

    async def _attend(self) -> None:
        """Tell the other readers, before it is forgotten, that this one takes its share."""
        now = asyncio.get_running_loop().time()
        if now >= self._attend_at:
            await retried(self._stop, self._health.attempting(self._store.attend))
            self._attend_at = now + self._options.tick.total_seconds()

    # What tasks and futures report

    def _on_over(self, held: Held, task: asyncio.Task[None]) -> None:
        if held.lease_ends is not None:
            held.lease_ends.cancel()
        # At a stop, or on its way to another reader, it stays, so that its watermark is saved and its lease given back.
        if held.over:
            self._leases.drop(held)
        if not task.cancelled():
            self._fail(task.exception())
        self._wake.set()

    def _on_left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        self._on_keeper_over(task)

    def _on_keeper_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._fail(task.exception())

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
        flush = asyncio.create_task(self._publisher.close(), name="flush")
        # What is not confirmed by then is published again by whoever reads on; the leases must not wait for it.
        await asyncio.wait([flush], timeout=max(0, min(_FLUSH.total_seconds(), save_at - loop.time())))
        try:
            async with asyncio.timeout_at(gone_at):
                await retried(Stop(), self._let_go)
        except (TransientError, TimeoutError) as error:
            self._log.warning("watermarks_not_saved", error=str(error))
        finally:
            await asyncio.wait([flush], timeout=max(0, gone_at - loop.time()))
            flush.cancel()
            await asyncio.gather(flush, return_exceptions=True)
        self._log.info("reader_stopped", partitions=len(self._leases.held))

    async def _let_go(self) -> None:
        await self._leases.release_all()
        if self._snapshots is not None:
            await self._snapshots.let_go()
        await self._store.attend(leave=True)

    def _reached(self) -> Nanoseconds | None:
        return self._low_watermark

    def _show(self, survey: Survey) -> None:
        states = Counter(partition.state.value for partition in survey.unfinished)
        states[State.FINISHED.value] = survey.finished
        watermarks = [
            held.prefix.watermark if (held := self._leases.held.get(partition.token)) else partition.watermark
            for partition in survey.unfinished
        ]
        self._low_watermark = low_watermark(watermarks, survey.now)
        self._metrics.surveyed({state.value: states[state.value] for state in State}, self._low_watermark, survey.now)
        behind = timedelta(microseconds=max(0, survey.now - self._low_watermark) // 1_000)
        self._age.told(behind, self._schema.retention, paused=self._pauses.known.stream is not None)
