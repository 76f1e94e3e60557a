"""Spanner in a run: two databases, their transactions at a pace, a column added to each, histories beside mirrors."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from deploy.local.comparison import compare_tables, table_shapes
from deploy.local.demo.added_columns import AddedColumns, ColumnStory, rows_with
from deploy.local.demo.latency import Latencies, LatencyProbe
from deploy.local.demo.schema import KEYS
from deploy.local.demo.workload import Transaction, Workload
from deploy.local.history import compare_history
from deploy.local.report import AddedColumnSeen, Compared, SideFound
from deploy.local.sides import Figures, Pace
from deploy.local.stack import Say, Source, Stack
from shared.runtime.stop import Stop

_CHANGES_A_TRANSACTION: Final = 4
_SHARES: Final = (3, 1)
"""Of the changes: flights and weather."""


class SpannerSide:
    """The demo's databases in Spanner."""

    name = "Spanner"

    def __init__(self, stack: Stack, workloads: Sequence[Workload]) -> None:
        """``workloads`` are those of the stack's databases, in their order."""
        self._dataset = stack.dataset
        self._told = list(zip(stack.databases, workloads, strict=True))
        self._changes: Counter[str] = Counter()
        self._latencies = Latencies([], 0, 0)
        self._columns: Sequence[ColumnStory] = ()
        self._began = 0.0
        self._beside: Mapping[str, int] = {}

    def load(self, stop: Stop) -> int:
        """Commit the rows that are there from the start."""
        for source, workload in self._told:
            for transaction in workload.load():
                if stop.requested:
                    break
                source.database.commit(transaction.writes)
                self._changes.update(transaction.changes)
        return self._changes.total()

    def loaded(self) -> bool:
        """Tell that the numbers say it all: each change is counted here and by the consumer."""
        return True

    def change(self, pace: Pace, patience: timedelta, stop: Stop, say: Say) -> None:
        """Commit transactions at a pace, as far as the emulator keeps up.

        A third of them made, or half of the time over, each database gets its column.
        """
        self._began, done, added = time.monotonic(), 0, False
        tables = {table: rows for _, workload in self._told for table, rows in workload.tables.items()}
        every = pace.sampled(_CHANGES_A_TRANSACTION)
        calls = ((one, sum(one[1].changes.values())) for one in self._mixed(pace.changes))
        with LatencyProbe(self._dataset, KEYS, every, stop) as probe, AddedColumns(self._dataset) as columns:
            for source, transaction in pace.paced(calls, stop, say, "the Spanner emulator"):
                at = source.database.commit(transaction.writes)
                self._changes.update(transaction.changes)
                done += sum(transaction.changes.values())
                probe.committed(transaction, at, tables)
                columns.committed(transaction, at)
                passed = time.monotonic() - self._began
                if not added and (3 * done >= pace.changes or 2 * passed >= pace.seconds):
                    added = True
                    self._add_columns(columns, say)
            self._latencies, self._columns = probe.finish(patience), columns.finish(patience)

    def beside(self, changes: Mapping[str, int]) -> None:
        """Be told of changes to other tables of the first database."""
        self._beside = changes

    def compare(self) -> Sequence[Compared]:
        """Read every table whole on both sides, histories included, and compare."""
        others: list[Sequence[str]] = [list(self._beside), *[()] * len(self._told)]
        return [
            self._compare(source, [*source.demo.keys, *more])
            for (source, _), more in zip(self._told, others, strict=False)
        ]

    def found(self, databases: Sequence[Compared]) -> SideFound:
        """Return all that is to be reported."""
        columns = [
            AddedColumnSeen(story, self._began, *rows_with(self._dataset, story.column))
            for story in self._columns
            if story.seen is not None
        ]
        changes = {**self._changes, **self._beside}
        return SideFound(self.name, databases, changes, self._latencies, columns)

    def to_apply(self) -> int:
        """Return how many changes are committed; those that also go into a history count twice."""
        changes = dict(self._changes)
        in_histories = sum(changes.get(table, 0) for source, _ in self._told for table in source.demo.histories)
        return sum(changes.values()) + in_histories

    def figures(self) -> Sequence[Figures]:
        """Return how far each database has come."""
        figures = []
        for source, _ in self._told:
            reader = source.reader.metrics()
            committed = sum(number for table, number in dict(self._changes).items() if table in source.demo.keys)
            published = int(reader.get("millrace_published_changes_total", 0))
            behind = reader.get("millrace_reader_lag_seconds")
            figures.append(Figures(source.demo.name, committed, published, behind))
        return figures

    def _add_columns(self, columns: AddedColumns, say: Say) -> None:
        for source, workload in self._told:
            columns.add(source.database, workload)
            column = workload.demo.added
            say(f"added column {column.name} to {column.table}; changes carry it from now on")

    def _mixed(self, wanted: int) -> Iterator[tuple[Source, Transaction]]:
        """Yield the transactions of all databases, each having its share of the changes at any time."""
        coming = [workload.changes(wanted) for _, workload in self._told]
        done = [0] * len(self._told)
        while sum(done) < wanted:
            turn = min(range(len(self._told)), key=lambda number: done[number] / _SHARES[number])
            transaction = next(coming[turn])
            done[turn] += sum(transaction.changes.values())
            yield self._told[turn][0], transaction

    def _compare(self, source: Source, names: Sequence[str]) -> Compared:
        tables = compare_tables(source.database, self._dataset, names)
        shapes = table_shapes(source.database) if source.demo.histories else {}
        histories = [
            compare_history(
                shapes[table],
                source.database.query(f"SELECT * FROM {table}"),
                self._dataset,
                self._changes[table],
            )
            for table in source.demo.histories
        ]
        counted = source.reader.metrics()
        split, merged = (counted.get(f"millrace_partitions_{what}_total", 0) for what in ("split", "merged"))
        return Compared(source.demo.name, source.demo.dialect, tables, split, merged, histories=histories)
