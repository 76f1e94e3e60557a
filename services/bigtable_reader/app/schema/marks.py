"""Marks the table where what was found means that rows of the mirror may be wrong; says so, and when the mark goes."""

from collections.abc import Callable, Collection

import structlog

from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, BigtableResyncRequest, cure
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.ports import ResyncStore, TableSnapshotStore, VersionClock


class Marks:
    """What one reader finds. The latest snapshot is asked for after it is found: `core/resync.py` says why."""

    def __init__(
        self,
        store: ResyncStore,
        snapshots: TableSnapshotStore,
        is_watched: Callable[[str], bool],
        clock: VersionClock,
        watching: Watching,
    ) -> None:
        """Take what it needs; ``is_watched`` says which families the mirror has."""
        self.watching = watching
        self.is_watched = is_watched
        self._store = store
        self._snapshots = snapshots
        self._clock = clock

    async def compare(self, known: Collection[str] | None, found: Collection[str]) -> None:
        """Mark the table where families were dropped, unless another reader has; ``known``: what this one knew.

        And where more is watched than by whoever compared last. Without a mirror that is remembered, and all.
        """
        run = await self._run()
        await self._store.compare(known, found, self.is_watched, self._clock.now(), run, self.watching)

    async def mark(self, kind: BigtableResyncKind) -> None:
        """Mark the table, where there is a mirror: nothing heals a change log."""
        if self.watching.mirrored:
            await self._store.mark(kind, self._clock.now(), await self._run())

    async def _run(self) -> int:
        latest = await self._snapshots.survey()
        return 0 if latest is None else latest.run


class MarkWatch:
    """Follows what surveys show of the mark."""

    def __init__(self) -> None:
        self._known: BigtableResyncRequest | None = None
        self._log = structlog.get_logger()

    def told(self, mark: BigtableResyncRequest | None) -> None:
        """Take the mark as it is; None: there is none."""
        if mark == self._known:
            return
        if mark is not None:
            self._log.error(
                "table_needs_resync",
                table=mark.table,
                since=shown(mark.since),
                why=[finding.kind for finding in mark.findings],
                options=sorted({name for finding in mark.findings for name in finding.options}),
                families=sorted({name for finding in mark.findings for name in finding.families}),
                fix=cure(mark),
            )
        elif self._known is not None:
            self._log.info("table_healed", table=self._known.table)
        self._known = mark
