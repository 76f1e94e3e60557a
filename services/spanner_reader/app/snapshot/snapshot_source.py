"""What the Spanner reader adds to `shared.reading.snapshots`: tables that are read as they were at one time.

A row is published under the time that it was read at, so any later change wins over it, whichever arrives first: the
stream needs no pause. When that time can no longer be read, or approaches the age at which BigQuery may have
forgotten a delete, the rest of the range is read at a new time.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Final

import structlog

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.snapshot.snapshot import (
    OLDEST_READ,
    UNFINISHED,
    KeyText,
    RangeState,
    RowMaker,
    SnapshotRange,
    SnapshotSurvey,
    claimable_ranges,
    mergeable,
    too_old,
)
from services.spanner_reader.ports import (
    CatalogInspection,
    DatabaseSnapshotStore,
    NotReadableError,
    RangeProgress,
    RowsAtTimestamp,
    WatchedTable,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.snapshots import OwnedRange, SnapshotPublisher, Snapshots, wait_for_operator
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_ROWS_AT_ONCE: Final = 500
_INSPECTIONS_KEPT: Final = 8
_NEARLY_TOO_OLD: Final = "that time is too long ago for a snapshot: the rows are read at a newer one"


class OwnedTableRange(OwnedRange[KeyText]):
    """A key range of a table that this reader has the lease of."""

    def __init__(self, claimed: SnapshotRange, *, in_key_order: bool) -> None:
        """Take a range, and whether its rows come in key order; they do where a key of it was saved."""
        super().__init__(claimed.place, claimed.last, claimed.rows, table=claimed.table, range=claimed.number)
        self.range = claimed
        self.read_at = claimed.read_at
        self.in_key_order = in_key_order or claimed.last is not None
        """Whether it is read in key order, so that reading continues behind the key of any row that is confirmed."""
        self.in_key_order_next = self.in_key_order
        self.taken = 0
        """How many rows were read in all, repeated ones too."""
        self.taken_before = 0
        """How many of them before the latest error."""
        self.renewed_with: int | None = None
        """How many of them when a new time was chosen last."""

    def restart(self) -> None:
        """Read from the beginning next: rows in no order do not show what is left. All of them are confirmed."""
        self.begin(None, 0)
        self.in_key_order = self.in_key_order_next

    @property
    def read_to(self) -> KeyText | None:
        """Return the key behind which reading continues: None where it would begin again."""
        return super().read_to if self.in_key_order else None

    @property
    def progress(self) -> RangeProgress:
        """Return how far it has been read and confirmed."""
        last = self.last if self.in_key_order else None
        return RangeProgress(self.range, last, self.rows, self.read_at, done=self.complete)


class SpannerSnapshotSource:
    """Key ranges of the mirrored tables."""

    def __init__(
        self,
        store: DatabaseSnapshotStore,
        rows: RowsAtTimestamp,
        tables: MirroredTables,
        is_paused: Callable[[str], bool],
        metrics: SpannerReaderMetrics,
        stop: Stop,
    ) -> None:
        """``is_paused`` returns whether a table is paused."""
        self._store = store
        self._rows = rows
        self._tables = tables
        self._is_paused = is_paused
        self._metrics = metrics
        self._stop = stop
        self._inspections: dict[Nanoseconds, CatalogInspection] = {}
        self._inspecting = asyncio.Lock()
        self._unfinished: frozenset[str] = frozenset()
        self._free: Sequence[SnapshotRange] = ()
        """What the last survey found free, and was not claimed since."""
        self._merged = ""
        """The table whose ranges were merged last, or could not be."""
        self._log = structlog.get_logger()

    # Sharing

    async def survey(self) -> SnapshotSurvey:
        """Return all ranges of all tables: one row each."""
        return await self._store.survey()

    def is_left(self, survey: SnapshotSurvey) -> bool:
        """Return whether anything is left of the tables that are mirrored here."""
        return any(one.state in UNFINISHED and self._tables.included(one.table) for one in survey.ranges)

    def learn(self, survey: SnapshotSurvey) -> bool:
        """Remember which ranges are free, show how many are left; return whether any is to be read here now."""
        self._free = claimable_ranges(survey.ranges, now=survey.now)
        left = Counter(one.table for one in survey.ranges if one.state in UNFINISHED)
        self._metrics.snapshots_left(left)
        for table in self._unfinished - left.keys():
            rows = sum(one.rows for one in survey.ranges if one.table == table)
            self._log.info("snapshot_finished", table=table, rows=rows)
        for table in left.keys() - self._unfinished:
            if not self._tables.included(table):
                self._log.info("snapshot_skipped", table=table, why="the tables file here leaves the table out")
        self._unfinished = frozenset(left)
        return any(self._is_read(table) for table in left)

    async def claim(self, owned: Collection[Hashable], most: int) -> Sequence[OwnedTableRange]:
        """Claim ranges that the last survey found free, each once: another reader may have claimed it since."""
        due = [one.place for one in self._free if one.place not in owned and self._is_read(one.table)][:most]
        if not due:
            return ()
        self._free = [one for one in self._free if one.place not in due]
        claimed = await self._store.claim(due)
        for one in claimed:
            self._log.info(
                "snapshot_range_claimed",
                table=one.table,
                range=one.number,
                read_timestamp=format_timestamp(one.read_at),
                rows=one.rows,
            )
        return [OwnedTableRange(one, in_key_order=self._rows.in_key_order) for one in claimed]

    async def tidy(self, survey: SnapshotSurvey) -> None:
        """Merge the ranges of one table, another at each survey; nothing waits for that."""
        table = min(mergeable(survey.ranges), key=lambda name: (name <= self._merged, name), default=None)
        if table is None:
            return
        self._merged = table
        try:
            await self._store.merge(table)
        except TransientError as error:
            self._log.warning("snapshot_ranges_not_merged", table=table, error=str(error))

    def paused(self, owned: Sequence[OwnedTableRange]) -> Sequence[OwnedTableRange]:
        """Return the ranges of paused tables; all while the stream is paused."""
        return [one for one in owned if self._is_paused(one.range.table)]

    async def save(self, owned: Sequence[OwnedTableRange], *, release: bool = False) -> Collection[Hashable]:
        """Save how far ranges are, and renew or release their leases; return those that are no longer ours."""
        return await self._store.save([one.progress for one in owned], release=release)

    def _is_read(self, table: str) -> bool:
        return self._tables.included(table) and not self._is_paused(table)

    # One range

    async def read(self, owned: OwnedTableRange, publisher: SnapshotPublisher) -> bool:
        """Publish what is left of a range; return whether it is still ours."""
        until = await self._readable_until(owned)
        watched = await self._inspect_table(owned)
        if watched is None:
            return await self._give_up(owned, "dropped, or no longer watched")
        table, maker = self._tables.row_maker(watched, owned.read_at)
        places = (owned.range.after, owned.range.until, owned.read_to)
        if not all(place is None or maker.may_be_place(place) for place in places):
            return await self._give_up(owned, "dropped and made again with another key since it was requested")
        if owned.range.state is RangeState.REQUESTED and not await self._cut(owned, watched):
            return False
        if not owned.in_key_order:  # from its beginning, then
            await publisher.wait_until_confirmed(owned)
            owned.restart()
        after = owned.range.after if owned.read_to is None else owned.read_to
        reading = self._rows.read(
            table, owned.read_at, after=after, until=owned.range.until, in_key_order=owned.in_key_order
        )
        async with aclosing(reading) as batches:
            async for rows in batches:
                for start in range(0, len(rows), _ROWS_AT_ONCE):
                    await self._publish(owned, publisher, maker, rows[start : start + _ROWS_AT_ONCE], until)
        return True

    async def _give_up(self, owned: OwnedTableRange, why: str) -> bool:
        """Give up what is left of a snapshot; its table is pending resync, and an automatic one may be requested."""
        self._log.warning("snapshot_of_no_table", table=owned.range.table, why=why)
        owned.over = True  # given up, not complete: rows that were not read are not missing in the source
        await self._store.give_up(owned.range)
        return True

    async def recover(self, owned: OwnedTableRange, error: MisconfiguredError) -> None:
        """Read the rest at a new time if the former one cannot be read, in key order if that may happen again."""
        before, owned.taken_before = owned.taken_before, owned.taken
        if not isinstance(error, NotReadableError):
            await wait_for_operator(owned, error)
            return
        if owned.renewed_with == owned.taken:  # no row since: the time is not the cause
            await wait_for_operator(owned, error)
        if owned.taken > before and not owned.in_key_order_next:
            owned.in_key_order_next = True
            self._log.warning(
                "snapshot_range_read_without_data_boost",
                **owned.names,
                why="reading it takes longer than its time can be read, and rows in no order would begin again",
            )
        await self._choose_new_time(owned, str(error))
        owned.renewed_with = owned.taken

    async def _inspect_table(self, owned: OwnedTableRange) -> WatchedTable | None:
        """Return the table as it was at the time of reading; None if it did not exist, or was not watched."""
        async with self._inspecting:
            found = self._inspections.get(owned.read_at)
            if found is None:
                found = await self._tables.catalog.inspect_at(owned.read_at)
                if found is None:
                    why = "the database no longer keeps the rows of that time: they are read at a newer one"
                    raise NotReadableError("time-not-remembered", why)
                self._keep_inspection(owned.read_at, found)
        return next((one for one in found.watched if one.name == owned.range.table), None)

    async def _readable_until(self, owned: OwnedTableRange) -> float:
        """Return when, by the event loop's clock, a range's time will be too old."""
        asked_at, now = asyncio.get_running_loop().time(), await self._store.now()
        if too_old(owned.read_at, now):
            raise NotReadableError("time-nearly-forgotten", _NEARLY_TOO_OLD)
        return asked_at + (OLDEST_READ - timedelta(microseconds=(now - owned.read_at) / 1_000)).total_seconds()

    async def _choose_new_time(self, owned: OwnedTableRange, why: str) -> None:
        """Let what is left of a range be read as it is now."""
        async with self._inspecting:
            found = await retried(self._stop, self._tables.catalog.inspect)
            read_at = Nanoseconds(found.shapes.at // 1_000 * 1_000)
            self._keep_inspection(read_at, found)
        self._log.info(
            "snapshot_goes_on_at_a_new_time", **owned.names, read_timestamp=format_timestamp(read_at), why=why
        )
        owned.read_at = read_at

    def _keep_inspection(self, at: Nanoseconds, found: CatalogInspection) -> None:
        if len(self._inspections) >= _INSPECTIONS_KEPT:
            self._inspections.pop(next(iter(self._inspections)))
        self._inspections[at] = found

    async def _cut(self, owned: OwnedTableRange, table: WatchedTable) -> bool:
        """Cut a range into parts, so that others can read some of them; return whether its first part is ours."""
        whole = owned.range.after is None and owned.range.until is None
        try:
            cuts = await self._rows.cuts(table, owned.read_at) if whole else ()
        except NotReadableError:
            raise
        except MisconfiguredError as error:  # a right that only this needs: one reader reads it all, then
            self._log.warning("snapshot_not_cut", table=table.name, error=str(error))
            cuts = ()
        cut = await self._store.cut(owned.range, cuts)
        if cut is None:
            return False
        owned.range = cut
        return True

    async def _publish(
        self,
        owned: OwnedTableRange,
        publisher: SnapshotPublisher,
        maker: RowMaker,
        rows: Sequence[Sequence[object]],
        until: float,
    ) -> None:
        await publisher.wait_for_room(len(rows))
        if asyncio.get_running_loop().time() > until:  # now, not before what may have taken hours
            raise NotReadableError("time-nearly-forgotten", _NEARLY_TOO_OLD)
        changes = sorted(maker.changes(rows), key=itemgetter(0))  # by ordering key: packed faster
        confirm = owned.take(maker.key_text(rows[-1]), len(rows), sum(change.size() for _key, change in changes))
        owned.taken += len(rows)
        confirmed = partial(self._on_confirmed, confirm, owned.range.table, len(rows))
        await publisher.publish(maker.header, changes, confirmed)

    def _on_confirmed(self, confirm: Callable[[], None], table: str, rows: int) -> None:
        confirm()
        self._metrics.snapshot_read(table, rows)


SpannerSnapshots = Snapshots[OwnedTableRange, SnapshotSurvey]
