"""What it costs to complete the updates of a sample of a change stream, counted as the reader reads their rows.

The reader collects updates of one partition and one table for a moment, and reads their rows together.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from services.spanner_reader.core.stream.changes import is_whole
from services.spanner_reader.core.stream.records import DataChangeRecord, PartitionToken
from shared.contracts.timestamps import Nanoseconds, nanoseconds

BATCH: Final = timedelta(milliseconds=100)
"""How long the reader waits for more updates that share a read (`app.stream.completer`)."""
_BATCH: Final = nanoseconds(BATCH)


@dataclass(slots=True)
class _Batch:
    since: Nanoseconds
    seen: set[str] = field(default_factory=set)
    """Keys of which the batch has a change. Only the first of a row asks for a read, and only if it is incomplete."""


@dataclass(slots=True)
class CompletionSample:
    """Some records of a change stream: those of a partition in commit order."""

    changes: int = 0
    incomplete: int = 0
    """Changes that hold only the columns that changed."""
    rows: int = 0
    """Rows that are to be read."""
    reads: int = 0
    """Reads of these rows: one for each partition, table and batch."""
    _batches: dict[tuple[PartitionToken, str], _Batch] = field(default_factory=dict)

    def add(self, token: PartitionToken, record: DataChangeRecord) -> None:
        """Count the changes of a record."""
        self.changes += len(record.mods)
        whole = is_whole(record)
        place = (token, record.table)
        batch = self._batches.get(place)
        if batch is not None and record.commit_timestamp - batch.since >= _BATCH:
            batch = None
        if not whole:
            self.incomplete += len(record.mods)
            if batch is None:
                batch = self._batches[place] = _Batch(record.commit_timestamp)
                self.reads += 1
        if batch is not None:
            keys = {mod.keys for mod in record.mods} - batch.seen
            batch.seen |= keys
            self.rows += 0 if whole else len(keys)

    def __str__(self) -> str:
        """Return what was counted, and how much that is for each change."""
        each = f"; for each change {self.rows / self.changes:.2f} rows and {self.reads / self.changes:.2f} reads"
        return (
            f"changes {self.changes:,}, incomplete {self.incomplete:,}, rows to read {self.rows:,}, reads "
            f"{self.reads:,}{each if self.incomplete else ''}"
        )
