"""The partition table: which partitions of the change stream exist, how far each has been read, and by whom.

It lives in Spanner, in the watched database or in another one of the instance, and is made at the first start. Every
write reads the rows it is about, decides, and writes, in one transaction; Spanner's clock says when a lease ends.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog
from google.cloud.spanner_v1 import Mutation

from services.spanner_reader.adapters.connection import (
    COMMIT_TIMESTAMP,
    Database,
    Row,
    Statement,
    int64,
    row,
    strings,
)
from services.spanner_reader.core.partitions import NewPartition, Partition, State, Survey, claimable
from services.spanner_reader.core.records import ROOT, PartitionToken
from services.spanner_reader.ports import Progress
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

_DDL: Final = """CREATE TABLE IF NOT EXISTS {table} (
  token STRING(MAX) NOT NULL,
  change_stream STRING(MAX) NOT NULL,
  parents ARRAY<STRING(MAX)> NOT NULL,
  start_timestamp TIMESTAMP NOT NULL,
  end_timestamp TIMESTAMP,
  state STRING(16) NOT NULL,
  watermark TIMESTAMP NOT NULL,
  owner STRING(MAX),
  lease_until TIMESTAMP,
  fencing INT64 NOT NULL,
  created_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  scheduled_at TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  running_at TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  finished_at TIMESTAMP OPTIONS (allow_commit_timestamp = true),
) PRIMARY KEY (token)"""

_READERS_DDL: Final = """CREATE TABLE IF NOT EXISTS {table}_readers (
  owner STRING(MAX) NOT NULL,
  present_until TIMESTAMP NOT NULL,
) PRIMARY KEY (owner)"""

_EXIST: Final = """SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES
WHERE TABLE_SCHEMA = '' AND TABLE_NAME IN UNNEST(@tables)"""

_COLUMNS: Final = """
SELECT p.token, p.parents,
  ARRAY(SELECT parent.token FROM {table} AS parent
        WHERE parent.token IN UNNEST(p.parents) AND parent.state = 'FINISHED') AS finished_parents,
  p.start_timestamp, p.state, p.watermark, p.owner, p.lease_until, p.fencing, CURRENT_TIMESTAMP() AS now
FROM {table} AS p"""

# One row always, so that Spanner's time and the number of finished partitions come with an empty table, too.
_SURVEY: Final = """SELECT CURRENT_TIMESTAMP(), (SELECT COUNT(*) FROM {table} WHERE state = 'FINISHED'),
  ARRAY(SELECT owner FROM {table}_readers WHERE present_until >= CURRENT_TIMESTAMP())"""
_NOW: Final = "SELECT CURRENT_TIMESTAMP()"
# Both stay true once they are: FINISHED is final, and who names a partition as a parent was inserted with its end.
_FORGETTABLE: Final = """SELECT p.token FROM {table} AS p
WHERE p.state = 'FINISHED' AND p.finished_at < TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL @keep MICROSECOND)
  AND NOT EXISTS (SELECT 1 FROM {table} AS child WHERE child.state != 'FINISHED' AND p.token IN UNNEST(child.parents))
LIMIT 1000"""
_GONE_READERS: Final = """SELECT owner FROM {table}_readers
WHERE present_until < TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL @keep MICROSECOND)"""
_UNFINISHED: Final = _COLUMNS + " WHERE p.state != 'FINISHED'"
_NAMED: Final = _COLUMNS + " WHERE p.token IN UNNEST(@tokens)"
_STREAMS: Final = "SELECT DISTINCT change_stream FROM {table}"


@dataclass(frozen=True, slots=True)
class _Found:
    partition: Partition
    now: Nanoseconds


class SpannerPartitionStore:
    """The partition table as one owner sees it."""

    def __init__(self, database: Database, table: str, *, change_stream: str, owner: str, lease: timedelta) -> None:
        self._database = database
        self._table = table
        self._change_stream = change_stream
        self._owner = owner
        self._lease = int(lease.total_seconds() * 1_000_000_000)

    async def create_table(self) -> None:
        """Make the tables unless they are there; the right to change the schema is needed only then."""
        tables = [self._table, f"{self._table}_readers"]
        if len(await self._database.query(Statement(_EXIST, {"tables": strings(tables)}))) < len(tables):
            await self._database.change_schema(*(ddl.format(table=self._table) for ddl in (_DDL, _READERS_DDL)))
            structlog.get_logger().info("partition_table_created", table=self._table, database=self._database.name)

    async def is_empty(self) -> bool:
        """Tell whether no partition is known; MisconfiguredError if those known are another change stream's."""
        return self._names_no_stream(await self._database.query(self._statement(_STREAMS)))

    async def add_root(self, start: Nanoseconds, end: Nanoseconds | None) -> bool:
        """Remember the stream's first query, unless any partition is known; return whether none was."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            if not self._names_no_stream(rows):
                return False, []
            return True, [self._insert([NewPartition(ROOT, frozenset(), start)], end)]

        return await self._database.read_then_write(self._statement(_STREAMS), decide)

    async def survey(self) -> Survey:
        """Return all partitions that are not finished."""
        # Two strong reads, the count and the clock first: what finishes between them is only counted a little later.
        ((now, finished, readers),) = await self._database.query(self._statement(_SURVEY))
        rows = await self._database.query(self._statement(_UNFINISHED))
        found = [_found(row) for row in rows]
        return Survey(
            max((f.now for f in found), default=parse_timestamp(now)),
            tuple(f.partition for f in found),
            int(finished),
            frozenset(readers),
        )

    async def claim(self, tokens: Collection[PartitionToken], end: Nanoseconds | None) -> Sequence[Partition]:
        """Take those of the partitions that are still due and free; return them as they are now, with our lease."""

        def decide(rows: list[Row]) -> tuple[list[Partition], list[Mutation]]:
            found = [_found(row) for row in rows]
            if not found:
                return [], []
            now = found[0].now
            until = Nanoseconds(now + self._lease)
            free = claimable([f.partition for f in found], owner=self._owner, holding=(), now=now, end=end)
            ours = [self._ours(partition, until) for partition in free]
            columns = ("token", "state", "owner", "lease_until", "fencing", "scheduled_at")
            return ours, _updates(
                self._table,
                columns,
                [
                    (p.token, p.state.value, p.owner, format_timestamp(until), str(p.fencing), COMMIT_TIMESTAMP)
                    for p in ours
                ],
            )

        return await self._database.read_then_write(self._statement(_NAMED, tokens), decide)

    async def advance(self, progress: Sequence[Progress], *, release: bool = False) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases, or give them back; return the partitions that are not ours any more."""
        if not progress:
            return frozenset()

        def decide(rows: list[Row]) -> tuple[frozenset[PartitionToken], list[Mutation]]:
            found = {f.partition.token: f for f in map(_found, rows)}
            kept, lost = self._kept(progress, found)
            saved = []
            started = []
            for one in kept:
                before, now = found[one.partition.token].partition, found[one.partition.token].now
                watermark = max(before.watermark, one.watermark)
                until = None if release else format_timestamp(Nanoseconds(now + self._lease))
                saved.append((before.token, format_timestamp(watermark), until))
                if before.state is not State.RUNNING:
                    started.append((before.token, State.RUNNING.value, COMMIT_TIMESTAMP))
            return lost, [
                *_updates(self._table, ("token", "watermark", "lease_until"), saved),
                *_updates(self._table, ("token", "state", "running_at"), started),
            ]

        tokens = [one.partition.token for one in progress]
        return await self._database.read_then_write(self._statement(_NAMED, tokens), decide)

    async def finish(self, progress: Progress, children: Sequence[NewPartition]) -> Collection[PartitionToken] | None:
        """Remember the children that are not known yet and mark the partition FINISHED, both or neither."""
        partition = progress.partition

        def decide(rows: list[Row]) -> tuple[frozenset[PartitionToken] | None, list[Mutation]]:
            found = {f.partition.token: f for f in map(_found, rows)}
            before = found.get(partition.token)
            if before is None or not self._is_ours(partition, before.partition):
                return None, []
            if before.partition.state is State.FINISHED:
                return frozenset(), []  # our own doing, whose answer never arrived
            new = [child for child in children if child.token not in found]
            watermark = format_timestamp(max(before.partition.watermark, progress.watermark))
            columns = ("token", "state", "watermark", "lease_until", "finished_at")
            done = (partition.token, State.FINISHED.value, watermark, None, COMMIT_TIMESTAMP)
            mutations = _updates(self._table, columns, [done])
            if new:
                mutations.append(self._insert(new, None))
            return frozenset(child.token for child in new), mutations

        tokens = [partition.token, *(child.token for child in children)]
        return await self._database.read_then_write(self._statement(_NAMED, tokens), decide)

    async def attend(self, *, leave: bool = False) -> None:
        """Be counted among the readers for as long as a lease lasts; or not any more."""
        table = f"{self._table}_readers"

        def decide(rows: list[Row]) -> tuple[None, list[Mutation]]:
            if leave:
                return None, [_deletion(table, [self._owner])]
            until = Nanoseconds(parse_timestamp(rows[0][0]) + self._lease)
            values = [row([self._owner, format_timestamp(until)])]
            columns = ("owner", "present_until")
            return None, [Mutation(insert_or_update=Mutation.Write(table=table, columns=columns, values=values))]

        await self._database.read_then_write(Statement(_NOW), decide)

    async def forget_finished(self, keep: timedelta) -> int:
        """Delete partitions that were finished longer than ``keep`` ago; return how many."""
        period = {"keep": int64(keep // timedelta(microseconds=1))}
        found = await self._database.query(Statement(_FORGETTABLE.format(table=self._table), period))
        gone = await self._database.query(Statement(_GONE_READERS.format(table=self._table), period))
        if not found and not gone:
            return 0
        forgotten = [str(token) for (token,) in found]
        owners = [str(owner) for (owner,) in gone]

        def decide(_rows: list[Row]) -> tuple[None, list[Mutation]]:
            deletions = [_deletion(self._table, forgotten)] if forgotten else []
            return None, deletions + ([_deletion(f"{self._table}_readers", owners)] if owners else [])

        await self._database.read_then_write(Statement(_NOW), decide)
        return len(forgotten)

    def _names_no_stream(self, rows: Sequence[Row]) -> bool:
        others = {str(name) for (name,) in rows} - {self._change_stream}
        if others:
            raise MisconfiguredError(
                f"partition table {self._table} in {self._database.name} belongs to {', '.join(sorted(others))}, "
                f"not to {self._change_stream}: give every change stream its own, by PARTITION_TABLE"
            )
        return not rows

    def _statement(self, sql: str, tokens: Iterable[str] | None = None) -> Statement:
        parameters = {} if tokens is None else {"tokens": strings(sorted(tokens))}
        return Statement(sql.format(table=self._table), parameters)

    def _is_ours(self, held: Partition, stored: Partition) -> bool:
        return stored.owner == self._owner and stored.fencing == held.fencing

    def _kept(
        self, progress: Sequence[Progress], found: Mapping[PartitionToken, _Found]
    ) -> tuple[list[Progress], frozenset[PartitionToken]]:
        kept = []
        lost = set()
        for one in progress:
            stored = found.get(one.partition.token)
            if stored is None or not self._is_ours(one.partition, stored.partition):
                lost.add(one.partition.token)
            elif stored.partition.state is not State.FINISHED:  # finished while this was on its way: nothing to keep
                kept.append(one)
        return kept, frozenset(lost)

    def _ours(self, partition: Partition, until: Nanoseconds) -> Partition:
        return Partition(
            token=partition.token,
            start=partition.start,
            watermark=partition.watermark,
            parents=partition.parents,
            finished_parents=partition.finished_parents,
            state=State.SCHEDULED,
            owner=self._owner,
            lease_until=until,
            fencing=partition.fencing + 1,
        )

    def _insert(self, partitions: Iterable[NewPartition], end: Nanoseconds | None) -> Mutation:
        names = ("token", "change_stream", "parents", "start_timestamp", "end_timestamp", "state", "watermark")
        rows = []
        for partition in partitions:
            start = format_timestamp(partition.start)
            until = None if end is None else format_timestamp(end)
            values = (partition.token, self._change_stream, sorted(partition.parents), start, until)
            rows.append(row([*values, State.CREATED.value, start, "0", COMMIT_TIMESTAMP]))
        columns = [*names, "fencing", "created_at"]
        return Mutation(insert=Mutation.Write(table=self._table, columns=columns, values=rows))


def _updates(table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Mutation]:
    if not rows:
        return []
    return [Mutation(update=Mutation.Write(table=table, columns=columns, values=[row(values) for values in rows]))]


def _deletion(table: str, keys: Iterable[str]) -> Mutation:
    return Mutation(delete=Mutation.Delete(table=table, key_set={"keys": [row([key]) for key in keys]}))


def _found(values: Row) -> _Found:
    token, parents, finished_parents, start, state, watermark, owner, lease_until, fencing, now = values
    partition = Partition(
        token=PartitionToken(token),
        start=parse_timestamp(start),
        watermark=parse_timestamp(watermark),
        parents=frozenset(map(PartitionToken, parents)),
        finished_parents=frozenset(map(PartitionToken, finished_parents)),
        state=State(state),
        owner=owner,
        lease_until=None if lease_until is None else parse_timestamp(lease_until),
        fencing=int(fencing),
    )
    return _Found(partition, parse_timestamp(now))
