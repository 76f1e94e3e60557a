"""What the Spanner reader adds to `shared.reading.supervisor`: surveys, schema, snapshots, finished partitions.

Progress moves last: changes are published, Pub/Sub confirms them, the watermark follows; a partition is FINISHED, and
its children are known, in one transaction after everything of it is confirmed. What precedes a crash may happen twice,
never not at all.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import structlog

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.pause_watch import PauseWatch
from services.spanner_reader.app.schema.schema_watch import SchemaWatch, WatchedTables
from services.spanner_reader.app.snapshot.snapshot_source import SpannerSnapshots
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.app.stream.completer import Completion
from services.spanner_reader.app.stream.owned_partition import (
    SpannerOwnedPartition,
    SpannerPartitionLeases,
    SpannerReaderOptions,
)
from services.spanner_reader.app.stream.partition_reader import RecordPublisher, SpannerPartitionReader
from services.spanner_reader.app.stream.topic_loss import request_resyncs
from services.spanner_reader.core.schema.resync import RESTART_WITH_ALL_ROWS
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.partitions import (
    PartitionState,
    SpannerPartition,
    SpannerPartitionSurvey,
    claimable,
    has_reached,
    is_due,
    low_watermark,
)
from services.spanner_reader.ports import (
    DatabaseCatalog,
    DatabaseChangeStream,
    PauseStore,
    RowsAtTimestamp,
    ShapeStore,
    TokenPartitionStore,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.byte_budget import ByteBudget
from shared.reading.position_age import PositionAge
from shared.reading.publishing import ChangePublisher, ConfirmedPublishing
from shared.reading.shares import Shares
from shared.reading.supervisor import Monitoring, Round, Supervisor
from shared.reading.topic_heartbeats import TopicHeartbeats
from shared.reading.topic_watch import RetainingSubscriptions, TopicWatch
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_PRESENCE: Final = 3
"""How often in a lease the reader says that it is there."""
_LENGTHEN: Final = "ALTER CHANGE STREAM ... SET OPTIONS (retention_period = '7d')"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDatabase:
    """A Spanner database: its change stream, its catalog, and the rows of its tables."""

    stream: DatabaseChangeStream
    catalog: DatabaseCatalog
    rows: RowsAtTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerStores:
    """What the readers of one change stream share: the tables beside the partition table."""

    partitions: TokenPartitionStore
    shapes: ShapeStore
    pauses: PauseStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerOutput:
    """What is published, and to which topic; changes of a table that is not included are read and not published."""

    publisher: ChangePublisher
    subscriptions: RetainingSubscriptions
    changes: ChangeMaker
    tables: WatchedTables = field(default_factory=WatchedTables)
    budget: ByteBudget = field(default_factory=ByteBudget)
    """Of what waits to be completed."""


class SpannerReader:
    """Reads its share of a change stream's partitions until it is told to stop."""

    def __init__(
        self,
        database: WatchedDatabase,
        stores: SpannerStores,
        output: SpannerOutput,
        monitoring: Monitoring[SpannerReaderMetrics],
        options: SpannerReaderOptions,
        snapshots: Callable[[Callable[[], bool], Callable[[str], bool]], SpannerSnapshots] | None = None,
    ) -> None:
        """``snapshots`` makes what reads the rows from before the stream.

        It is given what returns whether published messages are kept, and what returns whether a table is paused.
        """
        metrics, changes, tables = monitoring.metrics, output.changes, output.tables
        self._stores = stores
        self._metrics = metrics
        self._options = options
        self._leases = SpannerPartitionLeases(stores.partitions, metrics, options, lambda: self._topic.is_durable)
        self._supervisor: Supervisor[SpannerPartition, SpannerOwnedPartition] = Supervisor(
            self._leases, output.publisher, monitoring.health, options
        )
        publishing = ConfirmedPublishing(output.publisher, metrics, self._supervisor.fail, output.budget)
        self._pauses = PauseWatch(stores.pauses, metrics)
        self._age = PositionAge(metrics, _LENGTHEN)
        self._schema = SchemaWatch(database.catalog, stores.shapes, publishing, changes, tables, metrics)
        self._partitions = SpannerPartitionReader(
            database.stream,
            stores.partitions,
            RecordPublisher(
                Completion(
                    database.rows,
                    MirroredTables(database.catalog, changes, tables.included),
                    publishing,
                    tables.keeps_history,
                    metrics,
                ),
                tables.included,
                self._schema,
                self._pauses,
                metrics,
            ),
            self._schema,
            metrics,
            options,
        )
        self._attend_at = 0.0
        self._low_watermark: Nanoseconds | None = None
        self._topic = TopicWatch(
            output.subscriptions.check,
            options.recheck,
            lambda: self._low_watermark,
            new_start="PARTITION_TABLE",
            lost=self._request_resyncs,
        )
        self._heartbeats = TopicHeartbeats(
            publishing, options.topic_heartbeat, lambda: self._schema.announced, lambda: self._low_watermark
        )
        self._snapshots = (
            None if snapshots is None else snapshots(lambda: self._topic.is_durable, self._pauses.is_paused)
        )
        self._log = structlog.get_logger()

    async def run(self, stop: Stop) -> None:
        """Read until asked to stop, or until every partition has reached the end asked for.

        Returns only after every task is over. MisconfiguredError and unknown errors end it early; what has been
        confirmed until then is saved, and the leases are released.
        """
        self._stop = stop
        self._inspected = asyncio.Event()
        await self._supervisor.run(self, stop)

    def keepers(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return what runs beside the reading."""
        return {
            "subscriptions": self._topic.keep_checking(),
            "topic heartbeats": self._heartbeats.keep_publishing(),
            "finished partitions": self._keep_tidy(),
            "schema": self._keep_inspecting(),
            "snapshots": self._keep_reading_snapshots(),
        }

    async def begin(self) -> None:
        """Inspect the schema: nothing is read before."""
        await self._schema.inspect_schema()
        self._inspected.set()

    async def survey(self) -> Round[SpannerPartition] | None:
        """Survey all partitions, show how far they are, and return what to do; None at the end asked for."""
        await self._attend()
        survey = await self._stores.partitions.survey()
        await self._pauses.poll()
        self._partitions.now = survey.now
        self._show(survey)
        if not survey.unfinished:
            raise MisconfiguredError(
                "no-partition-left",
                "the partition table holds no partition that is not finished, so nothing says where to go on: "
                f"rows of it were deleted: {RESTART_WITH_ALL_ROWS}",
            )
        if all(has_reached(partition, self._options.end) for partition in survey.unfinished) and (
            self._snapshots is None or await self._snapshots.over()
        ):
            return None
        due = claimable(
            survey.unfinished,
            owner=self._options.owner,
            holding={owned.partition.token for owned in self._leases.owned.values()},
            now=survey.now,
            end=self._options.end,
        )
        return Round(
            self._shares(survey),
            {partition.token: partition for partition in due},
            paused=self._pauses.known.stream is not None,
        )

    async def claim(self, due: Sequence[SpannerPartition]) -> Iterable[SpannerOwnedPartition]:
        """Take those that are still free."""
        claimed = await self._stores.partitions.claim([partition.token for partition in due], self._options.end)
        for partition in claimed:
            self._log.debug(
                "partition_claimed",
                partition_token=partition.token,
                watermark=format_timestamp(partition.watermark),
                fencing=partition.fencing,
            )
        return [SpannerOwnedPartition(partition) for partition in claimed]

    async def read(self, owned: SpannerOwnedPartition, stop: Stop) -> None:
        """Read a partition from its watermark until its query ends."""
        await self._partitions.read(owned, stop)

    async def end_in_error(self, error: MisconfiguredError) -> None:
        """Do nothing more."""

    async def drain(self, until: float) -> None:
        """Do nothing more: what was read is with the publisher."""

    async def release(self) -> None:
        """Release the key ranges of snapshots, and be no reader any more."""
        if self._snapshots is not None:
            await self._snapshots.release()
        await self._stores.partitions.attend(leave=True)

    # What else is done every now and then

    async def _keep_tidy(self) -> None:
        """Forget finished partitions that nothing depends on any more, so that the table does not grow for ever."""
        while True:
            try:
                while forgotten := await self._stores.partitions.forget_finished(self._options.keep_finished):
                    self._log.info("finished_partitions_forgotten", partitions=forgotten)
            except TransientError as error:
                self._log.warning("finished_partitions_not_forgotten", error=str(error))
            await asyncio.sleep(self._options.tidy.total_seconds())

    async def _keep_inspecting(self) -> None:
        await self._inspected.wait()
        await self._schema.keep_inspecting(self._options.inspect_every)

    async def _keep_reading_snapshots(self) -> None:
        await self._inspected.wait()
        if self._snapshots is not None:
            await self._snapshots.keep_reading()

    async def _request_resyncs(self) -> None:
        kept, recheck = self._options.keep_messages, self._options.recheck
        await retried(
            self._stop,
            lambda: request_resyncs(self._stores.partitions, self._stores.shapes, kept=kept, recheck=recheck),
        )

    async def _attend(self) -> None:
        """Tell the other readers, before it is forgotten, that this one takes its share."""
        now = asyncio.get_running_loop().time()
        if now >= self._attend_at:
            await self._stores.partitions.attend()
            self._attend_at = now + self._options.lease.total_seconds() / _PRESENCE

    def _shares(self, survey: SpannerPartitionSurvey) -> Shares:
        due = [partition for partition in survey.unfinished if is_due(partition, self._options.end)]
        return Shares(
            loads={partition.token: partition.load for partition in due},
            owners={
                partition.token: partition.owner
                for partition in due
                if partition.owner and partition.lease_until is not None and partition.lease_until >= survey.now
            },
            readers=survey.readers | {self._options.owner},
        )

    def _show(self, survey: SpannerPartitionSurvey) -> None:
        states = Counter(partition.state.value for partition in survey.unfinished)
        states[PartitionState.FINISHED.value] = survey.finished
        watermarks = [
            owned.prefix.watermark if (owned := self._leases.owned.get(partition.token)) else partition.watermark
            for partition in survey.unfinished
        ]
        self._low_watermark = low_watermark(watermarks, survey.now)
        self._metrics.surveyed(
            {state.value: states[state.value] for state in PartitionState}, self._low_watermark, survey.now
        )
        behind = timedelta(microseconds=max(0, survey.now - self._low_watermark) // 1_000)
        self._age.report(behind, self._schema.retention, paused=self._pauses.known.stream is not None)
