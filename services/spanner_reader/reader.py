"""The loop: take partitions, read them, publish, have it confirmed, and only then say how far they have been read.

One task per partition. Progress moves last: changes are published, Pub/Sub confirms them, the watermark follows; a
partition is FINISHED, and its children are known, in one transaction after everything of it is confirmed. What
precedes a crash may happen twice, never not at all.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar, assert_never

import structlog

from services.spanner_reader.core.changes import ChangeMaker, require_whole_rows
from services.spanner_reader.core.partitions import (
    NewPartition,
    State,
    Survey,
    claimable,
    has_reached,
    low_watermark,
    new_partitions,
    reshaping,
)
from services.spanner_reader.core.records import (
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionToken,
    StreamQuery,
    StreamRecord,
)
from services.spanner_reader.held import Held, Options
from services.spanner_reader.ports import Catalog, ChangeStream, Metrics, PartitionStore, Publisher
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.health import Health
from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop

T = TypeVar("T")

_FLUSH: Final = timedelta(seconds=5)
_SAVE: Final = timedelta(seconds=3)
_UNCONFIRMED: Final = 20_000
"""Records of one partition that may wait for Pub/Sub; the publisher bounds their bytes, this bounds their number."""


class Reader:
    """Reads every partition of a change stream that it can get the lease of, until it is told to stop."""

    def __init__(
        self,
        *,
        stream: ChangeStream,
        store: PartitionStore,
        publisher: Publisher,
        catalog: Catalog,
        changes: ChangeMaker,
        metrics: Metrics,
        health: Health,
        options: Options,
    ) -> None:
        self._stream = stream
        self._store = store
        self._publisher = publisher
        self._catalog = catalog
        self._changes = changes
        self._metrics = metrics
        self._health = health
        self._options = options
        self._held: dict[PartitionToken, Held] = {}
        self._failure: BaseException | None = None
        self._log = structlog.get_logger()

    async def run(self, stop: Stop) -> None:
        """Read until asked to stop, or until every partition has reached the end asked for.

        Returns only after every task is over. MisconfiguredError, and what nobody knows, end it early; what has been
        confirmed until then is saved, and the leases are given back.
        """
        self._stop = stop
        self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        keeper = asyncio.create_task(self._keep_leases(), name="leases")
        keeper.add_done_callback(self._on_keeper_over)
        try:
            with stop.calling(wake):
                await self._announce()
                await self._supervise()
        except TransientError:
            if not stop.requested:  # a retry that ended because of the stop, and no failure
                raise
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await self._wind_down()

    async def _announce(self) -> None:
        """Publish the header of every watched table, so that empty tables, too, exist at the other end."""
        for table in await self._retry(self._catalog.watched_tables):
            header = self._changes.header(table.name, table.column_types, table.value_capture_type)
            future = await self._publisher.publish(header, [])
            future.add_done_callback(self._on_announced)

    async def _supervise(self) -> None:
        while not self._stop.requested:
            self._wake.clear()
            self._fail_if_failed()
            survey = await self._retry(self._store.survey)
            self._show(survey)
            if not survey.unfinished:
                raise MisconfiguredError(
                    "the partition table holds no partition that is not finished, so nothing says where to go on: "
                    "rows of it were deleted. Start anew with another PARTITION_TABLE, and copy the tables' rows again"
                )
            if all(has_reached(partition, self._options.end) for partition in survey.unfinished):
                self._log.info("end_timestamp_reached")
                return
            await self._claim(survey)
            self._health.progressed()
            self._health.ready = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll.total_seconds()):
                    await self._wake.wait()
        self._fail_if_failed()

    async def _claim(self, survey: Survey) -> None:
        due = claimable(
            survey.unfinished,
            owner=self._options.owner,
            holding=self._held.keys(),
            now=survey.now,
            end=self._options.end,
        )
        if not due:
            return
        tokens = [partition.token for partition in due]
        asked_at = asyncio.get_running_loop().time()
        for partition in await self._retry(lambda: self._store.claim(tokens, self._options.end)):
            held = self._held[partition.token] = Held(partition)
            self._extend(held, asked_at)
            held.task = asyncio.create_task(self._follow(held), name=f"partition {partition.token}")
            held.task.add_done_callback(partial(self._on_over, held))
            self._log.info(
                "partition_claimed",
                partition_token=partition.token,
                watermark=format_timestamp(partition.watermark),
                fencing=partition.fencing,
            )

    # One partition

    async def _follow(self, held: Held) -> None:
        """Read a partition to its end, starting again at the watermark whenever its query breaks off."""
        while not held.over:
            async for attempt in retrying_async(self._stop):
                with attempt:
                    await self._read_once(held)

    async def _read_once(self, held: Held) -> None:
        """Read until the query ends; return when the partition is over, or where to begin again has moved on."""
        start = held.prefix.watermark
        query = StreamQuery(
            held.partition.token,
            start,
            self._options.end,
            int(self._options.heartbeat / timedelta(milliseconds=1)),
        )
        children: list[NewPartition] = []
        try:
            async with aclosing(self._stream.read(query)) as records:
                last_heartbeat: Nanoseconds | None = None
                async for record in records:
                    if last_heartbeat is not None and _is_late(record, last_heartbeat):
                        self._metrics.violated()
                        self._log.warning("record_came_after_its_heartbeat", partition_token=held.partition.token)
                    match record:
                        case DataChangeRecord():
                            await self._publish(held, record)
                        case HeartbeatRecord(timestamp=timestamp):
                            held.prefix.add_confirmed(timestamp)
                            self._metrics.read(record, 0)
                            last_heartbeat = timestamp
                        case ChildPartitionsRecord(start_timestamp=child_start, children=named):
                            children += new_partitions(child_start, named)
                            self._metrics.read(record, 0)
                        case _:
                            assert_never(record)
                    await held.confirmed(all_but=_UNCONFIRMED)
            await self._complete(held, query, children)
        except TransientError as error:
            if self._stop.requested or held.prefix.watermark == start:
                raise
            # It got somewhere before it broke off: no reason to wait longer and longer from one break to the next.
            self._log.warning("partition_restarted", partition_token=held.partition.token, error=str(error))

    async def _publish(self, held: Held, record: DataChangeRecord) -> None:
        require_whole_rows(record)
        if not self._changes.knows(record.table):  # a table that the stream watches since a moment ago
            tables = await self._retry(self._catalog.watched_tables)
            self._changes.learn({record.table: ()} | {table.name: table.primary_key for table in tables})
        header, changes = self._changes.changes(record)
        self._metrics.read(record, len(changes))
        if not changes:
            held.prefix.add_confirmed(record.commit_timestamp)
            return
        place = held.prefix.add(record.commit_timestamp)
        future = await self._publisher.publish(header, changes)
        future.add_done_callback(partial(self._on_published, held, place, len(changes)))

    async def _complete(self, held: Held, query: StreamQuery, children: Sequence[NewPartition]) -> None:
        """Record the end of a partition whose query ended well, after everything before it is confirmed."""
        token = held.partition.token
        if children:
            await held.confirmed()
            added = await self._retry(lambda: self._store.finish(held.progress, children))
            held.over = True
            if added is None:
                self._log.warning("lease_lost", partition_token=token)
                return
            shape = reshaping(token, children, added)
            self._metrics.reshaped(shape.split, shape.merged)
            self._log.info("partition_finished", partition_token=token, children=len(children), new=len(added))
        elif query.end is not None and (await self._retry(self._store.survey)).now >= query.end:
            # Not FINISHED: its children are not known. Past the end nothing is due, and a start without the end, or
            # with a later one, goes on from here.
            await held.confirmed()
            held.prefix.add_confirmed(Nanoseconds(query.end + 1))
            await self._retry(lambda: self._store.advance([held.progress], release=True))
            held.over = True
            self._log.info("partition_reached_the_end", partition_token=token)
        else:
            self._log.warning("stream_ended_without_children", partition_token=token)
            raise TransientError("the query ended, the partition did not")

    # Leases

    async def _keep_leases(self) -> None:
        """Save the watermarks of all partitions and renew their leases, again and again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._options.tick.total_seconds())
            held = [one for one in self._held.values() if not one.over]
            if not held:
                continue
            asked_at = loop.time()
            try:
                lost = await self._store.advance([one.progress for one in held])
            except TransientError as error:  # tried again at the next tick; the leases' own timers keep running
                self._log.warning("watermarks_not_saved", error=str(error))
                continue
            for one in held:
                if one.partition.token in lost:
                    self._lose(one, "taken by another reader")
                else:
                    self._extend(one, asked_at)

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
        self._log.warning("lease_lost", partition_token=held.partition.token, why=why)

    # What tasks and futures report

    def _on_over(self, held: Held, task: asyncio.Task[None]) -> None:
        if held.lease_ends is not None:
            held.lease_ends.cancel()
        # At a stop it stays, so that its watermark is saved and its lease given back.
        if held.over:
            self._held.pop(held.partition.token, None)
        if not task.cancelled():
            self._fail(task.exception())
        self._wake.set()

    def _on_keeper_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._fail(task.exception())

    def _on_announced(self, done: "asyncio.Future[None]") -> None:
        if not done.cancelled():
            self._fail(done.exception())

    def _on_published(self, held: Held, place: int, changes: int, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self._fail(done.exception())
            return
        self._metrics.published(changes)
        held.prefix.confirm(place)
        held.moved.set()

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
        """Stop reading, let Pub/Sub confirm what it has, save how far that is, give the leases back."""
        tasks = [held.task for held in self._held.values() if held.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._held.values():
            if held.lease_ends is not None:
                held.lease_ends.cancel()
        flush = asyncio.create_task(self._publisher.close(), name="flush")
        # What is not confirmed by then is published again by whoever reads on; the leases must not wait for it.
        await asyncio.wait([flush], timeout=_FLUSH.total_seconds())
        try:
            async with asyncio.timeout(_SAVE.total_seconds()):
                await self._store.advance([held.progress for held in self._held.values()], release=True)
        except (TransientError, TimeoutError) as error:
            self._log.warning("watermarks_not_saved", error=str(error))
        finally:
            await flush
        self._log.info("reader_stopped", partitions=len(self._held))

    def _show(self, survey: Survey) -> None:
        states = Counter(partition.state.value for partition in survey.unfinished)
        states[State.FINISHED.value] = survey.finished
        watermarks = [
            held.prefix.watermark if (held := self._held.get(partition.token)) else partition.watermark
            for partition in survey.unfinished
        ]
        self._metrics.surveyed(
            {state.value: states[state.value] for state in State}, low_watermark(watermarks, survey.now), survey.now
        )

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        async for attempt in retrying_async(self._stop):
            with attempt:
                return await call()
        raise AssertionError("a retry ends with a value or an error")


def _is_late(record: StreamRecord, heartbeat: Nanoseconds) -> bool:
    return isinstance(record, DataChangeRecord) and record.commit_timestamp <= heartbeat
