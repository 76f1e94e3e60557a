"""What the Bigtable reader adds to `shared.reading.supervisor`: surveys, splits and merges, rows that are read back.

Progress moves last: changes are published, Pub/Sub confirms them, the position follows; a partition's end is one
conditional write on its own row after everything of it is confirmed, and the reader that surveys next finishes what
follows from it. What precedes a crash may happen twice, never not at all.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.schema.resync_requests import ResyncRequests, ResyncWatch
from services.bigtable_reader.app.schema.table_watch import LENGTHEN_RETENTION, TableWatch
from services.bigtable_reader.app.snapshot.snapshot_source import BigtableSnapshots
from services.bigtable_reader.app.stall_watch import StallWatch, shown
from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.app.stream.leases import BigtablePartitionLeases
from services.bigtable_reader.app.stream.owned_partition import BigtableOwnedPartition, BigtableReaderOptions
from services.bigtable_reader.app.stream.partition_reader import BigtablePartitionReader, DataChangePublisher
from services.bigtable_reader.app.stream.read_back import ReadBack
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.stream.partitions import RESTART_WITH_ALL_ROWS, BigtablePartitionSurvey, StreamRange
from services.bigtable_reader.core.stream.records import KeyRange
from services.bigtable_reader.core.stream.sharing import claimable, has_reached, low_watermark, readable
from services.bigtable_reader.ports import (
    CurrentRows,
    DeadLetterSink,
    KeyRangePartitionStore,
    TableCatalog,
    TableChangeStream,
    VersionClock,
)
from shared.contracts.change_batch import Header
from shared.contracts.errors import MisconfiguredError
from shared.reading.position_age import PositionAge
from shared.reading.publishing import ChangePublisher, ConfirmedPublishing
from shared.reading.shares import Shares
from shared.reading.stream_pause import StreamPause
from shared.reading.supervisor import Monitoring, Round, Supervisor
from shared.reading.topic_heartbeats import TopicHeartbeats
from shared.reading.topic_watch import RetainingSubscriptions, TopicWatch
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_DRAIN: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A Bigtable table: its change stream, its rows and families, and the clock that versions of its rows follow."""

    stream: TableChangeStream
    rows: CurrentRows
    catalog: TableCatalog
    clock: VersionClock


@dataclass(frozen=True, slots=True, kw_only=True)
class BigtableStores:
    """What the readers of one table share; ``resync_requests``: None where there is no mirror that could be wrong."""

    partitions: KeyRangePartitionStore
    resync_requests: ResyncRequests | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BigtableOutput:
    """What is published, and to which topics."""

    publisher: ChangePublisher
    dead_letters: DeadLetterSink
    subscriptions: RetainingSubscriptions
    outputs: Outputs


class BigtableReader:
    """Reads its share of a change stream's partitions until it is asked to stop."""

    def __init__(
        self,
        table: SourceTable,
        stores: BigtableStores,
        output: BigtableOutput,
        monitoring: Monitoring[BigtableReaderMetrics],
        options: BigtableReaderOptions,
        snapshots: Callable[[DeadLettering, Callable[[KeyRange, int], None], Callable[[], bool]], BigtableSnapshots]
        | None = None,
    ) -> None:
        """``snapshots`` makes what reads the rows from before the stream.

        It is given what keeps dead letters, what raises the minimum versions of owned partitions, and what returns
        whether published messages are kept.
        """
        metrics, clock, resync_requests = monitoring.metrics, table.clock, stores.resync_requests
        self._store = stores.partitions
        self._outputs = output.outputs
        self._metrics = metrics
        self._options = options
        self._leases = BigtablePartitionLeases(self._store, clock, metrics, options, lambda: self._topic.is_durable)
        self._supervisor: Supervisor[StreamRange, BigtableOwnedPartition] = Supervisor(
            self._leases, output.publisher, monitoring.health, options
        )
        self._publishing = ConfirmedPublishing(output.publisher, metrics, self._supervisor.fail)
        self._dead_letters = DeadLettering(output.dead_letters, clock)
        self._read_back = None
        if (images := self._outputs.images) is not None:
            self._read_back = ReadBack(table.rows, images, self._publishing, self._dead_letters, metrics)
        records = DataChangePublisher(
            self._publishing, self._outputs, self._read_back, self._dead_letters, clock, self._leases.renew_now
        )
        self._partitions = BigtablePartitionReader(table.stream, self._store, records, metrics, options)
        self._snapshots = None
        if snapshots is not None:
            self._snapshots = snapshots(
                self._dead_letters, self._leases.raise_min_versions, lambda: self._topic.is_durable
            )
        self._stalls = StallWatch(options.stalls, clock)
        self._pause = StreamPause()
        self._resync_watch = ResyncWatch()
        self._age = PositionAge(metrics, LENGTHEN_RETENTION)
        self._table = TableWatch(
            table.catalog, self._store, metrics, self._learn, self._report_retention, resync_requests
        )
        self._topic = TopicWatch(
            output.subscriptions.check,
            options.recheck,
            self._stalls.reached,
            new_start="CHANGE_STREAM_NAME",
            lost=None
            if resync_requests is None
            else lambda: retried(self._stop, lambda: resync_requests.request(BigtableResyncKind.TOPIC_LOST)),
        )
        self._heartbeats = TopicHeartbeats(
            self._publishing, options.topic_heartbeat, lambda: self._outputs.headers[0], self._stalls.reached
        )
        self._log = structlog.get_logger()

    @property
    def owned(self) -> Collection[BigtableOwnedPartition]:
        """Return the partitions that it holds now."""
        return list(self._leases.owned.values())

    async def run(self, stop: Stop) -> None:
        """Read until asked to stop, or until every partition has reached the end asked for.

        Returns only after every task is over. MisconfiguredError, and errors of an unknown kind, end it early; what has
        been confirmed until then is saved, and the leases are released.
        """
        self._stop = stop
        await self._supervisor.run(self, stop)

    def keepers(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return what runs beside the reading."""
        keepers = {
            "subscriptions": self._topic.keep_checking(),
            "topic heartbeats": self._heartbeats.keep_publishing(),
            "table": self._table.keep_inspecting(self._options.inspect_every),
        }
        if self._snapshots is not None:
            keepers["snapshots"] = self._snapshots.keep_reading()
        return keepers

    async def begin(self) -> None:
        """Inspect what the stream does not report, and announce the tables: nothing is read before."""
        await self._table.inspect_table()
        for header in self._outputs.headers:
            await self._announce(header)

    async def survey(self) -> Round[StreamRange] | None:
        """Survey all key ranges, show how far they are, and return what to do; None at the end that was asked for."""
        asked_at = asyncio.get_running_loop().time()
        survey = await self._store.survey()
        if not survey.stream_ranges:
            raise MisconfiguredError(
                "no-key-range-left",
                "the partition table holds no key range of the key space, so nothing says where to go on: rows of it "
                f"were deleted. {RESTART_WITH_ALL_ROWS}",
            )
        self._show(survey)
        if self._snapshots is not None:
            self._snapshots.source.surveyed(survey, asked_at)
        if all(has_reached(stream_range, survey, self._options.end) for stream_range in survey.stream_ranges) and (
            self._snapshots is None or await self._snapshots.over()
        ):
            return None
        paused = survey.paused_since is not None
        if not paused:
            await self._tend()
        holding = {owned.partition.stream_range.id for owned in self.owned}
        due: dict[str, StreamRange] = {
            stream_range.id: stream_range for stream_range in claimable(survey, holding, self._options.end)
        }
        saved = readable(survey, self._options.end)
        shares = Shares(
            loads={name: 0 if one is None else one.load for name, one in saved.items()},
            owners={name: one.owner for name, one in saved.items() if one is not None and one.owner},
            readers=survey.readers,
        )
        return Round(shares, due, paused)

    async def claim(self, due: Sequence[StreamRange]) -> Iterable[BigtableOwnedPartition]:
        """Take those that are still free."""
        claimed = await self._store.claim(due)
        for partition in claimed:
            self._log.debug(
                "partition_claimed",
                stream_range=partition.stream_range.id,
                range=str(partition.stream_range.range),
                low_watermark=shown(partition.low_watermark),
                fence=partition.fence,
            )
        return [BigtableOwnedPartition(partition, self._options.end) for partition in claimed]

    async def read(self, owned: BigtableOwnedPartition, stop: Stop) -> None:
        """Read a partition from its position until its stream ends."""
        await self._partitions.read(owned, stop)

    async def end_in_error(self, error: MisconfiguredError) -> None:
        """Inspect the table once more: it may show the cause. MisconfiguredError where that says more."""
        await self._table.inspect_before_the_end(error, self._stop)

    async def drain(self, until: float) -> None:
        """Read back rows of the changes that were read, and keep dead letters, for a moment."""
        enough = asyncio.get_running_loop().time() + _DRAIN.total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(enough, until)):
                if self._read_back is not None:
                    await self._read_back.drain(self._stop)
                await self._dead_letters.drain()
        if self._read_back is not None:
            await self._read_back.end()
        await self._dead_letters.end()

    async def release(self) -> None:
        """Release the parts of a snapshot, and no longer count as a reader."""
        if self._snapshots is not None:
            await self._snapshots.release()
        await self._store.leave()

    async def _announce(self, header: Header) -> None:
        """Publish a table's header, so that it comes to exist though it may be empty."""
        await self._publishing.announce(header)
        self._log.info("table_announced", table=header.table, content=header.content, columns=len(header.columns))

    async def _learn(self, families: Collection[str]) -> None:
        images = self._outputs.images
        if images is not None and images.learn(families):
            await self._announce(images.header)

    def _report_retention(self, retention: timedelta) -> None:
        self._age.report(self._stalls.behind(), retention, paused=self._pause.paused)

    async def _tend(self) -> None:
        tended = await self._store.tend()
        if tended.split or tended.merged or tended.reconciled:
            self._metrics.reshaped(tended.split, tended.merged, tended.reconciled)
            self._log.info(
                "key_ranges_reshaped", split=tended.split, merged=tended.merged, reconciled=tended.reconciled
            )
            self._supervisor.wake()  # there are others to claim

    def _show(self, survey: BigtablePartitionSurvey) -> None:
        """Show how far all have come."""
        low = low_watermark(survey, {owned.partition.stream_range.id: owned.prefix.watermark for owned in self.owned})
        paused = survey.paused_since is not None
        self._pause.observe(None if survey.paused_since is None else shown(survey.paused_since))
        self._resync_watch.observe(survey.resync_request)
        now = asyncio.get_running_loop().time()
        self._metrics.surveyed(survey, low, self._stalls.observe(low, now, paused=paused))
