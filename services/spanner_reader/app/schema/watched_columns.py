"""Which columns of a table the stream watched at a time: a row that lacks one of them would blank it in BigQuery.

A change record that holds only what changed does not say which columns there are, and what a reader saw of the schema
a minute ago may lack one that another reader's records have set since. So rows are read and completed with columns
that are known of these very times. docs/explanation/capture-types.md says how.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from services.spanner_reader.core.schema.column_spans import ColumnSpans
from services.spanner_reader.core.schema.shapes import COLUMNS_UNSEEN
from services.spanner_reader.ports import DatabaseCatalog, NotReadableError, WatchedTable
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp


class WatchedColumns:
    """What one reader knows of the columns of tables over time. It asks for what it does not know."""

    def __init__(self, catalog: DatabaseCatalog) -> None:
        self._catalog = catalog
        self._spans: defaultdict[str, ColumnSpans[WatchedTable]] = defaultdict(ColumnSpans)
        self._asking = asyncio.Lock()
        self.observed: Callable[[WatchedTable, Nanoseconds], None] = lambda _table, _at: None
        """Is called with a table that an inspection shows with other columns than before, and the time of that."""

    async def now(self, table: str) -> tuple[Nanoseconds, WatchedTable | None]:
        """Return a table as it is now, None where it is not watched, and the time of that in whole microseconds."""
        async with self._asking:
            return await self._inspect(table)

    async def at(self, table: str, time: Nanoseconds) -> WatchedTable | None:
        """Return a table as it was at a time in the past; None where it was not watched.

        NotReadableError where the database no longer keeps the rows of that time, TransientError.
        """
        spans = self._spans[table]
        async with self._asking:
            if spans.newest is None or spans.newest < time:
                seen_at, _now = await self._inspect(table)
                if seen_at < time:
                    raise TransientError(f"{format_timestamp(time)} is still to come by the database's clock")
            if not spans.knows(time):
                await self._inspect(table, time)
        return spans.at(time)

    def recent(self, table: str, since: Nanoseconds, until: Nanoseconds) -> tuple[Nanoseconds, WatchedTable] | None:
        """Return a table as the last inspection has shown it, and the time of that: shortly before ``until``.

        None where that was more than `COLUMNS_UNSEEN` before, or later, or where the table may have changed between
        ``since`` and it. Nothing is asked. What may have happened after it is for the caller to exclude.
        """
        spans = self._spans[table]
        seen_at = spans.newest
        if seen_at is None or not seen_at < until <= seen_at + COLUMNS_UNSEEN:
            return None
        if since < seen_at and not spans.covers(since, seen_at):
            return None
        watched = spans.at(seen_at)
        return None if watched is None else (seen_at, watched)

    async def unchanged(self, table: str, since: Nanoseconds, until: Nanoseconds) -> bool:
        """Return whether a table stayed as it was from one time to another, both in the past. Raises as `at` does."""
        await self.at(table, since)
        await self.at(table, until)
        return self._spans[table].covers(since, until)

    async def remembered(self, time: Nanoseconds) -> bool:
        """Return whether the database remembers a time. TransientError."""
        try:
            await self._catalog.inspect_tables((), time)
        except NotReadableError:
            return False
        return True

    async def _inspect(self, table: str, time: Nanoseconds | None = None) -> tuple[Nanoseconds, WatchedTable | None]:
        """Inspect all tables that were asked for, with one query."""
        names = {table, *self._spans}
        at, found = await self._catalog.inspect_tables(names, time)
        watched = {one.name: one for one in found}
        at = Nanoseconds(at // 1_000 * 1_000)
        for name in names:
            one = watched.get(name)
            if self._spans[name].saw(at, one) and one is not None:
                self.observed(one, at)
        return at, watched.get(table)
