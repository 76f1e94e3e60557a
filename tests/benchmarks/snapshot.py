"""A snapshot: how fast the rows that are there already are read and published, and how much CPU a row takes.

The reader is ready and caught up when the snapshot is asked for, by the command, as for a resync. The tables are
filled before there is a change stream, so nothing else flows. Then the baseline reads the same rows.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from deploy.local.demo.package_data import batches_of
from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import READER, Pipeline, Service
from deploy.local.platform.source import SpannerInstance, Write
from shared.contracts.timestamps import format_timestamp, parse_timestamp
from tests.benchmarks.cpu import cpu_times, used_since
from tests.benchmarks.drain import run_module
from tests.benchmarks.pipelines import PROJECT, Platform, wait_until
from tests.benchmarks.reader import INSTANCE, Source, pipeline_of, running_reader, running_spanner
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import COLUMNS, TABLES, row_values, spanner_schema

_ROWS_A_COMMIT: Final = 1_000
_SETTINGS: Final = {"SNAPSHOT": "never", "LOG_LEVEL": "INFO"}
Runs = Sequence[tuple[float, float]]
"""Seconds of each run, and its CPU seconds."""
POLL_EVERY: Final = 0.1  # seconds; what is measured ends by so much too late at most


def measure_snapshot(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure the reader and the baseline in turn, on the same rows."""
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    rows = sizes.snapshot_rows // len(TABLES) * len(TABLES)
    with running_spanner(platform) as instance, _filled(instance, rows) as source:
        pipeline = pipeline_of(platform, "snapshot", source)
        with running_reader(platform, pipeline, source.database.now(), "snapshot", **_SETTINGS) as reader:
            _take(platform, pipeline, reader, rows // len(TABLES), TABLES[0])  # so that what is done once is done
            for _ in range(sizes.runs):
                ours.append(_take(platform, pipeline, reader, rows, "--all"))
                theirs.append(_baseline(platform, pipeline, source, rows))
                platform.print_line(
                    f"  {in_words('snapshot', *ours[-1], rows)}; {in_words('baseline', *theirs[-1], rows)}"
                )
    note = f"{rows:,} rows of 450 bytes in {len(TABLES)} tables, read, packed, published, confirmed"
    return measured_rows("snapshot", rows, ours, theirs, note)


@contextmanager
def _filled(instance: SpannerInstance, rows: int) -> Iterator[Source]:
    """Make a database with so many rows, which were there before its change stream."""
    *tables, watched = spanner_schema()
    database = instance.create_database(tables, "snapshot")
    for table in TABLES:
        for keys in batches_of(range(rows // len(TABLES)), _ROWS_A_COMMIT):
            database.commit([Write("insert", table, row_values(key, key)) for key in keys])
    database.alter(watched)
    source = Source(database, instance.create_database([], "snapshot-partitions"))
    yield source
    source.database.drop()
    source.partitions.drop()


def _take(platform: Platform, pipeline: Pipeline, reader: Service, rows: int, *tables: str) -> tuple[float, float]:
    """Have a snapshot taken by the command; return the seconds since its first range was claimed, and its CPU seconds.

    The command is a process of its own, and not counted; nor is the time until the reader notices what was asked for.
    """
    already, claimed = confirmed_rows(reader), len(_claims(reader))
    before = cpu_times(reader.process)
    command = [sys.executable, "-m", READER, "snapshot", *tables]
    environment = {**platform.processes.environment, **pipeline.reader_environment(), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    wait_until(platform, lambda: confirmed_rows(reader) >= already + rows, "the snapshot to be published", POLL_EVERY)
    ended, cpu = time.time(), used_since(before, reader.process)
    return ended - _claims(reader)[claimed], cpu


def confirmed_rows(reader: Service) -> int:
    """Return how many rows of snapshots a reader has had confirmed by Pub/Sub."""
    return int(reader.metrics()["millrace_reader_snapshot_rows_total"])


def _claims(reader: Service) -> list[float]:
    """Return when, in seconds since the epoch, each range was claimed, as the reader's log has it."""
    lines = [line for line in reader.process.output().splitlines() if '"snapshot_range_claimed"' in line]
    return [parse_timestamp(json.loads(line)["time"]) / 1e9 for line in lines]


def _baseline(platform: Platform, pipeline: Pipeline, source: Source, rows: int) -> tuple[float, float]:
    answer = run_module(
        platform,
        "tests.benchmarks.baseline_snapshot",
        {
            "project": PROJECT,
            "instance": INSTANCE,
            "database": pipeline.database,
            "tables": TABLES,
            "columns": list(COLUMNS),
            "topic": pipeline.topology.topic,
            "at": format_timestamp(source.database.now())[:26].rstrip("Z") + "+00:00",
        },
        SPANNER_EMULATOR_HOST=pipeline.spanner,
        PUBSUB_EMULATOR_HOST=pipeline.pubsub,
    )
    if answer["rows"] != rows:
        raise RuntimeError(f"the baseline read {answer['rows']:,.0f} rows of {rows:,}")
    return answer["seconds"], answer["cpu_seconds"]


def in_words(what: str, seconds: float, cpu: float, rows: int) -> str:
    """Return what was measured in a run, as it is said."""
    return f"{what} {rows / seconds:,.0f} rows/s, {cpu / rows * 1e6:.0f} us of CPU a row"


def measured_rows(name: str, rows: int, ours: Runs, theirs: Runs, note: str) -> list[Measured]:
    """Return what was measured in all runs."""
    rates = [[rows / seconds for seconds, _ in runs] for runs in (ours, theirs)]
    costs = [[cpu / rows * 1e6 for _, cpu in runs] for runs in (ours, theirs)]
    return [
        Measured(name=f"{name}.rows_per_second", unit="rows/s", runs=rates[0], baseline_runs=rates[1], note=note),
        Measured(name=f"{name}.cpu_per_row", unit="us", runs=costs[0], baseline_runs=costs[1], note=note),
    ]
