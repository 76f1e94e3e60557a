"""One partition from its watermark to its end: read, published, confirmed, and only then recorded as over.

A query that breaks off, or that ends where the partition does not, starts again at the watermark. A partition is over
when its children are stored, or when the end asked for was already past as its last query was asked.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import timedelta
from functools import cache, partial
from typing import Final, assert_never

import structlog

from services.spanner_reader.app.pause_watch import PauseWatch
from services.spanner_reader.app.schema.schema_watch import SchemaWatch
from services.spanner_reader.app.stream.completer import Completer, Completion
from services.spanner_reader.app.stream.owned_partition import SpannerOwnedPartition, SpannerReaderOptions
from services.spanner_reader.core.stream.changes import is_whole
from services.spanner_reader.core.stream.partitions import NewPartition, new_partitions, reshaping
from services.spanner_reader.core.stream.records import (
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    SpannerStreamQuery,
    StreamRecord,
)
from services.spanner_reader.core.stream.watermark import SpannerConfirmedPrefix
from services.spanner_reader.ports import (
    DatabaseChangeStream,
    SpannerReaderMetrics,
    StartPastEndError,
    StartTooOldError,
    TokenPartitionStore,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_MARGIN: Final = timedelta(minutes=10)
"""How much later than the earliest time that the stream keeps a partition is begun again: that time moves on."""


class RecordPublisher:
    """Publishes what data change records hold, unless a pause or the tables file keeps it out."""

    def __init__(
        self,
        completion: Completion,
        included: Callable[[str], bool],
        schema: SchemaWatch,
        pauses: PauseWatch,
        metrics: SpannerReaderMetrics,
    ) -> None:
        self._completion = completion
        self._changes = completion.changes
        self._included = cache(included)
        self._schema = schema
        self._pauses = pauses
        self._metrics = metrics

    def completing(self, held: SpannerOwnedPartition, stop: Stop) -> AbstractAsyncContextManager[Completer]:
        """Return what completes the updates of one query of a partition, for as long as that is read."""
        return Completer(self._completion, held, stop).working()

    async def publish(
        self, held: SpannerOwnedPartition, record: DataChangeRecord, completer: Completer, stop: Stop
    ) -> None:
        """Publish the changes of a record; its place in the partition is confirmed when all of them are."""
        completer.arrived(record)
        dropped = await self._pauses.drops(record.table, record.commit_timestamp, len(record.mods), stop)
        if not dropped and not self._included(record.table):
            await retried(stop, partial(self._schema.leave_out, record.table, record.commit_timestamp))
            dropped = True
        if dropped:
            self._metrics.read(record, 0)
            await completer.left_out(record)
            held.prefix.add_confirmed(record.commit_timestamp)
            return
        if not self._changes.knows(record.table):
            await retried(stop, partial(self._schema.learn, record.table))
        header, changes = self._changes.changes(record)
        noted = self._schema.saw(header, record) if is_whole(record) else None
        if noted is not None:  # what the record says of the schema is not stored yet: the watermark stays before it
            place = held.prefix.add(record.commit_timestamp)
            self._completion.publishing.when_done(noted, held.confirming(place))
        self._metrics.read(record, len(changes))
        if not changes:
            held.prefix.add_confirmed(record.commit_timestamp)
            return
        await completer.publish(record, header, changes)


class SpannerPartitionReader:
    """Reads one partition after the other, each in a task of its caller's."""

    def __init__(
        self,
        stream: DatabaseChangeStream,
        store: TokenPartitionStore,
        records: RecordPublisher,
        schema: SchemaWatch,
        metrics: SpannerReaderMetrics,
        options: SpannerReaderOptions,
    ) -> None:
        self._stream = stream
        self._store = store
        self._records = records
        self._schema = schema
        self._metrics = metrics
        self._options = options
        self._log = structlog.get_logger()
        self.now = Nanoseconds(0)
        """Spanner's time as the last survey has shown it: never later than it is."""

    async def read(self, held: SpannerOwnedPartition, stop: Stop) -> None:
        """Read until the query ends; return when the partition is over, or where to begin again has moved on."""
        start = held.prefix.watermark
        query = SpannerStreamQuery(
            held.partition.token,
            start,
            self._options.end,
            int(self._options.heartbeat / timedelta(milliseconds=1)),
        )
        # A query whose end is still to come may end for other reasons before it; by the time anybody looks, the end
        # may have passed. Only of one that was asked afterwards does a good end mean: everything up to there.
        end_is_past = query.end is not None and self.now > query.end
        children: list[NewPartition] = []
        try:
            async with (
                self._records.completing(held, stop) as completer,
                aclosing(self._stream.read(query)) as records,
            ):
                last_heartbeat: Nanoseconds | None = None
                async for record in records:
                    if last_heartbeat is not None and _is_late(record, last_heartbeat):
                        self._metrics.violated()
                        self._log.warning("record_came_after_its_heartbeat", partition_token=held.partition.token)
                    match record:
                        case DataChangeRecord():
                            await self._records.publish(held, record, completer, stop)
                        case HeartbeatRecord(timestamp=timestamp):
                            completer.passed(timestamp)
                            held.prefix.add_confirmed(timestamp)
                            self._metrics.read(record, 0)
                            last_heartbeat = timestamp
                        case ChildPartitionsRecord(start_timestamp=child_start, children=named):
                            children += new_partitions(child_start, named)
                            self._metrics.read(record, 0)
                        case _:
                            assert_never(record)
                    await held.room()
                await completer.finished()
            await self._complete(held, query, children, stop, end_is_past=end_is_past)
        except StartPastEndError as error:
            if start in (held.partition.start, held.read_again_from):
                raise held.too_old or error from error
            await self._start_over(held, held.partition.start, error)
        except StartTooOldError as error:
            kept = self._schema.retention
            if start != held.read_again_from or start != held.partition.start or kept is None:
                raise
            earliest = Nanoseconds(self.now - (kept - _MARGIN) // timedelta(microseconds=1) * 1_000)
            if earliest <= start:  # the same query again would be refused again
                raise
            held.too_old = error
            await self._start_over(held, earliest, error)

    async def _complete(
        self,
        held: SpannerOwnedPartition,
        query: SpannerStreamQuery,
        children: Sequence[NewPartition],
        stop: Stop,
        *,
        end_is_past: bool,
    ) -> None:
        """Record the end of a partition whose query ended well, after everything before it is confirmed."""
        token = held.partition.token
        if children:
            added = await held.end(lambda: self._store.finish(held.progress, children), stop)
            if added is None:
                return
            shape = reshaping(token, children, added)
            self._metrics.reshaped(shape.split, shape.merged)
            self._log.debug("partition_finished", partition_token=token, children=len(children), new=len(added))
        elif query.end is not None and end_is_past:
            # Not FINISHED: its children are not known. Past the end nothing is due, and a start without the end, or
            # with a later one, goes on from here.
            await held.confirmed()
            held.prefix.add_confirmed(Nanoseconds(query.end + 1))
            await held.end(lambda: self._store.advance([held.progress], release=True), stop)
            self._log.info("partition_reached_the_end", partition_token=token)
        elif query.end is not None:
            raise TransientError("the query ended, and its end was still to come when it was asked")
        else:
            self._log.warning("stream_ended_without_children", partition_token=token)
            raise TransientError("the query ended, the partition did not")

    async def _start_over(self, held: SpannerOwnedPartition, begin: Nanoseconds, error: MisconfiguredError) -> None:
        """Read a partition again, because it had ended before the position reached.

        A query up to an end that lies behind the partition's own may end without the child records; going on behind
        that end is then refused. The children must not be lost for that: they stand where the partition ends. All that
        comes before is published already, so any earlier time will do that the stream keeps.
        """
        self._log.warning(
            "partition_read_again",
            partition_token=held.partition.token,
            position=format_timestamp(held.prefix.watermark),
            begin=format_timestamp(begin),
            error=str(error),
        )
        await held.confirmed()
        held.prefix, held.read_again_from = SpannerConfirmedPrefix(begin), begin


def _is_late(record: StreamRecord, heartbeat: Nanoseconds) -> bool:
    return isinstance(record, DataChangeRecord) and record.commit_timestamp <= heartbeat
