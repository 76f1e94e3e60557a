"""A column that is added while rows are being changed: when BigQuery's table had it, and since which change rows do."""

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from deploy.local.demo.schema import AddedColumn
from deploy.local.demo.workload import Transaction, Workload
from deploy.local.platform.source import SpannerDatabase
from deploy.local.platform.target import COMMIT_TIMESTAMP, BigQueryDataset
from shared.contracts.timestamps import Nanoseconds

PAUSE: Final = timedelta(milliseconds=100)


@dataclass(slots=True)
class ColumnStory:
    """What became of one added column. Times are of this process's monotonic clock, in seconds."""

    column: AddedColumn
    dialect: str
    key: tuple[str, ...]
    added: float
    seen: float | None = None
    """When BigQuery's table was seen to have it."""
    first: tuple[tuple[Any, ...], Nanoseconds] | None = None
    """The row of the first change that carries a value, and when that was committed."""


class AddedColumns:
    """Adds columns and watches for them in BigQuery, by a thread of its own. Use as a block."""

    def __init__(self, dataset: BigQueryDataset) -> None:
        self._dataset = dataset
        self._stories: list[ColumnStory] = []
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="added columns", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def add(self, database: SpannerDatabase, workload: Workload) -> None:
        """Add a database's column to its table, and let the workload know."""
        demo = workload.demo
        database.alter(demo.added.statement)
        workload.column_added()
        key = tuple(demo.keys[demo.added.table])
        self._stories.append(ColumnStory(demo.added, demo.dialect, key, time.monotonic()))

    def committed(self, transaction: Transaction, at: Nanoseconds) -> None:
        """Take note of a commit."""
        for story in self._stories:
            if story.first is None:
                column = story.column
                for write in transaction.writes:
                    if write.table == column.table and write.row.get(column.name) is not None:
                        story.first = tuple(write.row[name] for name in story.key), at
                        break

    def finish(self, timeout: timedelta) -> list[ColumnStory]:
        """Wait until BigQuery has every column, or ``timeout`` is over; return what became of them."""
        self._thread.join(0 if all(one.seen for one in self._stories) else timeout.total_seconds())
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._stories

    def _watch(self) -> None:
        try:
            while not self._over.wait(PAUSE.total_seconds()):
                waited_for = [story for story in self._stories if story.seen is None]
                if self._stories and not waited_for:
                    return
                for story in waited_for:
                    if story.column.name in self._dataset.columns(story.column.table):
                        story.seen = time.monotonic()
        except Exception as error:  # noqa: BLE001 - raised again by `finish`, in the thread that can answer for it
            self._failure = error


def rows_with(dataset: BigQueryDataset, column: AddedColumn) -> tuple[int, int, Any]:
    """Return how many of a table's rows hold a value in a column, how many there are, and since when they do."""
    (counted,) = dataset.query(
        f"SELECT COUNTIF(`{column.name}` IS NOT NULL) AS held, COUNT(*) AS total, "
        f"MIN(IF(`{column.name}` IS NULL, NULL, {COMMIT_TIMESTAMP})) AS since FROM `{column.table}`"
    )
    return int(counted["held"]), int(counted["total"]), counted["since"]
