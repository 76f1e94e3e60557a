"""What the write API sees of the catalog: by default all of it at once; on demand, with a delay.

Source: BigQuery, "Storage Write API best practices", section "Manage schema updates": the API notices a changed schema
"after a short period, on the order of minutes". A table that has just been made may be unknown to it as well.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from emulators.bigquery.catalog import Table


@dataclass(frozen=True)
class Delay:
    """How many seconds the write API is behind with new tables and with what is altered in known ones."""

    new_tables: float = 0.0
    alterations: float = 0.0


class Visibility:
    """The versions of each table, and from when the write API sees them. Used from several threads."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._versions: dict[int, list[Table]] = {}
        self._delays: dict[str, Delay] = {}

    def add(self, table: Table) -> None:
        """Note a new table, or the next version of one."""
        with self._lock:
            self._versions.setdefault(table.number, []).append(table)

    def forget(self, table: Table) -> None:
        """Forget a table that is dropped."""
        with self._lock:
            self._versions.pop(table.number, None)

    def delay(self, table: str, delay: Delay) -> None:
        """Let the write API be behind with one table (``project.dataset.table``) or, empty, with all others."""
        with self._lock:
            self._delays[table] = delay

    def clear(self) -> None:
        """Let the write API see everything at once again."""
        with self._lock:
            self._delays.clear()

    def seen(self, table: Table) -> Table | None:
        """Return the version of a table that the write API sees; None where it does not know the table yet."""
        with self._lock:
            if not self._delays:
                return table
            delay = self._delays.get(table.name.dotted) or self._delays.get("", Delay())
            now = self._now()
            seen = None
            for version in self._versions.get(table.number, []):
                seconds = delay.new_tables if version.version == 1 else delay.alterations
                if version.modified + seconds * 1_000_000 > now:
                    break
                seen = version
            return seen
