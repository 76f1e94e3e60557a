"""Which tables are paused, and which of their changes this reader may drop.

What a reader knows of pauses is always a little old. What it reads of the stream meanwhile is published, which is never
wrong; it drops a change only by knowledge that is at least as new as the change (see `core.pauses`).
"""

import asyncio
from collections import Counter
from functools import partial

import structlog

from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.ports import PauseStore
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.stream_pause import StreamPause
from shared.runtime.retries import retried
from shared.runtime.stop import Stop


class PauseWatch:
    """Follows what is paused, for all parts of one reader. Nothing is known before the first inspection."""

    def __init__(self, store: PauseStore, metrics: SpannerReaderMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._known = Pauses(Nanoseconds(0))
        self._reading = asyncio.Lock()
        self._stream = StreamPause()
        self._dropped: Counter[str] = Counter()
        """Changes of each table, since it was paused."""
        self._log = structlog.get_logger()

    @property
    def known(self) -> Pauses:
        """Return what was seen last."""
        return self._known

    def is_paused(self, table: str) -> bool:
        """Return whether no snapshot of a table is to be read: it is paused, or the whole stream is."""
        return self._known.stream is not None or table in self._known.paused_tables

    async def poll(self) -> None:
        """Read the pauses once. TransientError."""
        async with self._reading:
            await self._read()

    async def drops(self, table: str, at: Nanoseconds, changes: int, stop: Stop) -> bool:
        """Return whether changes of a table, committed at a time, are to be dropped, and count them then.

        Where the table is paused as far as is known, that waits until as much is known as has been committed.
        """
        pause = self._known.tables.get(table)
        if pause is None:
            return False
        if pause.lasts and at > self._known.at:
            await retried(stop, partial(self._read_up_to, at))
            pause = self._known.tables.get(table)
        if pause is None or not pause.covers(at) or (pause.lasts and at > self._known.at):
            return False
        if not self._dropped[table]:
            self._log.warning(
                "changes_dropped",
                table=table,
                since=format_timestamp(pause.paused_at),
                why="the table is paused; it is pending resync",
                fix=f"`resume {table}`, and then `snapshot {table}`",
            )
        self._dropped[table] += changes
        self._metrics.dropped(table, changes)
        return True

    async def _read_up_to(self, at: Nanoseconds) -> None:
        async with self._reading:
            if at > self._known.at:  # no other call has read the pauses while this waited
                await self._read()

    async def _read(self) -> None:
        before, now = self._known, await self._store.read()
        self._known = now
        self._metrics.paused(now)
        self._stream.observe(None if now.stream is None else format_timestamp(now.stream.paused_at))
        for table in sorted(now.paused_tables.keys() - before.paused_tables.keys()):
            since = format_timestamp(now.tables[table].paused_at)
            self._log.warning(
                "table_paused",
                table=table,
                since=since,
                why="its changes are dropped from now on; it is pending resync",
            )
        for table in sorted(before.paused_tables.keys() - now.paused_tables.keys()):
            self._log.info(
                "table_resumed",
                table=table,
                dropped=self._dropped.pop(table, 0),
                fix=f"it is pending resync: `snapshot {table}` brings its rows",
            )
