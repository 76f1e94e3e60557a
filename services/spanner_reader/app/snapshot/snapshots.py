"""Reads the rows that were there before the stream, beside it: a few ranges of keys at a time, shared by all readers.

A row is published under the time it was read at, so any change that came later wins over it, whichever arrives first:
the stream needs no pause. It has ordering keys of its own and a part of the room for what waits for Pub/Sub, so the
stream does not wait for it either. A range goes on behind the last key that is confirmed; where its time can no longer
be read, or has come near the age at which BigQuery may have forgotten a delete, what is left is read at a new time.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Final

import msgspec
import structlog

from services.spanner_reader.app.snapshot.held_range import HeldRange
from services.spanner_reader.app.snapshot.snapshot_ends import SnapshotEnds
from services.spanner_reader.core.snapshot.snapshot import (
    OLDEST_READ,
    UNFINISHED,
    ConfirmedKeys,
    RangeState,
    RowMaker,
    SnapshotRange,
    SnapshotSurvey,
    TakenRows,
    claimable_ranges,
    mergeable,
    too_old,
)
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.ports import (
    Catalog,
    CatalogLook,
    Metrics,
    NotReadableError,
    Publisher,
    Rows,
    SnapshotStore,
    WatchedTable,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.pace import Pace
from shared.runtime.retries import retried, retrying_async
from shared.runtime.stop import Stop

_ROWS_AT_ONCE: Final = 500
_LOOKS_KEPT: Final = 8
_SURVEY_PAUSE: Final = 10
"""The next survey begins so many times later than the last one took: surveys take a tenth of the time at most."""
_NEARLY_TOO_OLD: Final = "that is nearly as long ago as a snapshot row may be old"
_TRY_AGAIN: Final = timedelta(minutes=1)
"""After what only a person can mend: a right that is missing, say. The stream goes on meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """How snapshots are read."""

    at_once: int = 2
    """Ranges."""
    rows_per_second: int | None = None
    unconfirmed_bytes: int = 16 << 20
    """What all of it together may let wait for Pub/Sub."""
    save: timedelta = timedelta(seconds=5)
    """How often progress is saved, and ranges to claim are looked for, while anything is left to read."""
    idle: timedelta = timedelta(seconds=10)
    """How often a new snapshot is looked for while nothing is."""
    lease: timedelta = timedelta(seconds=30)
    """How long a range stays ours without being saved."""


class Snapshots:
    """Reads its share of the ranges that are to be read, again and again, until it is cancelled."""

    def __init__(
        self,
        *,
        store: SnapshotStore,
        rows: Rows,
        catalog: Catalog,
        publisher: Publisher,
        changes: ChangeMaker,
        included: Callable[[str], bool],
        trusted: Callable[[], bool],
        rests: Callable[[str], bool],
        metrics: Metrics,
        stop: Stop,
        options: SnapshotOptions,
        ends: SnapshotEnds,
    ) -> None:
        """Take what it needs; ``trusted`` says whether the topic keeps what is published, ``rests`` what is paused."""
        self._ends = ends
        self._store = store
        self._rows = rows
        self._catalog = catalog
        self._publisher = publisher
        self._changes = changes
        self._included = included
        self._trusted = trusted
        self._rests = rests
        self._metrics = metrics
        self._stop = stop
        self._options = options
        self._held: dict[tuple[str, int], HeldRange] = {}
        self._looks: dict[Nanoseconds, CatalogLook] = {}
        self._looking = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._pace = Pace(options.rows_per_second)
        self._wake = asyncio.Event()
        self._confirmation = asyncio.Event()
        self._unfinished: frozenset[str] = frozenset()
        self._free: Sequence[SnapshotRange] = ()
        """What the last survey found free, and was not claimed since."""
        self._next_survey = 0.0
        """By the event loop's clock."""
        self._merged = ""
        """The table whose ranges were merged last, or could not be."""
        self._failure: BaseException | None = None
        self._log = structlog.get_logger()

    async def keep_reading(self) -> None:
        """Claim ranges, have them read, save how far that is; whatever goes wrong for good is raised."""
        ends = asyncio.create_task(self._ends.keep_telling(), name="ends of snapshots")
        ends.add_done_callback(lambda task: None if task.cancelled() else self._fail(task.exception()))
        try:
            while True:
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                try:
                    await self._save()
                    await self._rest()
                    await self._claim_in_time()
                except TransientError as error:
                    self._log.warning("snapshots_not_saved", error=str(error))
                with contextlib.suppress(TimeoutError):
                    busy = self._held or any(self._reads(table) for table in self._unfinished)
                    pause = self._options.save if busy else self._options.idle
                    async with asyncio.timeout(pause.total_seconds()):
                        await self._wake.wait()
        finally:
            tasks = [ends, *(held.task for held in self._held.values() if held.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def let_go(self) -> None:
        """Save how far everything is that Pub/Sub has confirmed by now, and give the leases back."""
        await self._save(release=True)

    async def over(self) -> bool:
        """Tell whether nothing is left of the tables that are ours, here or elsewhere, and nothing to say of that."""
        survey = await self._store.survey()
        left = any(one.state in UNFINISHED and self._included(one.table) for one in survey.ranges)
        return not left and self._ends.all_told(survey)

    # Sharing

    async def _claim_in_time(self) -> None:
        """Claim ranges, but so that the leases of those that are read are renewed before they end."""
        seconds = self._options.lease.total_seconds() / 2
        try:
            async with asyncio.timeout(seconds):
                survey = await self._survey()
                await self._claim()
                if survey is not None:
                    await self._merge(survey)
        except TimeoutError as error:
            raise TransientError(f"no ranges could be claimed within {seconds:g} s, which is half a lease") from error

    async def _survey(self) -> SnapshotSurvey | None:
        """Survey all ranges; None where that takes too great a part of the time: it reads a row for each range."""
        clock = asyncio.get_running_loop()
        began = clock.time()
        if began < self._next_survey:
            return None
        try:
            survey = await self._store.survey()
        finally:
            took = min(clock.time() - began, self._options.lease.total_seconds() / 2)  # more: the process was suspended
            self._next_survey = began + _SURVEY_PAUSE * took
        self._show(survey)
        self._ends.saw(survey)
        self._free = claimable_ranges(survey.ranges, holding=self._held.keys(), now=survey.now)
        return survey

    def _reads(self, table: str) -> bool:
        return self._included(table) and not self._rests(table)

    async def _merge(self, survey: SnapshotSurvey) -> None:
        """Merge the ranges of one table, another in each round; nothing waits for that."""
        table = min(mergeable(survey.ranges), key=lambda name: (name <= self._merged, name), default=None)
        if table is None:
            return
        self._merged = table
        try:
            await self._store.merge(table)
        except TransientError as error:
            self._log.warning("snapshot_ranges_not_merged", table=table, error=str(error))

    async def _claim(self) -> None:
        """Claim ranges that the last survey found free, each once: another reader may have claimed it since."""
        room = max(0, self._options.at_once - len(self._held))
        due = [one.place for one in self._free if self._reads(one.table)][:room]
        if not due:
            return
        self._free = [one for one in self._free if one.place not in due]
        for claimed in await self._store.claim(due):
            held = self._held[claimed.place] = HeldRange(claimed, in_key_order=self._rows.in_key_order)
            name = f"snapshot of {claimed.table}, range {claimed.number}"
            held.task = asyncio.create_task(self._follow(held), name=name)
            held.task.add_done_callback(partial(self._on_over, held))
            self._log.info(
                "snapshot_range_claimed",
                table=claimed.table,
                range=claimed.number,
                read_timestamp=format_timestamp(claimed.read_at),
                rows=claimed.rows,
            )

    async def _rest(self) -> None:
        """Read no more of what is paused; how far it is stays, and whoever resumes goes on from there."""
        resting = [one for one in self._held.values() if self._rests(one.range.table) and not one.over]
        for held in resting:
            held.over = True
            if held.task is not None:
                held.task.cancel()
                await asyncio.gather(held.task, return_exceptions=True)
            self._held.pop(held.range.place, None)
        if resting and self._trusted():
            await self._store.save([one.progress for one in resting], release=True)

    def _show(self, survey: SnapshotSurvey) -> None:
        left = Counter(one.table for one in survey.ranges if one.state in UNFINISHED)
        self._metrics.snapshots_left(left)
        for table in self._unfinished - left.keys():
            rows = sum(one.rows for one in survey.ranges if one.table == table)
            self._log.info("snapshot_finished", table=table, rows=rows)
        for table in left.keys() - self._unfinished:
            if not self._included(table):
                self._log.info("snapshot_left_to_others", table=table, why="the tables file here leaves the table out")
        self._unfinished = frozenset(left)

    async def _save(self, *, release: bool = False) -> None:
        async with self._saving:
            held = [one for one in self._held.values() if not one.over]
            if not held or not self._trusted():
                return
            progress = [one.progress for one in held]
            lost = await self._store.save(progress, release=release)
        self._lose(lost)
        for one, saved in zip(held, progress, strict=True):
            if saved.done and saved.range.place not in lost:
                one.over = True
                self._held.pop(saved.range.place, None)
                self._log.info(
                    "snapshot_range_read", table=saved.range.table, range=saved.range.number, rows=saved.rows
                )

    def _lose(self, lost: Collection[tuple[str, int]]) -> None:
        for place in lost:
            held = self._held.get(place)
            if held is not None and held.task is not None and not held.over:
                held.over = True
                held.task.cancel()
                if held.task.done():
                    self._held.pop(place)
                self._log.warning("snapshot_range_lost", table=place[0], range=place[1])

    def _on_over(self, held: HeldRange, task: "asyncio.Task[None]") -> None:
        if held.over:
            self._held.pop(held.range.place, None)
        if not task.cancelled():
            self._fail(task.exception())
        self._confirmation.set()  # what it waited for is no more
        self._wake.set()

    def _fail(self, error: BaseException | None) -> None:
        if error is not None and not (isinstance(error, TransientError) and self._stop.requested):
            self._failure = self._failure or error
            self._wake.set()

    # One range

    async def _follow(self, held: HeldRange) -> None:
        """Read a range to its end, until all of it is confirmed."""
        renewed_with: int | None = None  # of the rows taken by then
        while True:
            before = held.taken
            try:
                name = f"read range {held.range.number} of {held.range.table}"
                async for attempt in retrying_async(self._stop, name=name):
                    with attempt:
                        await self._read(held)
                break
            except NotReadableError as error:
                if renewed_with == held.taken:  # no row since: so it is not a matter of time
                    await self._tell_and_wait(held, error)
                if held.taken > before and not held.in_key_order:
                    await self._read_in_key_order(held)
                await self._renew(held, str(error))
                renewed_with = held.taken
            except MisconfiguredError as error:
                await self._tell_and_wait(held, error)
        held.complete = True

    async def _read(self, held: HeldRange) -> None:
        """Read what is left of a range and publish it; return when all of it is confirmed."""
        until = await self._good_until(held)
        table = await self._table(held)
        if table is None:
            self._log.warning("snapshot_of_no_table", table=held.range.table, why="dropped, or not watched any more")
            held.over = True  # given up: of what was not read nobody may take it that it is not there
            await self._store.give_up(held.range)
            return
        if held.range.state is RangeState.REQUESTED and not await self._cut(held, table):
            return
        header = self._changes.header(table.name, table.column_types, table.value_capture_type)
        header = msgspec.structs.replace(header, origin="snapshot")
        maker = RowMaker(header, held.read_at, self._changes.buckets_of(table.name))
        types = {column.name: column for column in table.column_types}
        table = replace(table, column_types=tuple(types[column.name] for column in header.columns))
        if not held.in_key_order:  # from its beginning, then
            await self._confirmed(held)
            held.begin_anew()
        after = held.range.after if held.read_to is None else held.read_to
        reading = self._rows.read(
            table, held.read_at, after=after, until=held.range.until, in_key_order=held.in_key_order
        )
        async with aclosing(reading) as batches:
            async for rows in batches:
                for start in range(0, len(rows), _ROWS_AT_ONCE):
                    await self._publish(held, maker, rows[start : start + _ROWS_AT_ONCE], until)
        await self._confirmed(held)

    async def _table(self, held: HeldRange) -> WatchedTable | None:
        """Return the table as it was at the time of reading; None if it was not there, or not watched."""
        async with self._looking:
            look = self._looks.get(held.read_at)
            if look is None:
                look = await self._catalog.look_back(held.read_at)
                if look is None:
                    raise NotReadableError("the database does not remember that time any more")
                self._keep_look(held.read_at, look)
        return next((one for one in look.watched if one.name == held.range.table), None)

    async def _good_until(self, held: HeldRange) -> float:
        """Return when, by the event loop's clock, a range's time will be too old."""
        asked_at, now = asyncio.get_running_loop().time(), await self._store.now()
        if too_old(held.read_at, now):
            raise NotReadableError(_NEARLY_TOO_OLD)
        return asked_at + (OLDEST_READ - timedelta(microseconds=(now - held.read_at) / 1_000)).total_seconds()

    async def _read_in_key_order(self, held: HeldRange) -> None:
        """Read a range once more from its beginning, but so that it goes on where the next time is too old, too."""
        await self._confirmed(held)
        held.begin_anew()
        held.in_key_order = True
        self._log.warning(
            "snapshot_range_read_without_data_boost",
            table=held.range.table,
            range=held.range.number,
            why="reading it takes longer than its time can be read, and what comes in no order would begin again",
        )

    async def _renew(self, held: HeldRange, why: str) -> None:
        """Let what is left of a range be read as it is now."""
        async with self._looking:
            look = await retried(self._stop, self._catalog.look)
            read_at = Nanoseconds(look.shapes.at // 1_000 * 1_000)
            self._keep_look(read_at, look)
        self._log.info(
            "snapshot_goes_on_at_a_new_time",
            table=held.range.table,
            range=held.range.number,
            read_timestamp=format_timestamp(read_at),
            why=why,
        )
        held.read_at = read_at

    def _keep_look(self, at: Nanoseconds, look: CatalogLook) -> None:
        if len(self._looks) >= _LOOKS_KEPT:
            self._looks.pop(next(iter(self._looks)))
        self._looks[at] = look

    async def _cut(self, held: HeldRange, table: WatchedTable) -> bool:
        """Cut a range into parts, so that others can read some of them; tell whether its first part is ours."""
        whole = held.range.after is None and held.range.until is None
        try:
            cuts = await self._rows.cuts(table, held.read_at) if whole else ()
        except NotReadableError:
            raise
        except MisconfiguredError as error:  # a right that only this needs: one reader reads it all, then
            self._log.warning("snapshot_not_cut", table=table.name, error=str(error))
            cuts = ()
        cut = await self._store.cut(held.range, cuts)
        if cut is None:
            self._lose([held.range.place])
            return False
        held.range = cut
        return True

    async def _publish(self, held: HeldRange, maker: RowMaker, rows: Sequence[Sequence[object]], until: float) -> None:
        await self._pace.wait_for(len(rows))
        while self._unconfirmed_bytes >= self._options.unconfirmed_bytes:
            await self._moved()
        if asyncio.get_running_loop().time() > until:  # now, not before what may have taken hours
            raise NotReadableError(_NEARLY_TOO_OLD)
        changes = sorted(maker.changes(rows), key=itemgetter(0))  # by ordering key: taken and packed faster
        taken = held.keys.add(maker.key_text(rows[-1]), len(rows), sum(change.size() for _key, change in changes))
        held.read_to = taken.last
        held.taken += taken.rows
        try:
            future = await self._publisher.publish(maker.header, changes)
        except MisconfiguredError as error:  # not this range's trouble: the stream has it, too
            self._fail(error)
            await asyncio.Future()  # until everything here is ended
            raise
        future.add_done_callback(partial(self._on_published, held, held.keys, taken))

    def _on_published(
        self, held: HeldRange, keys: ConfirmedKeys, taken: TakenRows, done: "asyncio.Future[None]"
    ) -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self._fail(done.exception())
            return
        keys.confirm(taken)
        self._confirmation.set()
        self._metrics.snapshot_read(held.range.table, taken.rows)

    @property
    def _unconfirmed_bytes(self) -> int:
        return sum(held.keys.outstanding_bytes for held in self._held.values())

    async def _confirmed(self, held: HeldRange) -> None:
        while not held.keys.all_confirmed:
            await self._moved()

    async def _moved(self) -> None:
        self._confirmation.clear()
        await self._confirmation.wait()

    async def _tell_and_wait(self, held: HeldRange, error: MisconfiguredError) -> None:
        self._log.error("snapshot_stands_still", table=held.range.table, range=held.range.number, error=str(error))
        await asyncio.sleep(_TRY_AGAIN.total_seconds())
