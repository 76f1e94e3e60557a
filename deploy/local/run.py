"""`make run`: the whole pipeline on this machine, from start to proof."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich.console import Console

from deploy.local.comparison import compare_tables, table_shapes
from deploy.local.demo.added_columns import AddedColumns, ColumnStory, rows_with
from deploy.local.demo.latency import Latencies, LatencyProbe
from deploy.local.demo.workload import Transaction, Workload
from deploy.local.demo.workloads import workloads
from deploy.local.history import compare_history
from deploy.local.processes import Processes, StopRequestedError
from deploy.local.progress import Progress
from deploy.local.report import AddedColumnSeen, Compared, Report
from deploy.local.stack import Say, Source, Stack, load, running_stack
from shared.runtime.settings import setting
from shared.runtime.stop import Stop

_LOOK_AGAIN: Final = timedelta(seconds=1)
_SAMPLES_A_SECOND: Final = 5
_CHANGES_A_TRANSACTION: Final = 4
_SHARES: Final = (3, 1)
"""Of the changes: flights and weather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The size of a run."""

    rows: int = setting("flights that are loaded at the start", default=3000, least=1, most=336_776)
    seconds: int = setting("how long rows are changed after that", default=30, least=1)
    rate: int = setting("changes a second", default=60, least=1)
    patience: timedelta = setting("how long BigQuery may take to catch up", default=timedelta(seconds=60))
    seed: int = setting("which changes are made", default=2013)

    @property
    def changes(self) -> int:
        """Return how many changes are made after the start."""
        return self.rate * self.seconds


@dataclass(frozen=True)
class Changed:
    """What was seen while rows were changed."""

    latencies: Latencies
    columns: Sequence[ColumnStory]
    began: float


def run(settings: RunSettings, processes: Processes, console: Console, say: Say) -> int:
    """Run it all; return 0 where BigQuery equals Spanner in the end, and 1 with what differs."""
    stop = processes.stop
    made = workloads(settings.rows, settings.changes, settings.seed)
    with running_stack(processes, say) as stack:
        told = list(zip(stack.sources, made, strict=True))
        changes: Counter[str] = Counter()
        with Progress(console, stack, changes):
            say(f"loading {settings.rows:,} flights, with planes, airlines, airports and the weather")
            for source, workload in told:
                changes += load(source.database, workload, stop)
            say(f"loaded {changes.total():,} rows; waiting until they are applied")
            # so that latencies are not those of the load
            stack.wait_until_applied(changes, settings.patience, stop)
            say(f"changing rows: {settings.rate} changes a second for {settings.seconds} s")
            changed = _change(settings, stack, told, changes, stop, say)
            if stop.requested:
                raise StopRequestedError("asked to stop")
            say("writes have stopped; waiting until BigQuery equals Spanner")
            databases = _until_equal(settings, stack, changes, stop)
        processes.check()
        report = Report(
            databases=databases,
            changes=changes,
            written=stack.dataset.rows_written(),
            latencies=changed.latencies,
            columns=[
                AddedColumnSeen(story, changed.began, *rows_with(stack.dataset, story.column))
                for story in changed.columns
                if story.seen is not None
            ],
        )
    report.print(console)
    return 0 if report.equal else 1


def _change(
    settings: RunSettings,
    stack: Stack,
    told: Sequence[tuple[Source, Workload]],
    changes: Counter[str],
    stop: Stop,
    say: Say,
) -> Changed:
    """Commit transactions for the time and at the rate asked for, as far as the emulator keeps up.

    A third of them made, or half of the time over, each database gets its column.
    """
    every = max(1, settings.rate // _CHANGES_A_TRANSACTION // _SAMPLES_A_SECOND)
    began, done, added = time.monotonic(), 0, False
    tables = {table: rows for _, workload in told for table, rows in workload.tables.items()}
    with LatencyProbe(stack.dataset, every, stop) as probe, AddedColumns(stack.dataset) as columns:
        for source, transaction in _mixed(told, settings.changes):
            passed = time.monotonic() - began
            if passed > settings.seconds + 1:
                say(f"the emulator takes fewer than {settings.rate} changes a second: {done:,} are made")
                break
            due = began + done / settings.rate
            if stop.wait(timedelta(seconds=max(0.0, due - time.monotonic()))):
                break
            at = source.database.commit(transaction.writes)
            changes.update(transaction.changes)
            done += sum(transaction.changes.values())
            probe.committed(transaction, at, tables)
            columns.committed(transaction, at)
            if not added and (3 * done >= settings.changes or 2 * passed >= settings.seconds):
                added = True
                for each, workload in told:
                    columns.add(each.database, workload)
                    column = workload.demo.added
                    say(f"added column {column.name} to {column.table}; changes carry it from now on")
        return Changed(probe.finish(settings.patience), columns.finish(settings.patience), began)


def _mixed(told: Sequence[tuple[Source, Workload]], wanted: int) -> Iterator[tuple[Source, Transaction]]:
    """Yield the transactions of all databases, each having its share of the changes at any time."""
    coming = [workload.changes(wanted) for _, workload in told]
    done = [0] * len(told)
    while sum(done) < wanted:
        turn = min(range(len(told)), key=lambda number: done[number] / _SHARES[number])
        transaction = next(coming[turn])
        done[turn] += sum(transaction.changes.values())
        yield told[turn][0], transaction


def _until_equal(settings: RunSettings, stack: Stack, changes: Counter[str], stop: Stop) -> list[Compared]:
    """Compare as soon as everything is said to be applied, and again until equal or out of patience."""
    deadline = time.monotonic() + settings.patience.total_seconds()
    stack.wait_until_applied(changes, settings.patience, stop)
    while True:
        databases = [_compare(source, stack, changes) for source in stack.sources]
        if all(database.equal for database in databases) or time.monotonic() > deadline or stop.wait(_LOOK_AGAIN):
            return databases


def _compare(source: Source, stack: Stack, changes: Counter[str]) -> Compared:
    tables = compare_tables(source.database, stack.dataset, source.demo.keys)
    shapes = table_shapes(source.database) if source.demo.histories else {}
    histories = [
        compare_history(shapes[table], source.database.query(f"SELECT * FROM {table}"), stack.dataset, changes[table])
        for table in source.demo.histories
    ]
    counted = source.reader.metrics()
    split, merged = (counted.get(f"millrace_partitions_{what}_total", 0) for what in ("split", "merged"))
    return Compared(source.demo.name, source.demo.dialect, tables, histories, split, merged)
