"""Announces the end of a snapshot in the topic: every row of the table is published, under a number or a higher one.

It removes the resync request that the table may have; where one is left, another snapshot is requested if that is
automatic. Of a snapshot of which the topic may have lost rows nothing is announced, however many were confirmed: they
are not read again.
"""

import asyncio
from typing import Final

import msgspec
import structlog

from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.snapshot.snapshot_source import SurveyedSnapshot
from services.bigtable_reader.app.snapshot.snapshot_status import ANOTHER, LOST
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, BigtableResyncRequest, heals
from services.bigtable_reader.core.snapshot.snapshot import Snapshot
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.ports import ResyncStore, TableSnapshotStore
from shared.contracts.change_sequence import four_sections
from shared.reading.publishing import ChangePublisher

_AT_EACH_SURVEY: Final = {BigtableResyncKind.WATCHED_MORE}


class BigtableSnapshotEnds:
    """Announces the end of the latest snapshot, at least once, whichever reader sees it.

    A snapshot that a reader with another tables file requested is not this reader's to announce.
    """

    def __init__(
        self,
        store: TableSnapshotStore,
        resync: ResyncStore,
        rows: MirroredRows,
        publisher: ChangePublisher,
        *,
        automatic: bool,
    ) -> None:
        """``automatic``: request a snapshot of a table that is pending resync."""
        self.news = asyncio.Event()
        self._store = store
        self._resync = resync
        self._rows = rows
        self._publisher = publisher
        self._automatic = automatic
        self._latest: SurveyedSnapshot | None = None
        self._taken_over = False
        self._lost_run = 0  # in the log
        self._log = structlog.get_logger().bind(table=rows.table)

    def learn(self, survey: SurveyedSnapshot) -> None:
        """Remember the latest snapshot and the resync request, unless the stream is paused."""
        if survey.running is not None:
            self._latest = survey
            self.news.set()

    def all_announced(self, survey: SurveyedSnapshot) -> bool:
        """Return whether the end of the latest snapshot is announced, or never will be."""
        resync_request = None if survey.stream_ranges is None else survey.stream_ranges.resync_request
        return survey.snapshot is None or not self.is_to_be_announced(survey.snapshot, resync_request)

    def is_to_be_announced(self, snapshot: Snapshot, resync_request: BigtableResyncRequest | None) -> bool:
        """Return whether all rows were read and confirmed, the topic has lost none, and no reader announced it."""
        lost = resync_request is not None and snapshot.run <= resync_request.lost_run
        return snapshot.unannounced and not lost and self._brings_all(snapshot)

    async def announce(self, *, trusted: bool) -> None:
        """Act on the latest snapshot and the resync request. TransientError, MisconfiguredError."""
        latest, self._latest = self._latest, None
        if latest is None or (stream_ranges := latest.running) is None:
            return
        snapshot = latest.snapshot
        if not self._taken_over and await self._take_over(stream_ranges):
            return  # the snapshot is another one now
        if snapshot is not None and self.is_to_be_announced(snapshot, stream_ranges.resync_request) and trusted:
            if self.is_to_be_announced(snapshot, await self._resync.read()):  # the survey was a moment ago
                await self._announce(snapshot)
        elif stream_ranges.resync_request is not None:
            self._log_if_lost(snapshot, stream_ranges.resync_request)
            if snapshot is not None and snapshot.announced and snapshot.complete_since and self._brings_all(snapshot):
                await self._resync.heal(snapshot.run, self._rows.watching)  # it was stored after that was announced
            if self._automatic:
                await self._request(snapshot, stream_ranges)

    async def _announce(self, snapshot: Snapshot) -> None:
        """Publish the end, remove the resync request that it heals, remember that it was announced, in this order."""
        since = snapshot.complete_since
        if since is None:
            return
        header = msgspec.structs.replace(
            self._rows.images.header,
            origin="snapshot",
            complete_since=str(four_sections(since)),
            read_since=snapshot.read_since,
        )
        await (await self._publisher.publish(header, []))
        await self._resync.heal(snapshot.run, self._rows.watching)
        await self._store.remember_announced(snapshot.run)
        self._log.info("snapshot_complete", complete_since=header.complete_since)

    def _log_if_lost(self, snapshot: Snapshot | None, resync_request: BigtableResyncRequest) -> None:
        """Log once of a snapshot that is complete why that is not announced."""
        if snapshot is not None and snapshot.unannounced and self._lost_run < snapshot.run <= resync_request.lost_run:
            self._lost_run = snapshot.run
            self._log.warning("snapshot_end_withheld", why=LOST, fix=ANOTHER)

    def _brings_all(self, snapshot: Snapshot) -> bool:
        return snapshot.is_of(self._rows.watching) and snapshot.covers(self._rows.keys)

    async def _take_over(self, stream_ranges: BigtablePartitionSurvey) -> bool:
        """Request, once, what a reader with another tables file did: the reader that starts last has the right one."""
        taken_over = await self._store.take_over(self._rows.keys, stream_ranges.now)
        if taken_over:
            self._log_request("the one before was requested with another tables file, and not read to its end")
        self._taken_over = True
        return taken_over

    async def _request(self, snapshot: Snapshot | None, stream_ranges: BigtablePartitionSurvey) -> None:
        """Request what heals; where readers differ, which each survey finds, only once the latest one is read."""
        resync_request = await self._resync.read()  # the survey was a moment ago
        ours = (
            []
            if resync_request is None
            else [one for one in resync_request.findings if heals(one, self._rows.watching)]
        )
        if not ours or (snapshot is not None and snapshot.unfinished and {one.kind for one in ours} == _AT_EACH_SURVEY):
            return
        if await self._store.request_unless_after(self._rows.keys, stream_ranges.now, max(one.run for one in ours)):
            self._log_request("the table is pending resync, and RESYNC=automatic")

    def _log_request(self, why: str) -> None:
        self._log.info("snapshot_requested", keys=[str(keys) for keys in self._rows.keys], why=why)
