"""Announces each complete snapshot of a Spanner table: in the topic, and to the resync request that its table may have.

A batch without changes says in its header since when all rows of the table are published, so that the owner of a mirror
knows that older rows of it are no longer in the source. It is announced at least once: by every reader that sees the
end of a snapshot, and again by each one that starts soon after it. An end of long ago is not announced again: under a
new time of publishing it would be believed while its rows have become too old to be applied. Nor is the end of a
snapshot of which the topic may have lost rows, however many were confirmed.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.schema.shapes import SpannerResyncRequest
from services.spanner_reader.core.snapshot.snapshot import (
    CompleteSnapshot,
    SnapshotSurvey,
    complete_snapshots,
    lost_until,
)
from services.spanner_reader.ports import DatabaseSnapshotStore, ShapeStore, WatchedTable
from shared.contracts.change_sequence import four_sections
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds
from shared.reading.publishing import ChangePublisher


class SpannerSnapshotEnds:
    """What one reader has announced of the ends of snapshots; requests one for a table that needs it."""

    def __init__(
        self,
        store: DatabaseSnapshotStore,
        shapes: ShapeStore,
        tables: MirroredTables,
        publisher: ChangePublisher,
        metrics: SpannerReaderMetrics,
        *,
        automatic: bool,
    ) -> None:
        """``automatic``: request a snapshot of each table that is pending resync."""
        self.news = asyncio.Event()
        self._store = store
        self._shapes = shapes
        self._tables = tables
        self._publisher = publisher
        self._metrics = metrics
        self._automatic = automatic
        self._complete: Sequence[CompleteSnapshot] = ()
        self._announced: set[tuple[str, int]] = set()
        self._too_old: set[tuple[str, int]] = set()  # to be announced
        self._lost: set[tuple[str, int]] = set()  # with messages of the topic, as far as is known
        self._others: set[tuple[str, int]] = set()  # of tables that are not mirrored here
        self._logged: set[tuple[str, int]] = set()  # of those that are too old
        self._log = structlog.get_logger()

    def learn(self, survey: SnapshotSurvey) -> None:
        """Remember which snapshots are complete."""
        self._complete = complete_snapshots(survey.ranges)
        if self._unannounced:
            self.news.set()

    def all_announced(self, survey: SnapshotSurvey) -> bool:
        """Return whether the end of each complete snapshot is announced, or never will be."""
        self.learn(survey)
        return not self._unannounced

    async def announce(self, *, trusted: bool) -> None:
        """Announce complete snapshots, and request one for each table that needs it. TransientError."""
        if trusted and self._unannounced:
            await self._announce_all()
        await self._check_requests()

    @property
    def _unannounced(self) -> Sequence[CompleteSnapshot]:
        settled = self._announced | self._too_old | self._others | self._lost
        return [one for one in self._complete if (one.table, one.run) not in settled]

    async def _announce_all(self) -> None:
        unannounced = self._unannounced
        inspection = await self._tables.catalog.inspect()
        self._check_losses(await self._shapes.resync_requests())
        for one in unannounced:
            table = next((each for each in inspection.watched if each.name == one.table), None)
            if table is None or not self._tables.included(one.table):
                self._others.add((one.table, one.run))
            elif (one.table, one.run) in self._lost:
                continue
            elif one.may_be_announced(inspection.shapes.at):
                await self._announce(one, table)
                self._announced.add((one.table, one.run))
            else:
                self._too_old.add((one.table, one.run))

    def _check_losses(self, requests: Sequence[SpannerResyncRequest]) -> None:
        """Remember of which snapshots the topic may have lost rows, until the resync request is deleted."""
        before, self._lost = self._lost, set()
        for one in self._complete:
            place, until = (one.table, one.run), lost_until(one.table, one.since, requests)
            if until is None or place in self._announced:
                continue
            self._lost.add(place)
            if place not in before:
                self._log.warning(
                    "snapshot_end_withheld",
                    table=one.table,
                    snapshot=format_timestamp(one.since),
                    why=f"the topic lost messages until {format_timestamp(until)}, and rows of it may be among them",
                    fix="take another snapshot; RESYNC=automatic does",
                )

    async def _announce(self, one: CompleteSnapshot, table: WatchedTable) -> None:
        self._tables.changes.learn({table.name: table.primary_key})
        since = str(four_sections(microseconds(one.since)))
        header = msgspec.structs.replace(self._tables.snapshot_header(table), complete_since=since)
        await (await self._publisher.publish(header, []))
        self._log.info("snapshot_complete", table=one.table, complete_since=format_timestamp(one.since))

    async def _check_requests(self) -> None:
        """Delete the resync requests that a snapshot has answered; if automatic, request a snapshot for those left.

        A snapshot answers a resync request if its end was announced here. Of one that ended while no reader ran, and
        was too old for the next reader to announce, no owner of a mirror knows: its table takes another one.
        """
        requests = await self._shapes.resync_requests()
        self._check_losses(requests)
        announced = {one.table: one for one in self._complete if (one.table, one.run) in self._announced}
        left = []
        for request in requests:
            end = announced.get(request.table)
            if end is not None and await self._shapes.healed(request.table, end.since):
                self._log.info("table_healed", table=request.table, snapshot=format_timestamp(end.since))
            else:
                left.append(request)
                self._unannounced_since(request)
        if len(left) < len(requests) or (left and self._automatic):
            inspection = await self._tables.catalog.inspect()
            self._metrics.set_pending_resync(left, inspection.quote)
            if self._automatic:
                watched = {table.name for table in inspection.watched if self._tables.included(table.name)}
                for request in left:
                    # A snapshot of now would not heal a table that is paused.
                    if request.table in watched and request.sync_after < inspection.shapes.at:
                        since = max(request.sync_after, self._unannounced_since(request))
                        await self._request(request.table, Nanoseconds(inspection.shapes.at // 1_000 * 1_000), since)

    def _unannounced_since(self, request: SpannerResyncRequest) -> Nanoseconds:
        """Return when a snapshot began that would have answered the request if it had been announced; log it once."""
        for one in self._complete:
            place = (one.table, one.run)
            if one.table == request.table and one.since > request.sync_after and place in self._too_old:
                if place not in self._logged:
                    self._logged.add(place)
                    self._log.warning(
                        "snapshot_too_old_to_heal",
                        table=one.table,
                        snapshot=format_timestamp(one.since),
                        why="no reader that ran in the day after it began has announced that it is complete",
                        fix="take another snapshot; RESYNC=automatic does",
                    )
                return one.since
        return Nanoseconds(0)

    async def _request(self, table: str, at: Nanoseconds, since: Nanoseconds) -> None:
        if await self._store.request_unless_since(table, at, since):
            self._log.info(
                "snapshot_requested",
                tables=[table],
                read_timestamp=format_timestamp(at),
                why="the table is pending resync, and RESYNC=automatic",
            )
