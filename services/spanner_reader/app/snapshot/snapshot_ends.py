"""Says of each snapshot that is at its end that it is: in the topic, and to the mark that its table may have.

A batch without changes says in its header from when on all rows of the table are published, so that whoever keeps a
mirror of it knows that what is older in there is not in the source any more. It is said at least once: by every reader
that sees the end of a snapshot, and again by each one that starts soon after it. An end of long ago is not said again:
under a new time of publishing it would be believed while its rows have become too old to be applied. Nor is the end of
one of which the topic may have lost rows, however many were confirmed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import structlog

from services.spanner_reader.core.schema.shapes import Mark
from services.spanner_reader.core.snapshot.snapshot import (
    CompleteSnapshot,
    SnapshotSurvey,
    complete_snapshots,
    lost_until,
)
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.ports import Catalog, Metrics, Publisher, ShapeStore, SnapshotStore, WatchedTable
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds


class SnapshotEnds:
    """What one reader has said of the ends of snapshots, and asks for where a table needs another one."""

    def __init__(
        self,
        *,
        store: SnapshotStore,
        shapes: ShapeStore,
        catalog: Catalog,
        publisher: Publisher,
        changes: ChangeMaker,
        included: Callable[[str], bool],
        trusted: Callable[[], bool],
        metrics: Metrics,
        automatic: bool,
        every: timedelta,
    ) -> None:
        """Take what it needs; ``automatic``: a table that needs re-sync is snapshot again without being asked for."""
        self._store = store
        self._shapes = shapes
        self._catalog = catalog
        self._publisher = publisher
        self._changes = changes
        self._included = included
        self._trusted = trusted
        self._metrics = metrics
        self._automatic = automatic
        self._every = every
        self._complete: Sequence[CompleteSnapshot] = ()
        self._told: set[tuple[str, int]] = set()
        self._too_old: set[tuple[str, int]] = set()  # for that
        self._lost: set[tuple[str, int]] = set()  # with messages of the topic, as far as is known
        self._others: set[tuple[str, int]] = set()  # of tables that are not mirrored here
        self._said: set[tuple[str, int]] = set()  # in the log, of those that are too old
        self._something_new = asyncio.Event()
        self._log = structlog.get_logger()

    def saw(self, survey: SnapshotSurvey) -> None:
        """Notice which snapshots are at their end."""
        self._complete = complete_snapshots(survey.ranges)
        if self._untold:
            self._something_new.set()

    def all_told(self, survey: SnapshotSurvey) -> bool:
        """Tell whether of every snapshot that is at its end it is said so."""
        self.saw(survey)
        return not self._untold

    async def keep_telling(self) -> None:
        """Tell again and again, until cancelled; whatever goes wrong for good is raised."""
        while True:
            self._something_new.clear()
            try:
                await self._tell()
                await self._look_at_marks()
            except TransientError as error:
                self._log.warning("snapshot_ends_not_told", error=str(error))
                await asyncio.sleep(1)
                self._something_new.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every.total_seconds()):
                    await self._something_new.wait()

    @property
    def _untold(self) -> Sequence[CompleteSnapshot]:
        settled = self._told | self._too_old | self._others | self._lost
        return [one for one in self._complete if (one.table, one.run) not in settled]

    async def _tell(self) -> None:
        untold = self._untold
        if not untold or not self._trusted():
            return
        look = await self._catalog.look()
        self._look_for_losses(await self._shapes.marks())
        for one in untold:
            table = next((each for each in look.watched if each.name == one.table), None)
            if table is None or not self._included(one.table):
                self._others.add((one.table, one.run))
            elif (one.table, one.run) in self._lost:
                continue
            elif one.may_be_told(look.shapes.at):
                await self._tell_of(one, table)
                self._told.add((one.table, one.run))
            else:
                self._too_old.add((one.table, one.run))

    def _look_for_losses(self, marks: Sequence[Mark]) -> None:
        """Notice of which snapshots the topic may have lost rows, until a mark goes: then all rows came again."""
        before, self._lost = self._lost, set()
        for one in self._complete:
            place, until = (one.table, one.run), lost_until(one.table, one.since, marks)
            if until is None or place in self._told:
                continue
            self._lost.add(place)
            if place not in before:
                self._log.warning(
                    "snapshot_not_told",
                    table=one.table,
                    snapshot=format_timestamp(one.since),
                    why=f"the topic lost messages until {format_timestamp(until)}, and rows of it may be among them",
                    fix="take another snapshot; RESYNC=automatic does",
                )

    async def _tell_of(self, one: CompleteSnapshot, table: WatchedTable) -> None:
        self._changes.learn({table.name: table.primary_key})
        header = self._changes.header(table.name, table.column_types, table.value_capture_type)
        since = str(four_sections(microseconds(one.since)))
        header = msgspec.structs.replace(header, origin="snapshot", complete_since=since)
        await (await self._publisher.publish(header, []))
        self._log.info("snapshot_complete", table=one.table, complete_since=format_timestamp(one.since))

    async def _look_at_marks(self) -> None:
        """Take away the marks that a snapshot has healed, and ask for one where a mark is left, if told so.

        A snapshot heals a mark if its end was told here. Of one that ended while no reader ran, and was too old to be
        told by the next, nobody who keeps a mirror has heard: it takes another one.
        """
        marks = await self._shapes.marks()
        self._look_for_losses(marks)
        told = {one.table: one for one in self._complete if (one.table, one.run) in self._told}
        left = []
        for mark in marks:
            end = told.get(mark.table)
            if end is not None and await self._shapes.healed(mark.table, end.since):
                self._log.info("table_healed", table=mark.table, snapshot=format_timestamp(end.since))
            else:
                left.append(mark)
                self._untold_since(mark)
        if len(left) < len(marks) or (left and self._automatic):
            look = await self._catalog.look()
            self._metrics.need_resync(left, look.quote)
            if self._automatic:
                watched = {table.name for table in look.watched if self._included(table.name)}
                for mark in left:
                    # One that is paused, say, no snapshot of now would heal.
                    if mark.table in watched and mark.sync_after < look.shapes.at:
                        since = max(mark.sync_after, self._untold_since(mark))
                        await self._ask_for(mark.table, Nanoseconds(look.shapes.at // 1_000 * 1_000), since)

    def _untold_since(self, mark: Mark) -> Nanoseconds:
        """Return when a snapshot began that would have healed a mark if its end had been told; say so once."""
        for one in self._complete:
            place = (one.table, one.run)
            if one.table == mark.table and one.since > mark.sync_after and place in self._too_old:
                if place not in self._said:
                    self._said.add(place)
                    self._log.warning(
                        "snapshot_too_old_to_heal",
                        table=one.table,
                        snapshot=format_timestamp(one.since),
                        why="no reader that ran in the day after it began has said that it is complete",
                        fix="take another snapshot; RESYNC=automatic does",
                    )
                return one.since
        return Nanoseconds(0)

    async def _ask_for(self, table: str, at: Nanoseconds, since: Nanoseconds) -> None:
        if await self._store.request_unless_since(table, at, since):
            self._log.info(
                "snapshot_requested",
                tables=[table],
                read_timestamp=format_timestamp(at),
                why="the table needs re-sync, and RESYNC=automatic",
            )
