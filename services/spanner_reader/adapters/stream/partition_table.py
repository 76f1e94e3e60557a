"""The partition table: which partitions of the change stream exist, how far each has been read, and by whom.

It lives in Spanner, in the watched database or in another one of the instance, whose dialect may be another, and is
made at the first start. Every write reads the rows it is about, decides, and writes, in one transaction; Spanner's
clock says when a lease ends.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import structlog
from google.cloud.spanner_v1 import Mutation

from services.spanner_reader.adapters.spanner.connection import (
    COMMIT_TIMESTAMP,
    Row,
    SpannerDatabaseClient,
    Statement,
    strings,
    timestamp,
)
from services.spanner_reader.adapters.spanner.dialects import partition_ddl, partition_sql
from services.spanner_reader.adapters.spanner.mutations import deletions, writes
from services.spanner_reader.adapters.stream.topic_table import refuse_other_topic
from services.spanner_reader.core.stream.partitions import (
    NewPartition,
    PartitionState,
    SpannerPartition,
    SpannerPartitionSurvey,
    claimable,
)
from services.spanner_reader.core.stream.records import ROOT, PartitionToken
from services.spanner_reader.ports import SpannerProgress
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, nanoseconds, parse_timestamp

_COUNT_EVERY: Final = timedelta(minutes=1)
"""How often finished partitions are counted where no partition has come or gone: an entry of the index for each."""


@dataclass(frozen=True, slots=True)
class _Found:
    partition: SpannerPartition
    now: Nanoseconds
    topic: str | None


class SpannerPartitionStore:
    """The partition table as one owner sees it."""

    def __init__(
        self,
        database: SpannerDatabaseClient,
        table: str,
        *,
        change_stream: str,
        owner: str,
        lease: timedelta,
        topic: str | None = None,
    ) -> None:
        """``topic``: to which its owner publishes; MisconfiguredError from all that reads partitions once the table's
        is another. A reader may have stood still while it was changed. None: the owner publishes nothing.
        """
        self._database = database
        self._table = table
        self._change_stream = change_stream
        self._owner = owner
        self._topic = topic
        self._lease = int(lease.total_seconds() * 1_000_000_000)
        self._finished, self._counted_at = 0, -nanoseconds(_COUNT_EVERY)
        """By Spanner's clock."""
        self._counted_beside: frozenset[PartitionToken] | None = None
        """The partitions that were not finished then."""

    @property
    def _tables(self) -> Sequence[str]:
        beside = ("readers", "tables", "snapshots", "pauses", "topic")
        return [self._table, *(f"{self._table}_{one}" for one in beside)]

    @property
    def _sql(self) -> Mapping[str, str]:
        return partition_sql(self._database.dialect, self._table)

    async def create_table(self) -> None:
        """Make the tables; the right to change the schema is needed only where that is to be done."""
        if not await self.exists():
            await self._database.change_schema(*partition_ddl(self._database.dialect, self._table))
            log = structlog.get_logger()
            log.info("partition_table_created", table=self._table, database=self._database.name)

    async def exists(self) -> bool:
        """Return whether the tables and their index are there."""
        found = await self._database.query(Statement(self._sql["exist"], {"p1": strings(self._tables)}))
        return {str(name) for (name,) in found}.issuperset([*self._tables, self._sql["index"]])

    async def is_empty(self) -> bool:
        """Return whether no partition is known; MisconfiguredError if those known are another change stream's."""
        return self._names_no_stream(await self._database.query(Statement(self._sql["streams"])))

    async def add_root(self, start: Nanoseconds, end: Nanoseconds | None) -> bool:
        """Remember the stream's first query, unless any partition is known; return whether none was."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            if not self._names_no_stream(rows):
                return False, []
            return True, self._insert([NewPartition(ROOT, frozenset(), start)], end)

        return await self._database.read_then_write(Statement(self._sql["streams"]), decide)

    async def survey(self) -> SpannerPartitionSurvey:
        """Return all partitions that are not finished."""
        # The clock first: what finishes between two of these reads is only counted a little later.
        ((now, readers),) = await self._database.query(Statement(self._sql["survey"]))
        rows = await self._database.query(Statement(self._sql["unfinished"]))
        found = self._partitions(rows)
        tokens = frozenset(one.partition.token for one in found)
        if tokens != self._counted_beside or parse_timestamp(now) >= self._counted_at + nanoseconds(_COUNT_EVERY):
            ((finished,),) = await self._database.query(Statement(self._sql["finished"]))
            self._finished, self._counted_at, self._counted_beside = int(finished), parse_timestamp(now), tokens
        return SpannerPartitionSurvey(
            max((f.now for f in found), default=parse_timestamp(now)),
            tuple(f.partition for f in found),
            self._finished,
            frozenset(readers),
        )

    async def claim(self, tokens: Collection[PartitionToken], end: Nanoseconds | None) -> Sequence[SpannerPartition]:
        """Take those of the partitions that are still due and free; return them as they are now, with our lease."""

        def decide(rows: list[Row]) -> tuple[list[SpannerPartition], list[Mutation]]:
            found = self._partitions(rows)
            if not found:
                return [], []
            now = found[0].now
            until = Nanoseconds(now + self._lease)
            free = claimable([f.partition for f in found], owner=self._owner, holding=(), now=now, end=end)
            ours = [self._ours(partition, until) for partition in free]
            columns = ("token", "state", "owner", "lease_until", "fencing", "scheduled_at")
            return ours, writes(
                "update",
                self._table,
                columns,
                [
                    (p.token, p.state.value, p.owner, format_timestamp(until), str(p.fencing), COMMIT_TIMESTAMP)
                    for p in ours
                ],
            )

        return await self._database.read_then_write(self._named(tokens), decide)

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases, or release them; return the partitions that are no longer ours."""
        if not progress:
            return frozenset()

        def decide(rows: list[Row]) -> tuple[frozenset[PartitionToken], list[Mutation]]:
            found = {f.partition.token: f for f in self._partitions(rows)}
            kept, lost = self._kept(progress, found)
            saved = []
            started = []
            for one in kept:
                before, now = found[one.partition.token].partition, found[one.partition.token].now
                watermark = max(before.watermark, one.watermark)
                until = None if release else format_timestamp(Nanoseconds(now + self._lease))
                saved.append((before.token, format_timestamp(watermark), until, str(one.load)))
                if before.state is not PartitionState.RUNNING:
                    started.append((before.token, PartitionState.RUNNING.value, COMMIT_TIMESTAMP))
            return lost, [
                *writes("update", self._table, ("token", "watermark", "lease_until", "load"), saved),
                *writes("update", self._table, ("token", "state", "running_at"), started),
            ]

        tokens = [one.partition.token for one in progress]
        return await self._database.read_then_write(self._named(tokens), decide)

    async def finish(
        self, progress: SpannerProgress, children: Sequence[NewPartition]
    ) -> Collection[PartitionToken] | None:
        """Remember the children that are not known yet and mark the partition FINISHED, both or neither."""
        partition = progress.partition

        def decide(rows: list[Row]) -> tuple[frozenset[PartitionToken] | None, list[Mutation]]:
            found = {f.partition.token: f for f in self._partitions(rows)}
            before = found.get(partition.token)
            if before is None or not self._is_ours(partition, before.partition):
                return None, []
            if before.partition.state is PartitionState.FINISHED:
                return frozenset(), []  # our own doing, whose answer never arrived
            new = [child for child in children if child.token not in found]
            watermark = format_timestamp(max(before.partition.watermark, progress.watermark))
            columns = ("token", "state", "watermark", "lease_until", "finished_at")
            done = (partition.token, PartitionState.FINISHED.value, watermark, None, COMMIT_TIMESTAMP)
            mutations = writes("update", self._table, columns, [done]) + self._insert(new, None)
            return frozenset(child.token for child in new), mutations

        tokens = [partition.token, *(child.token for child in children)]
        return await self._database.read_then_write(self._named(tokens), decide)

    async def attend(self, *, leave: bool = False) -> None:
        """Be counted among the readers for as long as a lease lasts; or no longer be."""
        table = f"{self._table}_readers"

        def decide(rows: list[Row]) -> tuple[None, list[Mutation]]:
            if leave:
                return None, deletions(table, [[self._owner]])
            until = Nanoseconds(parse_timestamp(rows[0][0]) + self._lease)
            values = [self._owner, format_timestamp(until)]
            return None, writes("insert_or_update", table, ("owner", "present_until"), [values])

        await self._database.read_then_write(Statement(self._sql["now"]), decide)

    async def forget_finished(self, keep: timedelta) -> int:
        """Delete partitions that were finished longer than ``keep`` ago, a thousand at most; return how many."""
        ((now,),) = await self._database.query(Statement(self._sql["now"]))
        before = {"p1": timestamp(Nanoseconds(parse_timestamp(now) - nanoseconds(keep)))}
        found = await self._database.query(Statement(self._sql["forgettable"], before))
        gone = await self._database.query(Statement(self._sql["gone_readers"], before))
        if not found and not gone:
            return 0

        def decide(_rows: list[Row]) -> tuple[None, list[Mutation]]:
            return None, deletions(self._table, found) + deletions(f"{self._table}_readers", gone)

        await self._database.read_then_write(Statement(self._sql["now"]), decide)
        return len(found)

    def _partitions(self, rows: Iterable[Row]) -> list[_Found]:
        found = [_found(row) for row in rows]
        if found and self._topic is not None:
            refuse_other_topic(self._database, self._table, found[0].topic, self._topic)
        return found

    def _names_no_stream(self, rows: Sequence[Row]) -> bool:
        others = {str(name) for (name,) in rows} - {self._change_stream}
        if others:
            raise MisconfiguredError(
                "partition-table-of-another-stream",
                f"partition table {self._table} in {self._database.name} belongs to {', '.join(sorted(others))}, "
                f"not to {self._change_stream}: give every change stream its own, by PARTITION_TABLE",
            )
        return not rows

    def _named(self, tokens: Iterable[str]) -> Statement:
        return Statement(self._sql["named"], {"p1": strings(sorted(tokens))})

    def _is_ours(self, owned: SpannerPartition, stored: SpannerPartition) -> bool:
        return stored.owner == self._owner and stored.fencing == owned.fencing

    def _kept(
        self, progress: Sequence[SpannerProgress], found: Mapping[PartitionToken, _Found]
    ) -> tuple[list[SpannerProgress], frozenset[PartitionToken]]:
        kept = []
        lost = set()
        for one in progress:
            stored = found.get(one.partition.token)
            if stored is None or not self._is_ours(one.partition, stored.partition):
                lost.add(one.partition.token)
            elif (
                stored.partition.state is not PartitionState.FINISHED
            ):  # finished while this was on its way: nothing to keep
                kept.append(one)
        return kept, frozenset(lost)

    def _ours(self, partition: SpannerPartition, until: Nanoseconds) -> SpannerPartition:
        return replace(
            partition,
            state=PartitionState.SCHEDULED,
            owner=self._owner,
            lease_until=until,
            fencing=partition.fencing + 1,
        )

    def _insert(self, partitions: Iterable[NewPartition], end: Nanoseconds | None) -> list[Mutation]:
        names = ("token", "change_stream", "parents", "start_timestamp", "end_timestamp", "state", "watermark")
        rows = []
        for partition in partitions:
            start = format_timestamp(partition.start)
            until = None if end is None else format_timestamp(end)
            values = (partition.token, self._change_stream, sorted(partition.parents), start, until)
            rows.append([*values, PartitionState.CREATED.value, start, "0", COMMIT_TIMESTAMP])
        return writes("insert", self._table, [*names, "fencing", "created_at"], rows)


def _found(values: Row) -> _Found:
    token, parents, finished_parents, start, state, watermark, owner, lease_until, fencing, load, now, topic = values
    partition = SpannerPartition(
        token=PartitionToken(token),
        start=parse_timestamp(start),
        watermark=parse_timestamp(watermark),
        parents=frozenset(map(PartitionToken, parents)),
        finished_parents=frozenset(map(PartitionToken, finished_parents)),
        state=PartitionState(state),
        owner=owner,
        lease_until=None if lease_until is None else parse_timestamp(lease_until),
        fencing=int(fencing),
        load=int(load or 0),
    )
    return _Found(partition, parse_timestamp(now), topic)
