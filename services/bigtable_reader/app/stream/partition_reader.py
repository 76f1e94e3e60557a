"""One partition from its position to its end: read, published, confirmed, and only then recorded as closed.

A stream that breaks off starts again behind the last record that was read: what is not confirmed yet is still in hand.
A partition is over when its children are recorded, or when the end asked for is reached.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Final, Literal, assert_never

import structlog
from msgspec.structs import replace

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.app.stream.owned_partition import BigtableOwnedPartition, BigtableReaderOptions
from services.bigtable_reader.app.stream.read_back import ReadBack
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.changes.refused import RefusedChange
from services.bigtable_reader.core.stream.records import (
    BigtableStreamQuery,
    Child,
    CloseStream,
    DataChange,
    Heartbeat,
    Microseconds,
)
from services.bigtable_reader.core.stream.topology import partition_around
from services.bigtable_reader.ports import KeyRangePartitionStore, PositionLostError, TableChangeStream, VersionClock
from shared.contracts.change_batch import Change
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.confirmed_prefix import ConfirmedPrefix, Place
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_AGAIN: Final = 3
"""How often what is refused waits for the rest of its partition before its tokens are given up for a time."""
_OUT_OF_RANGE: Final = 11
"""The code of a CloseStream that names children. Under any other its token is still good."""


class DataChangePublisher:
    """Publishes what is made of data changes: lines of the change log now, images when their rows are read back."""

    def __init__(
        self,
        publishing: ConfirmedPublishing,
        outputs: Outputs,
        read_back: ReadBack | None,
        dead_letters: DeadLettering,
        clock: VersionClock,
        renew: Callable[[], None],
    ) -> None:
        """``renew`` asks for the leases to be renewed now, and the reserved upper limits raised."""
        self._publishing = publishing
        self._outputs = outputs
        self._read_back = read_back
        self._dead_letters = dead_letters
        self._clock = clock
        self._renew = renew
        self._log = structlog.get_logger()

    async def publish(self, owned: BigtableOwnedPartition, records: Sequence[DataChange], stop: Stop) -> None:
        """Publish what is made of records, all of it together; their places are confirmed when it is."""
        if not records:
            return
        entries, read_back = self._outputs.entries, self._read_back
        calls_for_image = self._outputs.watched.calls_for_image
        asking = [read_back is not None and calls_for_image(record) for record in records]
        # The versions first: they wait for a reserved upper limit, and a place in the line for what will not come is
        # for ever.
        versions = iter(await self._versions(owned, sum(asking)))
        add = owned.prefix.add
        lines: list[tuple[str, Change]] = []
        of_lines: list[Place[Microseconds, str]] = []
        refused: list[RefusedChange] = []
        of_refused: list[Place[Microseconds, str]] = []
        for record, asks in zip(records, asking, strict=True):
            made, failed = entries.changes(record) if entries is not None else ((), ())
            place = add(record.low_watermark, asks + bool(made) + bool(failed), token=record.token)
            if asks and read_back is not None:
                read_back.ask(owned, record.row_key, record.without_entries(), next(versions), place, stop)
            if made:
                lines += made
                of_lines.append(place)
            if failed:
                refused += failed
                of_refused.append(place)
        if lines and entries is not None:
            await self._publishing.publish(entries.header, lines, partial(owned.confirm, of_lines))
        if refused:
            self._publishing.when_done(await self._dead_letters.begin(refused), partial(owned.confirm, of_refused))
        if read_back is not None:
            await read_back.room()

    async def _versions(self, owned: BigtableOwnedPartition, count: int) -> Sequence[int]:
        """Return so many versions, which rise."""
        versions: list[int] = []
        while len(versions) < count:
            if not owned.ours:
                if not owned.over:  # after a pause of the process: before any timer could run
                    self._log.warning("lease_lost", **owned.log_fields, why="not renewed in time")
                owned.over = True
                raise TransientError("the lease is over")
            versions += owned.versions.take(count - len(versions), self._clock.now())
            if len(versions) < count:
                owned.raised.clear()
                self._renew()
                await owned.raised.wait()
        return versions


class BigtablePartitionReader:
    """Reads one partition after the other, each in a task of its caller's."""

    def __init__(
        self,
        stream: TableChangeStream,
        store: KeyRangePartitionStore,
        records: DataChangePublisher,
        metrics: BigtableReaderMetrics,
        options: BigtableReaderOptions,
    ) -> None:
        self._stream = stream
        self._store = store
        self._records = records
        self._metrics = metrics
        self._options = options
        self._log = structlog.get_logger()

    async def read(self, owned: BigtableOwnedPartition, stop: Stop) -> None:
        """Read until the stream ends; return when the partition is over, or where to begin again has moved on."""
        query = BigtableStreamQuery(
            owned.partition.stream_range.range,
            owned.position,
            self._options.end,
            int(self._options.heartbeat / timedelta(milliseconds=1)),
        )
        try:
            async with aclosing(self._stream.read(query)) as portions:
                async for records in portions:
                    self._metrics.read(records)
                    changes: list[DataChange] = []
                    for record in records:
                        match record:
                            case DataChange():
                                changes.append(record)
                            case Heartbeat(token=token, low_watermark=low_watermark):
                                await self._records.publish(owned, changes, stop)
                                owned.prefix.add(low_watermark, 0, token=token)
                                changes = []
                            case CloseStream():
                                await self._records.publish(owned, changes, stop)
                                await self._closed(owned, record, stop)
                                return
                            case _:
                                assert_never(record)
                    await self._records.publish(owned, changes, stop)
                    await owned.room()
            raise TransientError("the stream ended without saying why")
        except PositionLostError as error:
            await self._give_up_position(owned, error, stop)

    # Ends

    async def _closed(self, owned: BigtableOwnedPartition, record: CloseStream, stop: Stop) -> None:
        """Record the end of a partition, after everything before it is confirmed."""
        end = self._options.end
        if record.code == _OUT_OF_RANGE and record.children:
            closed = await owned.end(lambda: self._close(owned, record.children), stop)
            if closed is not None:
                self._log.info(
                    "partition_closed", **owned.log_fields, children=[str(c.token.range) for c in record.children]
                )
        elif record.code == 0 and not record.children and end is not None:
            await owned.confirmed()
            owned.at_end = True
            owned.prefix.add(Microseconds(end + 1), 0, token=owned.prefix.token)
            progress = owned.progress(owned.versions.last)
            await owned.end(lambda: self._store.advance([progress], release=True), stop)
            self._log.info("partition_reached_the_end", **owned.log_fields)
        else:
            self._log.warning("stream_closed", **owned.log_fields, code=record.code, words=record.message)
            raise TransientError(f"the stream was closed with code {record.code}: {record.message}")

    async def _close(self, owned: BigtableOwnedPartition, children: Sequence[Child]) -> Literal[True] | None:
        return await self._store.close(owned.progress(owned.versions.last), children) or None

    async def _give_up_position(self, owned: BigtableOwnedPartition, error: PositionLostError, stop: Stop) -> None:
        """Begin at a time what was reconciled; anything else has lost changes, and a person has to choose.

        What is only a part of a partition now may be refused for that alone: it waits for the rest, some times.
        """
        stream_range = owned.partition.stream_range
        if stream_range.reconciled and owned.position.tokens:
            await owned.confirmed()
            target = partition_around(stream_range.range, await retried(stop, self._stream.initial_partitions))
            if target is not None and stream_range.again < _AGAIN:
                progress = owned.progress(owned.versions.last)
                await retried(stop, lambda: self._store.wait_for(progress, target))
                owned.over = True
                self._log.warning(
                    "partition_waits_again",
                    **owned.log_fields,
                    target=str(target),
                    times=stream_range.again + 1,
                    error=str(error),
                )
                return
            # From where it is by now, not from where it was claimed: that may be longer ago than the stream keeps.
            here = replace(owned.partition, low_watermark=owned.progress(owned.versions.last).low_watermark)
            try:
                restarted = await retried(stop, lambda: self._store.restart_from_time(here))
            except PositionLostError as again:
                raise _choices(owned, again) from again
            if restarted is None:
                owned.over = True
                return
            self._log.warning("partition_restarted_from_a_time", **owned.log_fields, error=str(error))
            owned.partition = restarted
            owned.prefix = ConfirmedPrefix(owned.prefix.watermark)
            return
        raise _choices(owned, error) from error


def _choices(owned: BigtableOwnedPartition, error: PositionLostError) -> MisconfiguredError:
    published = f"Of this partition everything up to {shown(owned.prefix.watermark)} was published."
    return MisconfiguredError(error.code, f"{error.message}\n{published}")
