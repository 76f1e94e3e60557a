"""One partition from its watermark to its end: read, published, confirmed, and only then recorded as over.

A query that breaks off, or that ends where the partition does not, starts again at the watermark. A partition is over
when its children are stored, or when the end asked for was already past as its last query was asked.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import timedelta
from functools import cache, partial
from typing import Final, assert_never

import structlog

from services.spanner_reader.app.pause_watch import PauseWatch
from services.spanner_reader.app.schema.schema_watch import SchemaWatch
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.app.stream.completer import Completer, Completion
from services.spanner_reader.app.stream.owned_partition import SpannerOwnedPartition, SpannerReaderOptions
from services.spanner_reader.core.stream.changes import is_whole
from services.spanner_reader.core.stream.partitions import NewPartition, new_partitions, reshaping
from services.spanner_reader.core.stream.records import (
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    SpannerStreamQuery,
)
from services.spanner_reader.ports import DatabaseChangeStream, StartPastEndError, StartTooOldError, TokenPartitionStore
from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, nanoseconds
from shared.reading.confirmed_prefix import ConfirmedPrefix
from shared.reading.publishing import Countdown
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
        completion.columns.observed = schema.observed
        self._pauses = pauses
        self._metrics = metrics

    def completing(self, owned: SpannerOwnedPartition, stop: Stop) -> AbstractAsyncContextManager[Completer]:
        """Return what completes the updates of one query of a partition, for as long as that is read."""
        return Completer(self._completion, owned, stop).working()

    async def publish(
        self, owned: SpannerOwnedPartition, records: Sequence[DataChangeRecord], completer: Completer, stop: Stop
    ) -> None:
        """Publish the changes of records together; their place in the partition is confirmed when all of them are."""
        together = _Together()
        for record in records:
            if completer.concerns(record) or not self._is_published(record.table):
                await self._publish(owned, together)
                together = _Together()
                await self._publish_alone(owned, record, completer, stop)
                continue
            header, changes = self._changes.changes(record)
            noted = self._schema.saw(header, record)
            if noted is not None or not together.takes(header):
                await self._publish(owned, together)
                together = _Together()
            if noted is not None:
                self._wait_for(noted, owned, record)
            together.add(record, header, changes)
        await self._publish(owned, together)

    def _is_published(self, table: str) -> bool:
        """Return whether nothing has to be checked before a record of a table is published."""
        return table not in self._pauses.known.tables and self._included(table) and self._changes.knows(table)

    async def _publish(self, owned: SpannerOwnedPartition, together: "_Together") -> None:
        if not together.records:
            return
        self._metrics.read("data", together.records, together.changes)
        if not together.changes:
            owned.prefix.add(together.last, 0)
            return
        confirm = owned.confirming(owned.prefix.add(together.last, 1, records=together.records))
        confirm = Countdown(len(together.of_tables), confirm)
        for header, changes in together.of_tables.values():
            await self._completion.publishing.publish(header, changes, confirm)

    async def _publish_alone(
        self, owned: SpannerOwnedPartition, record: DataChangeRecord, completer: Completer, stop: Stop
    ) -> None:
        completer.arrived(record)
        dropped = await self._pauses.drops(record.table, record.commit_timestamp, len(record.mods), stop)
        if not dropped and not self._included(record.table):
            await retried(stop, partial(self._schema.leave_out, record.table, record.commit_timestamp))
            dropped = True
        if dropped:
            self._metrics.read("data")
            await completer.left_out(record)
            owned.prefix.add(record.commit_timestamp, 0)
            return
        if not self._changes.knows(record.table):
            await retried(stop, partial(self._schema.learn, record.table))
        header, changes = self._changes.changes(record)
        noted = self._schema.saw(header, record) if is_whole(record) else None
        if noted is not None:
            self._wait_for(noted, owned, record)
        self._metrics.read("data", 1, len(changes))
        if not changes:
            owned.prefix.add(record.commit_timestamp, 0)
            return
        await completer.publish(record, header, changes)

    def _wait_for(self, noted: "asyncio.Future[None]", owned: SpannerOwnedPartition, record: DataChangeRecord) -> None:
        """Keep the watermark before a record until what it says of the schema is stored."""
        place = owned.prefix.add(record.commit_timestamp, 1)
        self._completion.publishing.when_done(noted, owned.confirming(place))


class _Together:
    """Changes of records that follow one another in a partition, to be published at once: by table, in their order."""

    def __init__(self) -> None:
        self.records = 0
        self.changes = 0
        self.last = Nanoseconds(0)
        """When the last of the records was committed."""
        self.of_tables: dict[str, tuple[Header, list[tuple[str, Change]]]] = {}

    def takes(self, header: Header) -> bool:
        """Return whether a record with this header may be added: a table's changes go under one header at a time."""
        others = self.of_tables.get(header.table)
        return others is None or others[0] is header

    def add(self, record: DataChangeRecord, header: Header, changes: Sequence[tuple[str, Change]]) -> None:
        """Add a record."""
        self.records += 1
        self.last = record.commit_timestamp
        if changes:
            self.changes += len(changes)
            self.of_tables.setdefault(header.table, (header, []))[1].extend(changes)


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

    async def read(self, owned: SpannerOwnedPartition, stop: Stop) -> None:
        """Read until the query ends; return when the partition is over, or where to begin again has moved on."""
        start = owned.prefix.watermark
        query = SpannerStreamQuery(
            owned.partition.token, start, self._options.end, int(self._options.heartbeat / timedelta(milliseconds=1))
        )
        # A query whose end is still to come may end for other reasons before it; by the time this checks, the end
        # may have passed. Only of one that was asked afterwards does a good end mean: everything up to there.
        end_is_past = query.end is not None and self.now > query.end
        children: list[NewPartition] = []
        try:
            async with (
                self._records.completing(owned, stop) as completer,
                aclosing(self._stream.read(query)) as portions,
            ):
                last_heartbeat: Nanoseconds | None = None
                async for records in portions:
                    changes: list[DataChangeRecord] = []
                    for record in records:
                        match record:
                            case DataChangeRecord():
                                if last_heartbeat is not None and record.commit_timestamp <= last_heartbeat:
                                    self._metrics.violated()
                                    self._log.warning(
                                        "record_came_after_its_heartbeat", partition_token=owned.partition.token
                                    )
                                changes.append(record)
                            case HeartbeatRecord(timestamp=timestamp):
                                await self._records.publish(owned, changes, completer, stop)
                                changes = []
                                completer.passed(timestamp)
                                owned.prefix.add(timestamp, 0)
                                self._metrics.read("heartbeat")
                                last_heartbeat = timestamp
                            case ChildPartitionsRecord(start_timestamp=child_start, children=named):
                                children += new_partitions(child_start, named)
                                self._metrics.read("child_partitions")
                            case _:
                                assert_never(record)
                    await self._records.publish(owned, changes, completer, stop)
                    await owned.room(lambda: completer.needs_more)
                await completer.finished()
            await self._complete(owned, query, children, stop, end_is_past=end_is_past)
        except StartPastEndError as error:
            if start in (owned.partition.start, owned.read_again_from):
                raise owned.too_old or error from error
            await self._start_over(owned, owned.partition.start, error)
        except StartTooOldError as error:
            kept = self._schema.retention
            if start != owned.read_again_from or start != owned.partition.start or kept is None:
                raise
            earliest = Nanoseconds(self.now - nanoseconds(kept - _MARGIN))
            if earliest <= start:  # the same query again would be refused again
                raise
            owned.too_old = error
            await self._start_over(owned, earliest, error)

    async def _complete(
        self,
        owned: SpannerOwnedPartition,
        query: SpannerStreamQuery,
        children: Sequence[NewPartition],
        stop: Stop,
        *,
        end_is_past: bool,
    ) -> None:
        """Record the end of a partition whose query ended well, after everything before it is confirmed."""
        token = owned.partition.token
        if children:
            added = await owned.end(lambda: self._store.finish(owned.progress, children), stop)
            if added is None:
                return
            shape = reshaping(token, children, added)
            self._metrics.reshaped(shape.split, shape.merged)
            self._log.debug("partition_finished", partition_token=token, children=len(children), new=len(added))
        elif query.end is not None and end_is_past:
            # Not FINISHED: its children are not known. Past the end nothing is due, and a start without the end, or
            # with a later one, goes on from here.
            await owned.confirmed()
            owned.prefix.add(Nanoseconds(query.end + 1), 0)
            await owned.end(lambda: self._store.advance([owned.progress], release=True), stop)
            self._log.info("partition_reached_the_end", partition_token=token)
        elif query.end is not None:
            raise TransientError("the query ended, and its end was still to come when it was asked")
        else:
            self._log.warning("stream_ended_without_children", partition_token=token)
            raise TransientError("the query ended, the partition did not")

    async def _start_over(self, owned: SpannerOwnedPartition, begin: Nanoseconds, error: MisconfiguredError) -> None:
        """Read a partition again, because it had ended before the position reached.

        A query up to an end that lies behind the partition's own may end without the child records; going on behind
        that end is then refused. The children must not be lost for that: they stand where the partition ends. All that
        comes before is published already, so any earlier time will do that the stream keeps.
        """
        self._log.warning(
            "partition_read_again",
            partition_token=owned.partition.token,
            position=format_timestamp(owned.prefix.watermark),
            begin=format_timestamp(begin),
            error=str(error),
        )
        await owned.confirmed()
        owned.prefix, owned.read_again_from = ConfirmedPrefix(begin), begin
