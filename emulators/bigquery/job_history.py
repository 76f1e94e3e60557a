"""INFORMATION_SCHEMA's views of jobs: who ran what, when, and for how many slots; the latest of them are kept."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from emulators.bigquery.catalog import TableName

APPLIES_AS: Final = "bigquery-adminbot@system.gserviceaccount.com"
"""Who applies streamed changes (BigQuery, "Stream table updates with change data capture")."""

_KEPT: Final = 10_000
_SECOND: Final = 1_000_000


@dataclass(frozen=True)
class PastJob:
    """A job that has ended. Times are in microseconds since the epoch.

    ``processed`` and ``billed`` are bytes, None of a job that shows none; ``read`` are the tables of its query.
    """

    project: str
    job_id: str
    user: str
    statement_type: str
    created: int
    ended: int
    slot_milliseconds: int
    destination: TableName | None = None
    query: str = ""
    processed: int | None = None
    billed: int | None = None
    read: Sequence[TableName] = ()

    def periods(self) -> Iterator[tuple[int, int]]:
        """Yield the seconds that it ran in, each with its share of the slot milliseconds."""
        first, last = self.created // _SECOND, self.ended // _SECOND
        share, rest = divmod(self.slot_milliseconds, last - first + 1)
        for second in range(first, last + 1):
            yield second * _SECOND, share + (rest if second == first else 0)


class JobHistory:
    """The latest jobs of all projects. Used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[PastJob] = deque(maxlen=_KEPT)

    def add(self, job: PastJob) -> None:
        """Keep a job."""
        with self._lock:
            self._jobs.append(job)

    def of(self, project: str) -> Sequence[PastJob]:
        """Return a project's jobs, oldest first."""
        with self._lock:
            return [job for job in self._jobs if job.project == project]
