"""The whole platform, started in order: emulators and stand-in, tables and topics, then the services."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from deploy.local import emulators
from deploy.local.demo.schema import FLIGHTS, WEATHER, DemoDatabase
from deploy.local.demo.workload import Workload
from deploy.local.processes import Processes
from deploy.local.services import Pipeline, Service, start_consumer, start_reader, wait_until_ready
from deploy.local.source import SpannerDatabase, SpannerInstance
from deploy.local.target import BigQueryDataset
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop

PROJECT: Final = "millrace-local"
INSTANCE: Final = "local"
DATABASES: Final = (FLIGHTS, WEATHER)
_TABLES_FILE: Final = "".join(f'[tables."{table}"]\nmode = "both"\n' for demo in DATABASES for table in demo.histories)

Say = Callable[[str], None]

_LOOK_AGAIN: Final = timedelta(milliseconds=500)


@dataclass(frozen=True)
class Source:
    """One database of the demo, and the reader of its change stream."""

    demo: DemoDatabase
    pipeline: Pipeline
    database: SpannerDatabase
    reader: Service


@dataclass(frozen=True)
class Stack:
    """Everything that runs, and the clients to look at it."""

    sources: Sequence[Source]
    dataset: BigQueryDataset
    consumer: Service

    @property
    def pipeline(self) -> Pipeline:
        """Return the first source's pipeline: all have the same topic and dataset."""
        return self.sources[0].pipeline

    def to_be_applied(self, changes: Mapping[str, int]) -> int:
        """Return how much of the committed changes, counted by table, BigQuery does not have yet.

        It has a change as itself or in a newer one of the same row; one that also goes into a history counts twice.
        """
        counted = self.consumer.metrics()
        applied = sum(counted.get(f"millrace_consumer_{what}_total", 0) for what in ("rows_written", "superseded"))
        in_histories = sum(changes.get(table, 0) for source in self.sources for table in source.demo.histories)
        return max(0, sum(changes.values()) + in_histories - int(applied))

    def wait_until_applied(self, changes: Mapping[str, int], patience: timedelta, stop: Stop) -> bool:
        """Wait until the committed changes are applied; return whether that came within patience."""
        deadline = time.monotonic() + patience.total_seconds()
        while self.to_be_applied(changes):
            if time.monotonic() > deadline or stop.wait(_LOOK_AGAIN):
                return False
        return True


@contextmanager
def running_stack(processes: Processes, say: Say, **spanner_flags: str) -> Iterator[Stack]:
    """Start the platform with the demo's empty tables, and end it in the opposite order."""
    with ExitStack() as stack:
        say("starting the Spanner and Pub/Sub emulators and the BigQuery stand-in")
        spanner = stack.enter_context(emulators.spanner_emulator(processes, **spanner_flags))
        pubsub = stack.enter_context(emulators.pubsub_emulator(processes))
        rest, grpc = stack.enter_context(emulators.bigquery_stand_in(processes))
        say("creating databases, change streams, topics and dataset")
        instance = SpannerInstance.create(spanner, PROJECT, INSTANCE)
        stack.callback(instance.close)
        tables_file = processes.directory / "tables.toml"
        tables_file.write_text(_TABLES_FILE)
        told = {"pubsub": pubsub, "bigquery_rest": rest, "bigquery_grpc": grpc, "tables_file": str(tables_file)}
        made = [_create(instance, demo, told) for demo in DATABASES]
        pipeline = made[0][1]
        pipeline.create_topics()
        dataset = BigQueryDataset(rest, PROJECT, pipeline.dataset)
        stack.callback(dataset.close)
        dataset.create()
        starts = [database.now() for database, _ in made]  # before the first row, so that the streams carry every row
        with _running_services(processes, [one for _, one in made], starts, say) as (readers, consumer):
            sources = [
                Source(demo, one, database, reader)
                for demo, (database, one), reader in zip(DATABASES, made, readers, strict=True)
            ]
            yield Stack(sources, dataset, consumer)
            say("stopping")


def _create(instance: SpannerInstance, demo: DemoDatabase, told: Mapping[str, str]) -> tuple[SpannerDatabase, Pipeline]:
    """Make a database of the demo, and one of the same dialect for its reader's partition table."""
    database = instance.create_database(demo.statements, demo.name, postgresql=demo.postgresql)
    partitions = instance.create_database([], f"{demo.name}-millrace", postgresql=demo.postgresql)
    return database, Pipeline(
        spanner=instance.address,
        project=PROJECT,
        instance=INSTANCE,
        database=demo.name,
        partition_database=partitions.name,
        change_stream=demo.change_stream,
        **told,
    )


@contextmanager
def _running_services(
    processes: Processes, pipelines: Sequence[Pipeline], starts: Sequence[Nanoseconds], say: Say
) -> Iterator[tuple[list[Service], Service]]:
    say(f"starting spanner_reader for {' and for '.join(_named(demo) for demo in DATABASES)}, and cdc_consumer (Spark)")
    services: list[Service] = []
    try:
        consumer = start_consumer(processes, pipelines[0])
        services.append(consumer)
        readers = []
        for pipeline, start in zip(pipelines, starts, strict=True):
            # often, because the lag that is shown is that of the quietest partition, known by its heartbeats alone
            name = f"spanner_reader_{pipeline.database}"
            readers.append(start_reader(processes, pipeline, name, start=start, HEARTBEAT_INTERVAL="1s"))
            services.append(readers[-1])
        wait_until_ready(processes, *readers, consumer)
        yield readers, consumer
    finally:
        for service in services:
            service.process.ask_to_end()
        for service in services:
            service.process.end()


def load(database: SpannerDatabase, workload: Workload, stop: Stop) -> Counter[str]:
    """Commit the rows that are there from the start; return how many per table."""
    loaded: Counter[str] = Counter()
    for transaction in workload.load():
        if stop.requested:
            break
        database.commit(transaction.writes)
        loaded.update(transaction.changes)
    return loaded


def _named(demo: DemoDatabase) -> str:
    return f"{demo.name} ({demo.dialect})"
