"""The Bigtable reader: records a CPU second in both modes, and how long a write takes until it is published.

As for the Spanner reader, CPU and not time: the backlog comes out of a front in Python. It is written while the reader,
ready and caught up, is stopped; every record is of a row of its own, so that no reading back is saved by another.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local.platform import emulators
from deploy.local.platform.bigtable import BigtableInstance, BigtableTable
from deploy.local.platform.cells import MutateRow, MutateRows, Mutation, SetCell
from deploy.local.platform.services import BIGTABLE_READER, BigtablePipeline, Service
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.benchmarks.cpu import cpu_times, used_since
from tests.benchmarks.drain import run_module
from tests.benchmarks.pipelines import ASK_EVERY, PROJECT, Platform, paused, running_service, wait_until
from tests.benchmarks.publications import pulled
from tests.benchmarks.results import Measured, percentile
from tests.benchmarks.sizes import Sizes

INSTANCE: Final = "bench"
PROFILE: Final = "bench"
_FAMILY: Final = "f"
_QUALIFIERS: Final = (b"carrier", b"departure", b"remarks")
_VALUE_BYTES: Final = 120
ROWS_A_CALL: Final = 500
_RATE: Final = 200
_TARGET: Final = 6.0
"""Times the baseline."""
STOPPED: Final = {"LEASE_DURATION": "10m", "HEARTBEAT_INTERVAL": "2m"}
"""What a reader is told that is stopped for a while: it may lose neither its lease nor its stream to a timeout."""


@dataclass(frozen=True)
class Mode:
    """What is published of a record."""

    name: str
    in_tables_file: str
    changes: int
    """Of one record."""


MODES: Final = (Mode("row", "mirror", 1), Mode("changelog", "history", len(_QUALIFIERS)))


def measure_bigtable(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure the reader and the baseline in turn, each pair on a table of its own; then the latency."""
    measured = []
    with emulators.bigtable_front(platform.processes) as front, closing(instance_on(front)) as instance:
        for mode in MODES:
            ours: list[float] = []
            theirs: list[float] = []
            for number in range(1, sizes.runs + 1):
                pipeline = pipeline_of(platform, instance, f"bigtable-{mode.name}-{number}", mode)
                with running_bigtable_reader(platform, pipeline, **STOPPED) as reader:
                    start = Nanoseconds(time.time_ns())
                    ours.append(read_backlog(platform, instance, pipeline, reader, mode, sizes.records))
                theirs.append(_baseline(platform, pipeline, mode, start, sizes.records))
                platform.print_line(
                    f"  bigtable {mode.name} {ours[-1]:,.0f} records a CPU second, baseline {theirs[-1]:,.0f}"
                )
            measured.append(
                Measured(
                    name=f"bigtable_reader.{mode.name}.records_per_cpu_second",
                    unit="records/CPU s",
                    runs=ours,
                    baseline_runs=theirs,
                    times_baseline=_TARGET,
                    note=f"records of {len(_QUALIFIERS)} cells, read, published, confirmed",
                )
            )
        latencies = [_latencies(platform, instance, number, sizes.seconds) for number in range(1, sizes.runs + 1)]
    for percent in (50, 99):
        runs = [percentile(found, percent) for found in latencies]
        name = f"bigtable_reader.published_p{percent}_at_{_RATE}"
        measured.append(Measured(name=name, unit="s", runs=runs, note="row mode, commit to publish time"))
    return measured


def instance_on(front: str) -> BigtableInstance:
    """Return the instance on a front, with the profile that the reader uses."""
    instance = BigtableInstance(front, PROJECT, INSTANCE)
    instance.create_profile(PROFILE, f"{INSTANCE}-c1")
    return instance


def pipeline_of(platform: Platform, instance: BigtableInstance, name: str, mode: Mode) -> BigtablePipeline:
    """Return a pipeline from a table of its own, which is made as are its topics."""
    instance.create_table(BigtableTable(name, {_FAMILY: 0}))
    tables = Path(platform.processes.directory, f"{name}.toml")
    tables.write_text(f'[defaults]\nmode = "{mode.in_tables_file}"\n')
    pipeline = BigtablePipeline(
        bigtable=instance.address,
        instance=INSTANCE,
        table=name,
        app_profile=PROFILE,
        pubsub=platform.pubsub,
        bigquery_rest=platform.rest,
        bigquery_grpc=platform.grpc,
        project=PROJECT,
        name=name,
        tables_file=str(tables),
    )
    pipeline.create_topics()
    return pipeline


@contextmanager
def running_bigtable_reader(platform: Platform, pipeline: BigtablePipeline, **more: str) -> Iterator[Service]:
    """Run the reader; ``more`` are settings, and variables.

    It takes no snapshot by itself: that might read what is written from here on, and would count as more published
    changes.
    """
    environment = {**pipeline.reader_environment(), "SNAPSHOT": "never", **more}
    with running_service(platform.processes, BIGTABLE_READER, pipeline.name, environment) as service:
        yield service


def read_backlog(
    platform: Platform,
    instance: BigtableInstance,
    pipeline: BigtablePipeline,
    reader: Service,
    mode: Mode,
    records: int,
    *,
    before_it: Callable[[], None] = lambda: None,
) -> float:
    """Write a backlog while the reader is stopped; return records per CPU second once it goes on.

    ``before_it`` is called when the backlog is there and the reader still stopped.
    """
    instance.apply(MutateRow(pipeline.table, b"the first", cells_of(0)))  # so that what is done once is done
    wait_until(platform, lambda: _published(reader) >= mode.changes, "the first change to be published")
    already = _published(reader)
    with paused(reader):
        for first in range(0, records, ROWS_A_CALL):
            numbers = range(first, min(records, first + ROWS_A_CALL))
            rows = [MutateRow(pipeline.table, row_key(each), cells_of(each)) for each in numbers]
            instance.apply(MutateRows(pipeline.table, rows))
        before_it()
        before = cpu_times(reader.process)
    wanted = already + records * mode.changes
    wait_until(platform, lambda: _published(reader) >= wanted, "the backlog to be published", ASK_EVERY)
    return records / used_since(before, reader.process)


def _baseline(platform: Platform, pipeline: BigtablePipeline, mode: Mode, start: Nanoseconds, records: int) -> float:
    answer = run_module(
        platform,
        "tests.benchmarks.baseline_bigtable",
        {
            "address": pipeline.bigtable,
            "table": f"projects/{PROJECT}/instances/{INSTANCE}/tables/{pipeline.table}",
            "app_profile": PROFILE,
            "topic": pipeline.topology.topic,
            "start": start // 1000,
            "end": time.time_ns() // 1000,
            "mode": mode.name,
        },
        PUBSUB_EMULATOR_HOST=pipeline.pubsub,
    )
    if answer["records"] < records:
        raise RuntimeError(f"the baseline read {answer['records']:.0f} of {records} records")
    return answer["records"] / answer["cpu_seconds"]


def _latencies(platform: Platform, instance: BigtableInstance, number: int, seconds: int) -> Sequence[float]:
    """Write rows at a steady rate; return how many seconds each image was published after the commit it was read for.

    Both are of this machine's one clock: the front's commit timestamp, and the time that Pub/Sub gives a message.
    """
    pipeline = pipeline_of(platform, instance, f"bigtable-latency-{number}", MODES[0])
    writes = _RATE * seconds
    with running_bigtable_reader(platform, pipeline, **STOPPED) as reader:
        instance.apply(MutateRow(pipeline.table, b"the first", cells_of(0)))
        wait_until(platform, lambda: _published(reader) >= 1, "the first change to be published")
        began = time.monotonic()
        for each in range(writes):
            time.sleep(max(0.0, began + each / _RATE - time.monotonic()))
            instance.apply(MutateRow(pipeline.table, row_key(each), cells_of(each)))
        wait_until(platform, lambda: _published(reader) >= writes + 1, "everything to be published")
    found = [
        (at - parse_timestamp(commit)) / 1e9
        for at, batch in pulled(platform, pipeline)
        for commit in batch.commit_timestamp
    ]
    return found[1:]


def cells_of(number: int) -> tuple[Mutation, ...]:
    """Return the cells of a row."""
    timestamp = (1_000_000 + number) * 1_000
    return tuple(SetCell(_FAMILY, qualifier, timestamp, b"%0*d" % (_VALUE_BYTES, number)) for qualifier in _QUALIFIERS)


def row_key(number: int) -> bytes:
    """Return the key of a row; they are in the order of their numbers."""
    return b"row#%08d" % number


def _published(reader: Service) -> int:
    return int(reader.metrics()["millrace_published_changes_total"])
