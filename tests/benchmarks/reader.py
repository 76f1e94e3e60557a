"""The reader: how many records it reads, packs and publishes in a second of CPU, all confirmed by Pub/Sub.

CPU and not time, for the emulator serves a backlog slower than either side reads it. A record is a data change record
with one change in it, the smallest there is. The backlog is committed while the reader, ready and caught up, is
stopped; its own CPU seconds are taken from there to the last confirmation. Then the baseline reads the same backlog.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from deploy.local.platform import emulators
from deploy.local.platform.services import READER, Pipeline, Service
from deploy.local.platform.source import SpannerDatabase, SpannerInstance, Write
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.benchmarks.cpu import cpu_times, used_since
from tests.benchmarks.drain import run_module
from tests.benchmarks.pipelines import ASK_EVERY, PROJECT, Platform, paused, running_service, wait_until
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import CHANGE_STREAM, TABLES, row_values, spanner_schema

INSTANCE = "bench"
STOPPED = {"LEASE_DURATION": "10m"}
"""What a reader is told that is stopped for a while and must not lose its leases."""
_TARGET = 6.0
"""Times the baseline."""


@dataclass(frozen=True)
class Source:
    """A Spanner database of its own, with the tables and the change stream."""

    database: SpannerDatabase
    partitions: SpannerDatabase


@contextmanager
def running_spanner(platform: Platform) -> Iterator[SpannerInstance]:
    """Run the Spanner emulator, whose partitions stay as they are."""
    with emulators.spanner_emulator(platform.processes, enable_change_stream_churning="false") as address:
        instance = SpannerInstance.create(address, PROJECT, INSTANCE)
        with closing(instance):
            yield instance


@contextmanager
def fresh_source(instance: SpannerInstance, name: str) -> Iterator[Source]:
    """Make a database, and drop it: the emulator slows down with the history of change streams."""
    database = instance.create_database(spanner_schema(), name)
    source = Source(database, instance.create_database([], f"{name}-partitions"))
    yield source
    source.database.drop()
    source.partitions.drop()


def pipeline_of(platform: Platform, name: str, source: Source) -> Pipeline:
    """Return the pipeline that reads a source."""
    return platform.pipeline(
        name,
        spanner=source.database.instance.address,
        instance=INSTANCE,
        database=source.database.name,
        partition_database=source.partitions.name,
    )


@contextmanager
def running_reader(
    platform: Platform, pipeline: Pipeline, start: Nanoseconds, name: str, **more: str
) -> Iterator[Service]:
    """Run the reader of a pipeline; ``more`` are settings, and variables."""
    environment = {**pipeline.reader_environment(start), **more}
    with running_service(platform.processes, READER, name, environment) as service:
        yield service


def measure_reader(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure the reader with and without ordering keys, then the baseline, which has none; each on tables of its own.

    Each run has an emulator of its own.
    """
    ours: dict[str, list[float]] = {"key": [], "none": []}
    theirs: list[float] = []
    for number in range(1, sizes.runs + 1):
        with running_spanner(platform) as instance:
            for ordering, measured in ours.items():
                name = f"reader-{ordering}-{number}"
                with fresh_source(instance, name) as source:
                    pipeline = pipeline_of(platform, name, source)
                    start = source.database.now()
                    with running_reader(platform, pipeline, start, name, ORDERING=ordering, **STOPPED) as reader:
                        measured.append(read_backlog(platform, source, reader, sizes.records))
                    if ordering == "none":
                        theirs.append(_baseline(platform, pipeline, start, source.database.now()))
        platform.print_line(
            f"  reader {ours['key'][-1]:,.0f} records a CPU second, without ordering keys {ours['none'][-1]:,.0f}, "
            f"baseline {theirs[-1]:,.0f}"
        )
    note = "records of one change, read, packed, published, confirmed"
    return [
        Measured(
            name=name,
            unit="records/CPU s",
            runs=ours[ordering],
            baseline_runs=theirs,
            times_baseline=_TARGET,
            note=note + more,
        )
        for ordering, name, more in (
            ("key", "reader.records_per_cpu_second", ""),
            ("none", "reader.unordered.records_per_cpu_second", "; ORDERING=none: the baseline has no ordering keys"),
        )
    ]


def read_backlog(
    platform: Platform, source: Source, reader: Service, records: int, before_it: Callable[[], None] = lambda: None
) -> float:
    """Commit a backlog while the reader is stopped; return records per CPU second once it goes on.

    ``before_it`` is called when the backlog is there and the reader still stopped.
    """
    commit(source.database, 0, 1)  # so that what is done once, for the first record, is done
    wait_until(platform, lambda: _published(reader) >= len(TABLES), "the first change to be published")
    already = _published(reader)
    with paused(reader):
        rounds = records // len(TABLES)
        for number in range(1, rounds + 1):
            commit(source.database, number, 1)
        before_it()
        before = cpu_times(reader.process)
    wait_until(
        platform,
        lambda: _published(reader) >= already + rounds * len(TABLES),
        "the backlog to be published",
        ASK_EVERY,
    )
    return rounds * len(TABLES) / used_since(before, reader.process)


def commit(database: SpannerDatabase, number: int, rows: int, tables: Sequence[str] = TABLES) -> int:
    """Write so many rows to each of the tables in one transaction; return its commit timestamp in nanoseconds."""
    writes = [
        Write("insert_or_update", table, row_values(number * rows + row, number * rows + row))
        for table in tables
        for row in range(rows)
    ]
    return database.commit(writes)


def _published(reader: Service) -> int:
    return int(reader.metrics()["millrace_published_changes_total"])


def _baseline(platform: Platform, pipeline: Pipeline, start: Nanoseconds, end: Nanoseconds) -> float:
    topic = pipeline.topology.topic
    answer = run_module(
        platform,
        "tests.benchmarks.baseline_reader",
        {
            "project": PROJECT,
            "instance": INSTANCE,
            "database": pipeline.database,
            "change_stream": CHANGE_STREAM,
            "topic": topic,
            "start": format_timestamp(start)[:26].rstrip("Z") + "+00:00",
            "end": format_timestamp(end)[:26].rstrip("Z") + "+00:00",
        },
        SPANNER_EMULATOR_HOST=pipeline.spanner,
        PUBSUB_EMULATOR_HOST=pipeline.pubsub,
    )
    return answer["records"] / answer["cpu_seconds"]
