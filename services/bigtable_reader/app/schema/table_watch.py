"""What the stream never carries: families and clusters that come and go, its retention, where the profile routes.

`TableWatch` inspects these and logs each difference with its fix. Where rows of the mirror may be wrong after it, it
requests a resync. The reader stops where the profile routes to another cluster. One more cluster, or one less, leaves
all rows as they are: what arrives at the cluster that is read from comes with a record.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Final

import structlog

from services.bigtable_reader.app.schema.last_inspection import inspect_before_the_end, still_there
from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.ports import KeyRangePartitionStore, TableCatalog
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.stop import Stop

LENGTHEN_RETENTION: Final = (
    "gcloud bigtable instances tables update TABLE --instance=INSTANCE --change-stream-retention-period=7d"
)


class TableWatch:
    """Compares a table with what the last inspection found.

    That may have been another process's, long ago: the result is stored with the key ranges.
    """

    def __init__(
        self,
        catalog: TableCatalog,
        store: KeyRangePartitionStore,
        metrics: BigtableReaderMetrics,
        learn: Callable[[Collection[str]], Awaitable[None]],
        report_retention: Callable[[timedelta], None],
        requests: ResyncRequests | None = None,
    ) -> None:
        """``learn`` is called with new column families, ``report_retention`` with the retention of each inspection.

        ``requests``: None where nothing is stored of what is found.
        """
        self._catalog = catalog
        self._store = store
        self._metrics = metrics
        self._learn = learn
        self._report_retention = report_retention
        self._requests = requests if requests is not None and requests.watching.mirrored else None
        self._watching = requests
        self._learnt: frozenset[str] | None = None
        """The families that this process knows; None: as they were when it started."""
        self._known: InspectedTable | None = None
        self._kept: InspectedTable | None = None
        self._ended_by: MisconfiguredError | None = None
        """What an inspection has raised: a resync is requested for it."""
        self._log = structlog.get_logger()

    async def keep_inspecting(self, every: timedelta) -> None:
        """Inspect the table so often. MisconfiguredError as `inspect_table`."""
        while True:
            await asyncio.sleep(every.total_seconds())
            try:
                await self.inspect_table()
            except TransientError as error:
                self._log.warning("table_inspection_failed", error=str(error))

    async def inspect_table(self) -> None:
        """Inspect the table once; also called before anything is read. TransientError.

        MisconfiguredError where the table's stream does not exist, or is read from another cluster.
        """
        if self._known is None:
            self._known = self._kept = await self._store.seen()
        known = self._known
        try:
            found = await still_there(self._catalog, known, self._requests)
        except MisconfiguredError as error:
            self._ended_by = error
            raise
        if self._learnt is not None and found.families - self._learnt:
            await self._learn(found.families - self._learnt)
        self._learnt = found.families
        if found.retention is not None:
            self._report_retention(timedelta(seconds=found.retention))
        if self._watching is not None:  # before it is remembered; always: others may have seen what this one has not
            await self._watching.compare(None if known is None else known.families, found.families)
        if known is not None:
            self._compare_families(known.families, found.families)
            self._compare_clusters(known.clusters, found.clusters)
            self._compare_retention(known.retention, found.retention)
        self._known = found
        if self._kept != found:  # after it was logged: after a crash in between, the next reader logs it
            await self._store.remember(found)
            self._kept = found

    async def inspect_before_the_end(self, error: MisconfiguredError, stop: Stop) -> None:
        """Inspect once more when another error ends the reader. MisconfiguredError where that explains more."""
        if error is not self._ended_by:
            await inspect_before_the_end(error, self._catalog, self._store, self._requests, stop)

    def _compare_families(self, known: frozenset[str], found: frozenset[str]) -> None:
        if known == found:
            return
        self._metrics.families_changed()
        if added := found - known:
            self._log.info(
                "families_added", families=sorted(added), why="their cells arrive as they are written: nothing to do"
            )
        if dropped := known - found:
            self._report_dropped(dropped)

    def _report_dropped(self, families: Collection[str]) -> None:
        if self._requests is None:
            self._log.warning(
                "families_dropped",
                families=sorted(families),
                why="no record tells that their cells are gone, and so no line of the change log does",
                fix="nothing brings it there: leave these families' earlier lines out when the log is played back",
            )
        elif watched := sorted(filter(self._requests.is_watched, families)):
            self._log.error(
                "families_dropped",
                families=watched,
                why="no record tells that their cells are gone: a row that does not change keeps them in its image, "
                "and one that had no others is gone without a delete. The table is pending resync",
                fix="`python -m services.bigtable_reader status` says what ends that; with RESYNC=automatic "
                "nothing is to be done but to delete missing rows",
            )

    def _compare_clusters(self, known: frozenset[str], found: frozenset[str]) -> None:
        if known == found:
            return
        self._log.warning(
            "clusters_changed",
            added=sorted(found - known),
            dropped=sorted(known - found),
            why="no record tells of it. While a new cluster is filled the low watermark stands still; changes are "
            "published all the same",
            fix="nothing, unless the cluster that APP_PROFILE routes to was dropped: then stop every reader, and "
            "name a profile of another, under another CHANGE_STREAM_NAME (nothing promises that tokens go on "
            "elsewhere), and copy the rows again",
        )

    def _compare_retention(self, known: float | None, found: float | None) -> None:
        if known is None or found is None or known == found:
            return
        was, now = str(timedelta(seconds=known)), str(timedelta(seconds=found))
        if found > known:
            self._log.info("retention_lengthened", was=was, now=now)
            return
        self._log.warning(
            "retention_shortened",
            was=was,
            now=now,
            why="what lies further back is no longer kept: a partition that is further behind has lost changes, and "
            "the reader stops there and says what to do",
            fix=f"where `status` shows that little is left of it, make it longer at once: {LENGTHEN_RETENTION}",
        )
