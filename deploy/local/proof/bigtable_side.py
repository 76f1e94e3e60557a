"""Bigtable in a run: two tables, calls of every kind at a pace, and partitions that are split and merged under way."""

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from deploy.local.demo.latency import Latencies, LatencyProbe, Sample
from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC, HOURLY_WEATHER, WIDE_TABLES
from deploy.local.demo.wide_workload import WideWorkload
from deploy.local.platform.cells import Call, Increment, MutateRow
from deploy.local.platform.stack import PrintLine, Stack, WideSource
from deploy.local.proof.report import Compared, SideFound, SnapshotTaken
from deploy.local.proof.sides import Figures, Pace
from deploy.local.proof.wide_comparison import ROW_KEY, compare_change_log, compare_wide
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop

_RESHAPE_EVERY: Final = 1.5
"""Seconds between two splits or merges."""
_MOST_SPLITS: Final = 6
_SNAPSHOT_ROWS: Final = "millrace_reader_snapshot_rows_total"
_KEYS: Final[Mapping[str, Sequence[str]]] = {table.name: (ROW_KEY,) for table in WIDE_TABLES}


class BigtableSide:
    """The demo's tables in Bigtable."""

    name = "Bigtable"

    def __init__(self, stack: Stack, workload: WideWorkload, seed: int) -> None:
        self._dataset = stack.dataset
        self._sources = stack.wide_tables
        self._instance = stack.wide_tables[0].instance
        self._workload = workload
        self._changes: Counter[str] = Counter()
        for _ in workload.before():  # they are there: here the model learns of them
            pass
        self._before = {name: len(cells) for name, cells in workload.tables.items()}
        self._meanwhile: Counter[str] = Counter()
        self._latencies = Latencies([], 0, 0)
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._splits: list[tuple[str, bytes]] = []
        self._shaped: Counter[str] = Counter()

    def load(self, stop: Stop) -> int:
        """Write the rows that come first through the change streams."""
        for call, rows in self._workload.load():
            if stop.requested:
                break
            self._instance.apply(call)
            self._changes[call.table] += rows
            if self._snapshot(call.table) < self._before[call.table]:
                self._meanwhile[call.table] += rows
        return self._changes.total()

    def loaded(self) -> bool:
        """Compare, for a mirror takes fewer images than there were changes: the numbers do not show it."""
        return all(
            compare_wide(one.demo, self._instance.rows(one.demo.name), self._dataset).equal for one in self._sources
        )

    def change(self, pace: Pace, timeout: timedelta, stop: Stop, print_line: PrintLine) -> None:
        """Make calls at a pace, and now and then split or merge a partition, or collect garbage."""
        reshaped = time.monotonic()
        calls = ((call, call[1]) for call in self._workload.changes(pace.changes))
        with LatencyProbe(self._dataset, _KEYS, pace.sampled(1), stop) as probe:
            for call, rows in pace.paced(calls, stop, print_line, "the Bigtable emulator"):
                at = self._instance.apply(call)
                self._changes[call.table] += rows
                probe.written(_sample(call, at), self._there())
                if time.monotonic() - reshaped > _RESHAPE_EVERY:
                    reshaped = time.monotonic()
                    self._reshape()
            self._latencies = probe.finish(timeout)

    def beside(self, changes: Mapping[str, int]) -> None:
        """Nothing else changes these tables."""

    def compare(self) -> Sequence[Compared]:
        """Read every table whole on both sides, replay the change logs, and compare."""
        return [self._compare(source) for source in self._sources]

    def found(self, databases: Sequence[Compared]) -> SideFound:
        """Return all that is to be reported."""
        return SideFound(self.name, databases, self._changes, self._latencies)

    def to_apply(self) -> int:
        """Return how many images and entries are published: what goes to two tables is published for each."""
        return sum(one.published + one.snapshot for one in self.figures())

    def figures(self) -> Sequence[Figures]:
        """Return how far each table has come."""
        figures = []
        for source in self._sources:
            reader = source.reader.metrics()
            published = int(reader["millrace_published_changes_total"])
            behind = reader.get("millrace_reader_lag_seconds")
            snapshot, name = int(reader[_SNAPSHOT_ROWS]), source.demo.name
            figures.append(Figures(name, self._changes[name], published, behind, self._before[name], snapshot))
        return figures

    def _snapshot(self, table: str) -> int:
        """Return how many rows a reader has published of a snapshot."""
        (reader,) = [one.reader for one in self._sources if one.demo.name == table]
        return int(reader.metrics()[_SNAPSHOT_ROWS])

    def _there(self) -> Mapping[str, Sequence[tuple[str]]]:
        return {name: [(row_key.decode(),) for row_key in cells] for name, cells in self._workload.tables.items()}

    def _reshape(self) -> None:
        """Split a partition where a row is, or merge one that was split; and collect garbage."""
        if self._splits and (len(self._splits) >= _MOST_SPLITS or self._random.random() < 0.4):
            table, at = self._splits.pop(self._random.randrange(len(self._splits)))
            self._shaped["merged"] += self._instance.merge(table, at)
        else:
            table = self._random.choice((HOURLY_WEATHER.name, HOURLY_WEATHER.name, AIRPORT_TRAFFIC.name))
            at = self._random.choice(list(self._workload.tables[table]))
            if self._instance.split(table, at):
                self._splits.append((table, at))
                self._shaped["split"] += 1
        self._instance.collect_garbage(AIRPORT_TRAFFIC.name)

    def _compare(self, source: WideSource) -> Compared:
        table = source.demo
        rows = self._instance.rows(table.name)
        logs = [compare_change_log(table.name, rows, self._dataset)] if table.change_log else []
        counted = source.reader.metrics()
        split, merged, reconciled = (
            counted[f"millrace_partitions_{what}_total"] for what in ("split", "merged", "reconciled")
        )
        compared = [compare_wide(table, rows, self._dataset)]
        taken = SnapshotTaken(self._before[table.name], int(counted[_SNAPSHOT_ROWS]), self._meanwhile[table.name])
        return Compared(
            table.name, self.name, compared, split, merged, reconciled=reconciled, change_logs=logs, snapshot=taken
        )


def _sample(call: Call, at: Nanoseconds) -> Sample | None:
    """Return the row by which a call is seen; None where it is seen by a row that is no longer there."""
    if isinstance(call, MutateRow | Increment):
        return Sample(call.table, (call.row_key.decode(),), at)
    return None
