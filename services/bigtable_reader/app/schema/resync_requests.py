"""Requests a resync of the table where rows of the mirror may be wrong, and logs when a request begins and ends."""

from collections.abc import Callable, Collection

import structlog

from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, BigtableResyncRequest, fix_of
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.ports import ResyncStore, TableSnapshotStore, VersionClock


class ResyncRequests:
    """The requests of one reader. It reads the latest snapshot after the cause is found (`core/schema/resync.py`)."""

    def __init__(
        self,
        store: ResyncStore,
        snapshots: TableSnapshotStore,
        is_watched: Callable[[str], bool],
        clock: VersionClock,
        watching: Watching,
    ) -> None:
        """``is_watched`` returns whether the mirror has a family."""
        self.watching = watching
        self.is_watched = is_watched
        self._store = store
        self._snapshots = snapshots
        self._clock = clock

    async def compare(self, known: Collection[str] | None, found: Collection[str]) -> None:
        """Request a resync where families were dropped or more is watched, unless another reader has.

        ``known``: the families that this reader knew. Without a mirror, the comparison is only remembered.
        """
        run = await self._run()
        await self._store.compare(known, found, self.is_watched, self._clock.now(), run, self.watching)

    async def request(self, kind: BigtableResyncKind) -> None:
        """Request a resync if there is a mirror: no snapshot completes a change log."""
        if self.watching.mirrored:
            await self._store.request(kind, self._clock.now(), await self._run())

    async def _run(self) -> int:
        latest = await self._snapshots.survey()
        return 0 if latest is None else latest.run


class ResyncWatch:
    """Logs when surveys begin and cease to show a resync request."""

    def __init__(self) -> None:
        self._known: BigtableResyncRequest | None = None
        self._log = structlog.get_logger()

    def observe(self, request: BigtableResyncRequest | None) -> None:
        """Take the request that the latest survey shows; None: there is none."""
        if request == self._known:
            return
        if request is not None:
            self._log.error(
                "resync_requested",
                table=request.table,
                since=shown(request.since),
                why=[finding.kind for finding in request.findings],
                options=sorted({name for finding in request.findings for name in finding.options}),
                families=sorted({name for finding in request.findings for name in finding.families}),
                fix=fix_of(request),
            )
        elif self._known is not None:
            self._log.info("table_healed", table=self._known.table)
        self._known = request
