"""The table of snapshots: which ranges of which tables are to be read, how far each has come, and by whom.

``<partition table>_snapshots`` stands beside the partition table and is made with it. One row is one range of keys:
``range_after`` (exclusive), ``range_until`` (inclusive) and ``last_key`` (confirmed up to there) are keys as JSON
arrays of wire values, NULL for the ends of the table. The rows of a table belong to its latest snapshot, whose range
number 0 has the table's first keys, or are of some keys that were asked for beside it; what belongs together has the
same ``run``. Once nothing of a whole table is left to read, its ranges are merged into one row.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from google.cloud.spanner_v1 import Mutation

from services.spanner_reader.adapters.spanner.connection import (
    COMMIT_TIMESTAMP,
    Row,
    SpannerDatabaseClient,
    Statement,
    strings,
)
from services.spanner_reader.adapters.spanner.dialects import partition_sql
from services.spanner_reader.adapters.spanner.mutations import deletions, writes
from services.spanner_reader.adapters.stream.topic_table import refuse_other_topic
from services.spanner_reader.core.snapshot.snapshot import (
    UNFINISHED,
    KeyText,
    RangeState,
    SnapshotRange,
    SnapshotSurvey,
    by_run,
    claimable_ranges,
    is_kept_at_a_start,
    is_untouched,
    merged,
    whole_tables,
)
from services.spanner_reader.ports import RangeProgress
from shared.contracts.timestamps import Nanoseconds, format_timestamp, nanoseconds, parse_timestamp

_COLUMNS: Final = (
    "source_table",
    "range_number",
    "run",
    "range_after",
    "range_until",
    "last_key",
    "read_timestamp",
    "first_read_timestamp",
    "row_count",
    "state",
    "owner",
    "lease_until",
    "fencing",
)
_NEW: Final = (*_COLUMNS, "requested_at", "finished_at")
_FINISHED: Final = (*_COLUMNS, "finished_at")


class SpannerSnapshotStore:
    """The table of snapshots as one owner sees it."""

    def __init__(
        self,
        database: SpannerDatabaseClient,
        partition_table: str,
        *,
        owner: str,
        lease: timedelta,
        topic: str | None = None,
    ) -> None:
        """``topic``: as of `SpannerPartitionStore`."""
        self._database = database
        self._partition_table = partition_table
        self._table = f"{partition_table}_snapshots"
        self._owner = owner
        self._lease = nanoseconds(lease)
        self._topic = topic

    async def request(self, tables: Sequence[str], at: Nanoseconds, *, again: bool) -> Sequence[str]:
        """Ask for a snapshot of each table; return those tables for which that was new."""

        def decide(rows: list[Row]) -> tuple[list[str], list[Mutation]]:
            now, found = self._ranges(rows)
            new, written, replaced = [], [], []
            for table in dict.fromkeys(tables):
                earlier = [one for one in found if one.table == table]
                if not again and is_kept_at_a_start(earlier, at, now):
                    continue
                if not again and is_untouched(earlier):
                    written.append(replace(earlier[0], read_at=at, first_read_at=at))
                    continue
                new.append(table)
                replaced += [one for one in earlier if one.number]
                written.append(_another(table, earlier, at))
            return new, self._deletions(replaced) + self._requests(written)

        return await self._database.read_then_write(self._of(tables), decide)

    async def request_keys(self, table: str, at: Nanoseconds, after: KeyText | None, until: KeyText | None) -> None:
        """Ask for some keys of a table, beside what else is read of it; earlier ones that are read are forgotten."""

        def decide(rows: list[Row]) -> tuple[None, list[Mutation]]:
            _now, earlier = self._ranges(rows)
            kept = {one.place for one in whole_tables(earlier)}
            read = [one for one in earlier if one.place not in kept and one.state not in UNFINISHED]
            number = max((one.number for one in earlier), default=0) + 1  # 0 is of a whole table, always
            asked = replace(_another(table, earlier, at), number=number, after=after, until=until)
            return None, self._deletions(read) + self._requests([asked])

        await self._database.read_then_write(self._of([table]), decide)

    async def request_unless_since(self, table: str, at: Nanoseconds, since: Nanoseconds) -> bool:
        """Ask for a snapshot of a table again, unless one is read just now or was begun after a time."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            _now, earlier = self._ranges(rows)
            begun = [one.first_read_at for one in whole_tables(earlier)]
            if any(one.state in UNFINISHED for one in earlier) or (begun and min(begun) > since):
                return False, []
            replaced = [one for one in earlier if one.number]
            return True, self._deletions(replaced) + self._requests([_another(table, earlier, at)])

        return await self._database.read_then_write(self._of([table]), decide)

    async def cancel(self, tables: Sequence[str]) -> Sequence[str]:
        """Give up what is left of the tables' snapshots; return the tables of which something was left."""

        def decide(rows: list[Row]) -> tuple[list[str], list[Mutation]]:
            _now, found = self._ranges(rows)
            left = [one for one in found if one.state in UNFINISHED]
            return list(dict.fromkeys(one.table for one in left)), self._updates([_cancelled(one) for one in left])

        return await self._database.read_then_write(self._of(tables), decide)

    async def give_up(self, owned: SnapshotRange) -> bool:
        """Give up what is left of the snapshot that a range is of; return whether the range was still ours."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            _now, found = self._ranges(rows)
            stored = {one.place: one for one in found}.get(owned.place)
            if stored is None or not self._is_ours(owned, stored):
                return False, []
            left = [one for one in found if one.run == owned.run and one.state in UNFINISHED]
            return True, self._updates([_cancelled(one) for one in left])

        return await self._database.read_then_write(self._of([owned.table]), decide)

    async def now(self) -> Nanoseconds:
        """Return Spanner's time, as a survey does."""
        now, _none = self._ranges(await self._database.query(self._of([])))
        return now

    async def survey(self) -> SnapshotSurvey:
        """Return all ranges, those that are done too."""
        now, found = self._ranges(await self._database.query(Statement(self._sql["snapshots"]), large=True))
        return SnapshotSurvey(now, tuple(found))

    async def merge(self, table: str) -> None:
        """Keep one row of each snapshot of a table of which nothing is left to read."""

        def decide(rows: list[Row]) -> tuple[None, list[Mutation]]:
            _now, found = self._ranges(rows)
            mutations = []
            for parts in by_run(found).values():
                whole = merged(parts)
                if whole is not None:
                    finished = None if whole.finished_at is None else format_timestamp(whole.finished_at)
                    mutations += writes("update", self._table, _FINISHED, [[*_values(whole), finished]])
                    mutations += self._deletions(parts[1:])
            return None, mutations

        await self._database.read_then_write(self._of([table]), decide)

    async def claim(self, places: Collection[tuple[str, int]]) -> Sequence[SnapshotRange]:
        """Take those of the ranges that are still free and not done; return them with our lease."""

        def decide(rows: list[Row]) -> tuple[list[SnapshotRange], list[Mutation]]:
            now, found = self._ranges(rows)
            until = Nanoseconds(now + self._lease)
            ours = [
                replace(one, owner=self._owner, lease_until=until, fencing=one.fencing + 1)
                for one in claimable_ranges(found, now=now)
                if one.place in places
            ]
            return ours, self._updates(ours)

        return await self._database.read_then_write(self._of([table for table, _number in places]), decide)

    async def cut(self, owned: SnapshotRange, keys: Sequence[KeyText]) -> SnapshotRange | None:
        """Cut a range at keys that lie in it; return its first part, which stays ours."""

        def decide(rows: list[Row]) -> tuple[SnapshotRange | None, list[Mutation]]:
            now, found = self._ranges(rows)
            stored = {one.place: one for one in found}.get(owned.place)
            if stored is None or not self._is_ours(owned, stored):
                return None, []
            if stored.state is not RangeState.REQUESTED:  # our own doing, whose answer never arrived
                return stored, []
            until = Nanoseconds(now + self._lease)
            first = replace(stored, until=keys[0] if keys else stored.until, state=RangeState.CUT, lease_until=until)
            number = max(one.number for one in found) + 1
            ends: list[KeyText | None] = [*keys[1:], stored.until]
            part = replace(first, last=None, rows=0, owner=None, lease_until=None, fencing=0)
            others = (
                [
                    replace(part, number=number + place, after=after, until=end)
                    for place, (after, end) in enumerate(zip(keys, ends, strict=True))
                ]
                if keys
                else []
            )
            return first, self._updates([first]) + self._requests(others)

        return await self._database.read_then_write(self._of([owned.table]), decide)

    async def save(self, progress: Sequence[RangeProgress], *, release: bool = False) -> Collection[tuple[str, int]]:
        """Save how far ranges have come and renew the leases, or release them; return those no longer ours."""
        if not progress:
            return frozenset()

        def decide(rows: list[Row]) -> tuple[frozenset[tuple[str, int]], list[Mutation]]:
            now, found = self._ranges(rows)
            stored = {one.place: one for one in found}
            until = None if release else Nanoseconds(now + self._lease)
            lost, written, done = set(), [], []
            for one in progress:
                before = stored.get(one.range.place)
                if before is None or not self._is_ours(one.range, before):
                    lost.add(one.range.place)
                elif before.state in UNFINISHED:
                    after = replace(before, last=one.last, rows=one.rows, read_at=one.read_at, lease_until=until)
                    if one.done:
                        done.append(replace(after, state=RangeState.DONE, lease_until=None))
                    else:
                        written.append(after)
            return frozenset(lost), self._updates(written) + self._updates(done, finished=True)

        return await self._database.read_then_write(self._of([one.range.table for one in progress]), decide)

    def _is_ours(self, owned: SnapshotRange, stored: SnapshotRange) -> bool:
        return (stored.run, stored.owner, stored.fencing) == (owned.run, self._owner, owned.fencing)

    def _ranges(self, rows: Sequence[Row]) -> tuple[Nanoseconds, list[SnapshotRange]]:
        """Return Spanner's time, which comes with every row and with one that holds nothing else, and the ranges."""
        if self._topic is not None:
            refuse_other_topic(self._database, self._partition_table, rows[0][-1], self._topic)
        now = max(parse_timestamp(values[-2]) for values in rows)
        return now, [_range(values) for values in rows if values[0] is not None]

    @property
    def _sql(self) -> Mapping[str, str]:
        return partition_sql(self._database.dialect, self._partition_table)

    def _of(self, tables: Sequence[str]) -> Statement:
        return Statement(self._sql["snapshots_of"], {"p1": strings(sorted(set(tables)))})

    def _requests(self, ranges: Sequence[SnapshotRange]) -> list[Mutation]:
        rows = ([*_values(one), COMMIT_TIMESTAMP, None] for one in ranges)
        return writes("insert_or_update", self._table, _NEW, rows)

    def _updates(self, ranges: Sequence[SnapshotRange], *, finished: bool = False) -> list[Mutation]:
        rows = ([*_values(one), *([COMMIT_TIMESTAMP] if finished else [])] for one in ranges)
        return writes("update", self._table, _FINISHED if finished else _COLUMNS, rows)

    def _deletions(self, ranges: Sequence[SnapshotRange]) -> list[Mutation]:
        return deletions(self._table, ([one.table, str(one.number)] for one in ranges))


def _another(table: str, earlier: Sequence[SnapshotRange], at: Nanoseconds) -> SnapshotRange:
    """Return the first range of a table's next snapshot, which is read no earlier than the one before.

    A claim of the snapshot before is void: its owner has an older fencing number. Of two operators who ask at once,
    the one who inspected the database first may come last.
    """
    at = max([at, *(one.first_read_at for one in whole_tables(earlier))])
    run = max((one.run for one in earlier), default=0) + 1
    fencing = max((one.fencing for one in earlier), default=0) + 1
    return SnapshotRange(table=table, number=0, run=run, read_at=at, first_read_at=at, fencing=fencing)


def _cancelled(one: SnapshotRange) -> SnapshotRange:
    """Return a range that is given up: its owner has an older fencing number."""
    return replace(one, state=RangeState.CANCELLED, owner=None, lease_until=None, fencing=one.fencing + 1)


def _values(one: SnapshotRange) -> Sequence[Any]:
    return (
        one.table,
        str(one.number),
        str(one.run),
        one.after,
        one.until,
        one.last,
        format_timestamp(one.read_at),
        format_timestamp(one.first_read_at),
        str(one.rows),
        one.state.value,
        one.owner,
        None if one.lease_until is None else format_timestamp(one.lease_until),
        str(one.fencing),
    )


def _range(values: Row) -> SnapshotRange:
    table, number, run, after, until, last, read_at, first, rows, state, owner, lease_until, fencing, *times = values
    finished_at, _now, _topic = times
    return SnapshotRange(
        table=table,
        number=int(number),
        run=int(run),
        after=after,
        until=until,
        last=last,
        read_at=parse_timestamp(read_at),
        first_read_at=parse_timestamp(first),
        rows=int(rows),
        state=RangeState(state),
        owner=owner,
        lease_until=None if lease_until is None else parse_timestamp(lease_until),
        fencing=int(fencing),
        finished_at=None if finished_at is None else parse_timestamp(finished_at),
    )
