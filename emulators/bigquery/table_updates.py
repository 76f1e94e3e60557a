"""The limit of how often a table's definition may be changed.

Source: BigQuery, "Quotas and limits", standard tables: at most five metadata updates of a table in ten seconds, by
whatever client, method or statement; "Troubleshoot quota and limit errors": 403, `rateLimitExceeded`, and these words.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from emulators.bigquery.errors import ApiError

_MOST: Final = 5


class TableUpdates:
    """When each table was changed lately. ``now`` returns the time in microseconds.

    There is no limit before one is set: most of what is done here in a second takes a project's user a day.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._within: int | None = None
        self._lately: dict[Hashable, deque[int]] = {}

    def limit(self, seconds: float | None) -> None:
        """Set in what time (of BigQuery: ten seconds) a table is changed no more than five times; None: in none.

        What was changed before is forgotten.
        """
        with self._lock:
            self._within = None if seconds is None else round(seconds * 1_000_000)
            self._lately.clear()

    def count(self, table: Hashable) -> None:
        """Count a change of a table; ApiError where it was changed too often of late."""
        now = self._now()
        with self._lock:
            if self._within is None:
                return
            lately = self._lately.setdefault(table, deque())
            while lately and lately[0] <= now - self._within:
                lately.popleft()
            if len(lately) < _MOST:
                lately.append(now)
                return
        raise ApiError(
            "rateLimitExceeded",
            "Exceeded rate limits: too many table update operations for this table. For more information, see "
            "https://cloud.google.com/bigquery/docs/troubleshoot-quotas",
        )
