"""A snapshot of a Bigtable table: how fast its rows are read and published, and how much CPU a row takes.

As for Spanner: the reader is ready and caught up when the snapshot is asked for, by the command, as for a resync. The
table is filled before its stream is read, so nothing else flows. Then the baseline reads the same rows.
"""

import subprocess
import sys
import time
from contextlib import closing
from typing import Final

from deploy.local.platform import emulators
from deploy.local.platform.cells import MutateRow, MutateRows
from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import BIGTABLE_READER, BigtablePipeline, Service
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.benchmarks.bigtable import (
    INSTANCE,
    MODES,
    PROFILE,
    ROWS_A_CALL,
    cells_of,
    instance_on,
    pipeline_of,
    row_key,
    running_bigtable_reader,
)
from tests.benchmarks.cpu import cpu_times, used_since
from tests.benchmarks.drain import run_module
from tests.benchmarks.pipelines import PROJECT, Platform, wait_until
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.snapshot import POLL_EVERY, confirmed_rows, in_words, measured_rows

_NAME: Final = "bigtable-snapshot"
_A_FIFTH: Final = 5


def measure_bigtable_snapshot(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure the reader and the baseline in turn, on the same rows."""
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    waited: list[float] = []
    rows = sizes.snapshot_rows
    with emulators.bigtable_front(platform.processes) as front, closing(instance_on(front)) as instance:
        pipeline = pipeline_of(platform, instance, _NAME, MODES[0])
        for first in range(0, rows, ROWS_A_CALL):
            numbers = range(first, min(rows, first + ROWS_A_CALL))
            filled = [MutateRow(pipeline.table, row_key(each), cells_of(each)) for each in numbers]
            instance.apply(MutateRows(pipeline.table, filled))
        begin = format_timestamp(Nanoseconds(time.time_ns()))
        with running_bigtable_reader(platform, pipeline, START_TIMESTAMP=begin) as reader:
            fifth = rows // _A_FIFTH  # so that what is done once is done
            _take(platform, pipeline, reader, fifth, "--until", row_key(fifth - 1).decode())
            for _ in range(sizes.runs):
                wait, *taken = _take(platform, pipeline, reader, rows)
                waited.append(wait)
                ours.append((taken[0], taken[1]))
                theirs.append(_baseline(platform, pipeline, rows))
                platform.print_line(f"  {in_words(_NAME, *ours[-1], rows)}; {in_words('baseline', *theirs[-1], rows)}")
    note = f"{rows:,} rows of three cells of 120 bytes, read, packed, published, confirmed"
    return [
        *measured_rows("bigtable_snapshot", rows, ours, theirs, note),
        Measured(
            name="bigtable_snapshot.first_rows_after",
            unit="s",
            runs=waited,
            note="from the end of the command until the first rows are confirmed",
        ),
    ]


def _take(
    platform: Platform, pipeline: BigtablePipeline, reader: Service, rows: int, *keys: str
) -> tuple[float, float, float]:
    """Have a snapshot taken by the command; return how long its first rows took, its seconds since, its CPU seconds.

    The command is a process of its own, and not counted. Until the first rows come the reader notices what was asked
    for, and the numbers that rows are published under come to be above all versions made before. The clock of the
    reading starts at the last look that showed none of them.
    """
    already, before = confirmed_rows(reader), cpu_times(reader.process)
    command = [sys.executable, "-m", BIGTABLE_READER, "snapshot", *keys]
    environment = {**platform.processes.environment, **pipeline.reader_environment(), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    asked = none_at = time.monotonic()

    def some() -> bool:
        nonlocal none_at
        looked_at = time.monotonic()
        if confirmed_rows(reader) > already:
            return True
        none_at = looked_at
        return False

    wait_until(platform, some, "the first rows of the snapshot", POLL_EVERY)
    wait_until(platform, lambda: confirmed_rows(reader) >= already + rows, "the snapshot to be published", POLL_EVERY)
    return none_at - asked, time.monotonic() - none_at, used_since(before, reader.process)


def _baseline(platform: Platform, pipeline: BigtablePipeline, rows: int) -> tuple[float, float]:
    answer = run_module(
        platform,
        "tests.benchmarks.baseline_bigtable_snapshot",
        {
            "project": PROJECT,
            "instance": INSTANCE,
            "table": pipeline.table,
            "app_profile": PROFILE,
            "topic": pipeline.topology.topic,
        },
        BIGTABLE_EMULATOR_HOST=pipeline.bigtable,
        PUBSUB_EMULATOR_HOST=pipeline.pubsub,
    )
    if answer["rows"] != rows:
        raise RuntimeError(f"the baseline read {answer['rows']:,.0f} rows of {rows:,}")
    return answer["seconds"], answer["cpu_seconds"]
