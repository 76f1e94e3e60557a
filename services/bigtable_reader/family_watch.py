"""What the stream never carries: families and clusters that are added or dropped. Looked for, said, with the cure."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta

import structlog

from services.bigtable_reader.core.seen import Seen
from services.bigtable_reader.ports import Catalog, Metrics, PartitionStore
from shared.contracts.errors import TransientError


class FamilyWatch:
    """Compares a table's families, and the clusters that have it, with what they were at the last look.

    That may have been another process's, long ago: what was seen is kept with the pieces.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: PartitionStore,
        metrics: Metrics,
        every: timedelta,
        learn: Callable[[Collection[str]], Awaitable[None]],
    ) -> None:
        """Take whom to tell of families that are new."""
        self._catalog = catalog
        self._store = store
        self._metrics = metrics
        self._every = every
        self._learn = learn
        self._learnt: frozenset[str] | None = None
        """The families that this process knows; None: as they were when it started."""
        self._known: Seen | None = None
        self._kept: Seen | None = None
        self._log = structlog.get_logger()

    async def keep_looking(self) -> None:
        """Look again and again. MisconfiguredError where the table's stream is not there any more."""
        while True:
            try:
                await self._look()
            except TransientError as error:
                self._log.warning("families_not_looked_at", error=str(error))
            await asyncio.sleep(self._every.total_seconds())

    async def _look(self) -> None:
        found = Seen(frozenset(await self._catalog.families()), frozenset(await self._catalog.clusters()))
        if self._known is None:
            self._known = self._kept = await self._store.seen()
        if self._learnt is not None and found.families - self._learnt:
            await self._learn(found.families - self._learnt)
        self._learnt = found.families
        if self._known is not None:
            self._compare(self._known.families, found.families)
            self._compare_clusters(self._known.clusters, found.clusters)
        self._known = found
        if self._kept != found:  # after it was said: whoever dies in between leaves it to the next to say
            await self._store.remember(found)
            self._kept = found

    def _compare(self, known: frozenset[str], found: frozenset[str]) -> None:
        if known == found:
            return
        self._metrics.families_changed()
        if added := found - known:
            self._log.info(
                "families_added", families=sorted(added), why="their cells arrive as they are written: nothing to do"
            )
        if dropped := known - found:
            self._log.error(
                "families_dropped",
                families=sorted(dropped),
                why="no record tells that their cells are gone: a row that does not change keeps them in its image",
                fix="write every row of the table once more, each unchanged, and its image is read again; rows that "
                "had cells in these families only are gone without a delete: drop the mirror first where that may be",
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
