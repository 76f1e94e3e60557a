"""max_staleness: when streamed changes are applied in the background, and when a query has to merge them by itself.

Source: BigQuery, "Stream table updates with change data capture", sections "Manage table staleness" and "Query tables
with the max_staleness option set". A table without the option is applied every moment, and queries are always fresh.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

from emulators.bigquery.catalog import Table

_APPLY_AFTER: Final = 0.8
"""A background apply starts when this part of max_staleness is over: "at least once" in the interval."""


class Staleness:
    """How far each table is applied. Used from several threads; ``now`` returns microseconds since the epoch."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._watermarks: dict[int, int] = {}
        self._unapplied: set[int] = set()
        self._paused: set[str] = set()

    def streamed(self, table: Table) -> None:
        """Note that changes have been accepted."""
        with self._lock:
            self._unapplied.add(table.number)

    def watermark(self, table: Table) -> int | None:
        """Return upsert_stream_apply_watermark: changes streamed before it are applied. None before the first apply."""
        with self._lock:
            return self._watermarks.get(table.number)

    def watermarks(self, numbers: Collection[int]) -> Mapping[int, int]:
        """Return the watermarks of these tables, by their numbers."""
        with self._lock:
            return {number: self._watermarks[number] for number in numbers if number in self._watermarks}

    def restore(self, watermarks: Mapping[int, int]) -> None:
        """Take up watermarks from before the start."""
        with self._lock:
            self._watermarks.update(watermarks)

    def unapplied(self, table: Table) -> bool:
        """Return whether there are changes which no background apply has seen."""
        with self._lock:
            return table.number in self._unapplied

    def serves_what_is_applied(self, table: Table) -> bool:
        """Return whether a query just now reads what is applied; otherwise it merges what waits (a runtime merge)."""
        return bool(table.max_staleness) and self.unapplied(table) and self._age(table) <= table.max_staleness

    def due(self, table: Table) -> bool:
        """Return whether a background apply shall start."""
        with self._lock:
            if table.number not in self._unapplied or _is_paused(self._paused, table):
                return False
        return self._age(table) >= table.max_staleness * _APPLY_AFTER

    def begin(self, table: Table) -> int:
        """Begin an apply; return the watermark that it will reach."""
        with self._lock:
            self._unapplied.discard(table.number)
            return self._now()

    def finish(self, table: Table, watermark: int) -> None:
        """Move the watermark; it never goes back."""
        with self._lock:
            self._watermarks[table.number] = max(watermark, self._watermarks.get(table.number, 0))

    def pause(self, table: str) -> None:
        """Let no background apply start any more: of one table (``project.dataset.table``) or, empty, of any."""
        with self._lock:
            self._paused.add(table)

    def resume(self, table: str) -> None:
        """Let background applies start again: of one table or, empty, of all."""
        with self._lock:
            self._paused = self._paused - {table} if table else set()

    def _age(self, table: Table) -> int:
        with self._lock:
            return self._now() - self._watermarks.get(table.number, table.created)


def _is_paused(paused: set[str], table: Table) -> bool:
    return not paused.isdisjoint(("", table.name.dotted))
