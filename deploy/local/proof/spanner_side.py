"""Spanner in a run: two databases, their transactions at a pace, a column added to each, histories beside mirrors."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Final, TypeVar

from deploy.local.demo.added_columns import AddedColumns, ColumnStory, rows_with
from deploy.local.demo.latency import Latencies, LatencyProbe
from deploy.local.demo.schema import KEYS
from deploy.local.demo.workload import Key, Transaction, Workload
from deploy.local.platform.source import Row
from deploy.local.platform.stack import PrintLine, Source, Stack
from deploy.local.proof.comparison import compare_tables, table_shapes
from deploy.local.proof.history import compare_history
from deploy.local.proof.report import AddedColumnSeen, Compared, SideFound, SnapshotTaken
from deploy.local.proof.sides import Figures, Pace
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop

T = TypeVar("T")

_CHANGES_A_TRANSACTION: Final = 4
_SHARES: Final = (3, 1)
"""Of the changes: flights and weather."""
_CHANGES_MEANWHILE: Final = 100
"""Of rows of each database while its reader takes a snapshot of them."""
_SNAPSHOT_ROWS: Final = "millrace_reader_snapshot_rows_total"
_COMPLETED: Final = "millrace_reader_completed_changes_total"


class SpannerSide:
    """The demo's databases in Spanner."""

    name = "Spanner"

    def __init__(self, stack: Stack, workloads: Sequence[Workload]) -> None:
        """``workloads`` are those of the stack's databases, in their order."""
        self._dataset = stack.dataset
        self._sources = list(zip(stack.databases, workloads, strict=True))
        self._changes: Counter[str] = Counter()
        self._latencies = Latencies([], 0, 0)
        self._columns: Sequence[ColumnStory] = ()
        self._began = 0.0
        self._beside: Mapping[str, int] = {}
        self._before: Counter[str] = Counter()
        self._meanwhile: Counter[str] = Counter()
        self._written: dict[str, dict[Key, list[tuple[Nanoseconds, Row | None]]]] = {}
        """Every version of the tables that have a history."""
        for source, workload in self._sources:  # they are there: here the model learns of them
            for transaction in workload.before():
                self._committed(transaction, Nanoseconds(0))
                self._before[source.demo.name] += sum(transaction.changes.values())

    def load(self, stop: Stop) -> int:
        """Commit the rows that come first through the change stream; and change others that a snapshot is taken of."""
        committed = 0
        coming: list[Iterator[tuple[Source, Transaction]]] = []
        for source, workload in self._sources:
            coming.append(zip(repeat(source), workload.load()))
            if self._before[source.demo.name]:
                coming.append(zip(repeat(source), workload.changes(_CHANGES_MEANWHILE)))
        for source, transaction in _in_turn(coming):
            if stop.requested:
                break
            self._committed(transaction, source.database.commit(transaction.writes))
            changes = sum(transaction.changes.values())
            committed += changes
            if self._snapshot(source) < self._before[source.demo.name]:
                self._meanwhile[source.demo.name] += changes
        return committed

    def loaded(self) -> bool:
        """Return True: each change is counted here and by the consumer."""
        return True

    def change(self, pace: Pace, timeout: timedelta, stop: Stop, print_line: PrintLine) -> None:
        """Commit transactions at a pace, as far as the emulator keeps up.

        A third of them made, or half of the time over, each database gets its column.
        """
        self._began, done, added = time.monotonic(), 0, False
        tables = {table: rows for _, workload in self._sources for table, rows in workload.tables.items()}
        every = pace.sampled(_CHANGES_A_TRANSACTION)
        calls = ((one, sum(one[1].changes.values())) for one in self._mixed(pace.changes))
        with LatencyProbe(self._dataset, KEYS, every, stop) as probe, AddedColumns(self._dataset) as columns:
            for source, transaction in pace.paced(calls, stop, print_line, "the Spanner emulator"):
                at = source.database.commit(transaction.writes)
                self._committed(transaction, at)
                done += sum(transaction.changes.values())
                probe.committed(transaction, at, tables)
                columns.committed(transaction, at)
                passed = time.monotonic() - self._began
                if not added and (3 * done >= pace.changes or 2 * passed >= pace.seconds):
                    added = True
                    self._add_columns(columns, print_line)
            self._latencies, self._columns = probe.finish(timeout), columns.finish(timeout)

    def beside(self, changes: Mapping[str, int]) -> None:
        """Take note of changes to other tables of the first database."""
        self._beside = changes

    def compare(self) -> Sequence[Compared]:
        """Read every table whole on both sides, histories included, and compare."""
        others: list[Sequence[str]] = [list(self._beside), *[()] * len(self._sources)]
        return [
            self._compare(source, [*source.demo.keys, *more])
            for (source, _), more in zip(self._sources, others, strict=False)
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
        in_histories = sum(changes.get(table, 0) for source, _ in self._sources for table in source.demo.histories)
        return sum(changes.values()) + in_histories

    def figures(self) -> Sequence[Figures]:
        """Return how far each database has come."""
        figures = []
        for source, _ in self._sources:
            reader = source.reader.metrics()
            before = self._before[source.demo.name]
            written = sum(number for table, number in dict(self._changes).items() if table in source.demo.keys)
            published = int(reader["millrace_published_changes_total"])
            behind = reader.get("millrace_reader_lag_seconds")
            snapshot = int(reader[_SNAPSHOT_ROWS])
            figures.append(Figures(source.demo.name, written - before, published, behind, before, snapshot))
        return figures

    def _committed(self, transaction: Transaction, at: Nanoseconds) -> None:
        """Take note of a transaction and of the rows that it leaves."""
        self._changes.update(transaction.changes)
        for table, rows in transaction.left.items():
            for key, row in rows.items():
                self._written.setdefault(table, {}).setdefault(key, []).append((at, row))

    @staticmethod
    def _snapshot(source: Source) -> int:
        """Return how many rows a reader has published of a snapshot."""
        return int(source.reader.metrics()[_SNAPSHOT_ROWS])

    def _add_columns(self, columns: AddedColumns, print_line: PrintLine) -> None:
        for source, workload in self._sources:
            columns.add(source.database, workload)
            column = workload.demo.added
            print_line(f"added column {column.name} to {column.table}; changes carry it from now on")

    def _mixed(self, wanted: int) -> Iterator[tuple[Source, Transaction]]:
        """Yield the transactions of all databases, each having its share of the changes at any time."""
        coming = [workload.changes(wanted) for _, workload in self._sources]
        done = [0] * len(self._sources)
        while sum(done) < wanted:
            turn = min(range(len(self._sources)), key=lambda number: done[number] / _SHARES[number])
            transaction = next(coming[turn])
            done[turn] += sum(transaction.changes.values())
            yield self._sources[turn][0], transaction

    def _compare(self, source: Source, names: Sequence[str]) -> Compared:
        tables = compare_tables(source.database, self._dataset, names)
        shapes = table_shapes(source.database) if source.demo.histories else {}
        histories = [
            compare_history(shapes[table], self._written.get(table, {}), self._dataset, self._changes[table])
            for table in source.demo.histories
        ]
        counted = source.reader.metrics()
        split, merged = (counted[f"millrace_partitions_{what}_total"] for what in ("split", "merged"))
        name, dialect = source.demo.name, source.demo.dialect
        taken = SnapshotTaken(self._before[name], int(counted[_SNAPSHOT_ROWS]), self._meanwhile[name])
        completed = None if source.demo.whole_rows else int(counted[_COMPLETED])
        return Compared(
            name, dialect, tables, split, merged, histories=histories, snapshot=taken, completed_images=completed
        )


def _in_turn(sequences: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield one of each in turn, as long as there are any."""
    left = list(sequences)
    while left:
        for one in tuple(left):
            try:
                yield next(one)
            except StopIteration:
                left.remove(one)
