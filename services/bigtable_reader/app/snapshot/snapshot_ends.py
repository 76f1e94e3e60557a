"""The end of a snapshot, said in the topic: every row of the table is published, under a number or a higher one.

It takes away the mark that the table may have, and where one is left another snapshot is asked for, if set so. Of a
snapshot of which the topic may have lost rows nothing is said, however many were confirmed: they are not read again.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from services.bigtable_reader.app.snapshot.snapshot_status import ANOTHER, LOST
from services.bigtable_reader.core.changes.images import ImageMaker
from services.bigtable_reader.core.schema.resync import Kind, Mark, heals
from services.bigtable_reader.core.snapshot.snapshot import Snapshot
from services.bigtable_reader.core.stream.partitions import Survey
from services.bigtable_reader.core.stream.records import KeyRange
from services.bigtable_reader.ports import Publisher, ResyncStore, SnapshotStore
from shared.contracts.change_sequence import four_sections

_AT_EACH_LOOK: Final = {Kind.WATCHED_MORE}


class SnapshotEnds:
    """Says it, at least once; whichever reader comes to see it.

    ``keys`` that this reader watches, and the digest of all that it watches: whoever asked for the snapshot may have
    had another tables file, and then it is not this reader's to read, nor its end to tell. ``trusted`` says
    whether the topic keeps what is published. ``automatic``: a marked table is snapshot without being asked for.
    """

    def __init__(
        self,
        *,
        store: SnapshotStore,
        resync: ResyncStore,
        images: ImageMaker,
        publisher: Publisher,
        keys: Sequence[KeyRange],
        watching: str,
        trusted: Callable[[], bool],
        automatic: bool,
    ) -> None:
        self._store = store
        self._resync = resync
        self._images = images
        self._publisher = publisher
        self._keys = keys
        self._watching = watching
        self._taken_over = False
        self._trusted = trusted
        self._automatic = automatic
        self._lost_run = 0  # in the log
        self._log = structlog.get_logger().bind(table=images.header.table)

    def is_ours(self, snapshot: Snapshot) -> bool:
        """Tell whether it was asked for by somebody who watches what this reader does."""
        return snapshot.is_of(self._watching)

    def is_to_be_told(self, snapshot: Snapshot, mark: Mark | None) -> bool:
        """Tell whether all rows were read and confirmed, the topic may have lost none, and nobody has said so."""
        lost = mark is not None and snapshot.run <= mark.lost_run
        return snapshot.untold and not lost and self._brings_all(snapshot)

    async def look(self, snapshot: Snapshot | None, survey: Survey) -> None:
        """Do what there is to do about the latest snapshot and the mark. TransientError, MisconfiguredError."""
        if not self._taken_over:  # once: whoever starts last has the file that is meant
            await self._take_over(survey)
        elif snapshot is not None and self.is_to_be_told(snapshot, survey.mark) and self._trusted():
            if self.is_to_be_told(snapshot, await self._resync.read()):  # the survey was a moment ago
                await self._tell(snapshot)
        elif survey.mark is not None:
            self._say_if_lost(snapshot, survey.mark)
            if snapshot is not None and snapshot.told and snapshot.complete_since and self._brings_all(snapshot):
                await self._resync.heal(snapshot.run, self._watching)  # told by a reader that knows of no marks
            if self._automatic:
                await self._ask(snapshot, survey)

    async def _tell(self, snapshot: Snapshot) -> None:
        """Publish it, take away what it has mended, and remember that it was told, in this order."""
        since = snapshot.complete_since
        if since is None:
            return
        header = msgspec.structs.replace(
            self._images.header,
            origin="snapshot",
            complete_since=str(four_sections(since)),
            read_since=snapshot.read_since,
        )
        await (await self._publisher.publish(header, []))
        await self._resync.heal(snapshot.run, self._watching)
        await self._store.told(snapshot.run)
        self._log.info("snapshot_complete", complete_since=header.complete_since)

    def _say_if_lost(self, snapshot: Snapshot | None, mark: Mark) -> None:
        """Say once of a snapshot that is complete why that is not told."""
        if snapshot is not None and snapshot.untold and self._lost_run < snapshot.run <= mark.lost_run:
            self._lost_run = snapshot.run
            self._log.warning("snapshot_not_told", why=LOST, fix=ANOTHER)

    def _brings_all(self, snapshot: Snapshot) -> bool:
        return self.is_ours(snapshot) and snapshot.covers(self._keys)

    async def _take_over(self, survey: Survey) -> None:
        if await self._store.take_over(self._keys, survey.now):
            self._log.info(
                "snapshot_requested",
                keys=[str(keys) for keys in self._keys],
                why="the one before was asked for with another tables file, and not read to its end",
            )
        self._taken_over = True

    async def _ask(self, snapshot: Snapshot | None, survey: Survey) -> None:
        """Ask for what heals; where readers differ, which each look finds, only once what was asked for is read."""
        mark = await self._resync.read()  # the survey was a moment ago
        ours = [] if mark is None else [one for one in mark.findings if heals(one, self._watching)]
        if not ours or (snapshot is not None and snapshot.unfinished and {one.kind for one in ours} == _AT_EACH_LOOK):
            return
        if await self._store.request_unless_after(self._keys, survey.now, max(one.run for one in ours)):
            self._log.info(
                "snapshot_requested",
                keys=[str(keys) for keys in self._keys],
                why="the table needs re-sync, and RESYNC=automatic",
            )
