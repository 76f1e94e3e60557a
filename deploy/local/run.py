"""`make run`: the whole pipeline on this machine, from start to proof."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.table import Table

from deploy.local.comparison import TableComparison, compare_tables
from deploy.local.demo.flights import read_flight_data
from deploy.local.demo.latency import Latencies, LatencyProbe
from deploy.local.demo.schema import TABLES
from deploy.local.demo.workload import Workload
from deploy.local.processes import Processes, StopRequestedError
from deploy.local.progress import Progress
from deploy.local.stack import Say, Stack, add_up, load, running_stack
from shared.runtime.settings import setting
from shared.runtime.stop import Stop

_LOOK_AGAIN: Final = timedelta(seconds=1)
_SAMPLES_A_SECOND: Final = 5
_CHANGES_A_TRANSACTION: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The size of a run."""

    rows: int = setting("flights that are loaded at the start", default=3000, least=1, most=336_776)
    seconds: int = setting("how long rows are changed after that", default=30, least=1)
    rate: int = setting("changes a second", default=60, least=1)
    patience: timedelta = setting("how long BigQuery may take to catch up", default=timedelta(seconds=60))
    seed: int = setting("which changes are made", default=2013)


def run(settings: RunSettings, processes: Processes, console: Console, say: Say) -> int:
    """Run it all; return 0 where BigQuery equals Spanner in the end, and 1 with what differs."""
    stop = processes.stop
    wanted = settings.rate * settings.seconds
    data = read_flight_data(settings.rows + wanted // 3 + 100)
    workload = Workload(data, settings.rows, settings.seed)
    with running_stack(processes, say) as stack:
        changes: dict[str, int] = {}
        with Progress(console, stack, lambda: sum(changes.values())):
            say(f"loading {settings.rows:,} flights, with all planes, airlines and airports")
            changes.update(load(stack.database, workload, stop))
            loaded = sum(changes.values())
            say(f"loaded {loaded:,} rows; waiting until they are applied")
            stack.wait_until_applied(loaded, settings.patience, stop)  # so that latencies are not those of the load
            say(f"changing rows: {settings.rate} changes a second for {settings.seconds} s")
            latencies = _change(settings, stack, workload, changes, stop, say)
            if stop.requested:
                raise StopRequestedError("asked to stop")
            say("writes have stopped; waiting until BigQuery equals Spanner")
            comparisons = _until_equal(settings, stack, sum(changes.values()), stop)
        processes.check()
        written = stack.dataset.rows_written()
        metrics = stack.reader.metrics()
    _print_report(console, comparisons, changes, written, latencies, metrics)
    return 0 if all(comparison.equal for comparison in comparisons) else 1


def _change(
    settings: RunSettings, stack: Stack, workload: Workload, changes: dict[str, int], stop: Stop, say: Say
) -> Latencies:
    """Commit the workload's transactions for the time and at the rate asked for, as far as the emulator keeps up."""
    every = max(1, settings.rate // _CHANGES_A_TRANSACTION // _SAMPLES_A_SECOND)
    began, done = time.monotonic(), 0
    with LatencyProbe(stack.dataset, every, stop) as probe:
        for transaction in workload.changes(settings.rate * settings.seconds):
            if time.monotonic() - began > settings.seconds + 1:
                say(f"the emulator takes fewer than {settings.rate} changes a second: {done:,} are made")
                break
            due = began + done / settings.rate
            if stop.wait(timedelta(seconds=max(0.0, due - time.monotonic()))):
                break
            committed = stack.database.commit(transaction.writes)
            add_up(changes, transaction)
            done += sum(transaction.changes.values())
            probe.committed(transaction, committed, workload.tables)
        return probe.finish(settings.patience)


def _until_equal(settings: RunSettings, stack: Stack, committed: int, stop: Stop) -> list[TableComparison]:
    """Compare as soon as everything is said to be applied, and again until equal or out of patience."""
    deadline = time.monotonic() + settings.patience.total_seconds()
    stack.wait_until_applied(committed, settings.patience, stop)
    while True:
        comparisons = compare_tables(stack.database, stack.dataset, TABLES)
        if all(one.equal for one in comparisons) or time.monotonic() > deadline or stop.wait(_LOOK_AGAIN):
            return comparisons


def _print_report(
    console: Console,
    comparisons: list[TableComparison],
    changes: Mapping[str, int],
    written: Mapping[str, int],
    latencies: Latencies,
    metrics: Mapping[str, float],
) -> None:
    table = Table("table", "rows", "differences", "changes", "BigQuery rows written")
    for one in comparisons:
        numbers = (f"{changes.get(one.table, 0):,}", f"{written.get(one.table, 0):,}")
        table.add_row(one.table, f"{one.rows:,}", f"{one.differing:,}" if one.differing else "none", *numbers)
    console.print(table)
    console.print(f"commit to queryable: {latencies}", soft_wrap=True)
    console.print(
        f"partitions: {metrics.get('millrace_partitions_split_total', 0):.0f} split, "
        f"{metrics.get('millrace_partitions_merged_total', 0):.0f} merged"
    )
    for one in comparisons:
        for named in one.named:
            console.print(f"  differs: {named}", markup=False, highlight=False, soft_wrap=True)
        if one.differing > len(one.named):
            console.print(f"  and {one.differing - len(one.named):,} more in {one.table}")
    equal = all(one.equal for one in comparisons)
    console.print("BigQuery equals Spanner, every column of every row" if equal else "BigQuery does NOT equal Spanner")
