"""The whole platform, started in order: emulators and stand-in, tables and topics, then the two services."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from deploy.local import emulators
from deploy.local.demo import schema
from deploy.local.demo.workload import Transaction, Workload
from deploy.local.processes import Processes
from deploy.local.services import Pipeline, Service, start_consumer, start_reader, wait_until_ready
from deploy.local.source import SpannerDatabase, SpannerInstance
from deploy.local.target import BigQueryDataset
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop

PROJECT: Final = "millrace-local"
INSTANCE: Final = "local"
DATABASE: Final = "demo"
PARTITION_DATABASE: Final = "millrace"

Say = Callable[[str], None]

_LOOK_AGAIN: Final = timedelta(milliseconds=500)


@dataclass(frozen=True)
class Stack:
    """Everything that runs, and the clients to look at it."""

    pipeline: Pipeline
    database: SpannerDatabase
    dataset: BigQueryDataset
    reader: Service
    consumer: Service

    @property
    def applied(self) -> int:
        """Return how many changes BigQuery has, as themselves or in a newer one of the same row."""
        counted = self.consumer.metrics()
        return int(sum(counted.get(f"millrace_consumer_{what}_total", 0) for what in ("rows_written", "superseded")))

    def wait_until_applied(self, committed: int, patience: timedelta, stop: Stop) -> bool:
        """Wait until as many changes are applied as were committed; return whether that came within patience."""
        deadline = time.monotonic() + patience.total_seconds()
        while self.applied < committed:
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
        pipeline = Pipeline(
            spanner=spanner,
            pubsub=pubsub,
            bigquery_rest=rest,
            bigquery_grpc=grpc,
            project=PROJECT,
            instance=INSTANCE,
            database=DATABASE,
            partition_database=PARTITION_DATABASE,
            change_stream=schema.CHANGE_STREAM,
        )
        say("creating database, change stream, topics and dataset")
        instance = SpannerInstance.create(spanner, PROJECT, INSTANCE)
        stack.callback(instance.close)
        database = instance.create_database(schema.STATEMENTS, DATABASE)
        instance.create_database([], PARTITION_DATABASE)
        began = database.now()  # before the first row, so that the stream carries every row
        pipeline.create_topics()
        dataset = BigQueryDataset(rest, PROJECT, pipeline.dataset)
        stack.callback(dataset.close)
        dataset.create()
        with _running_services(processes, pipeline, began, say) as (reader, consumer):
            yield Stack(pipeline, database, dataset, reader, consumer)
            say("stopping")


@contextmanager
def _running_services(
    processes: Processes, pipeline: Pipeline, start: Nanoseconds, say: Say
) -> Iterator[tuple[Service, Service]]:
    say("starting spanner_reader and cdc_consumer (Spark)")
    services: list[Service] = []
    try:
        services.append(start_consumer(processes, pipeline))
        # often, because the lag that is shown is that of the quietest partition, known by its heartbeats alone
        services.append(start_reader(processes, pipeline, start=start, HEARTBEAT_INTERVAL="1s"))
        consumer, reader = services
        wait_until_ready(processes, reader, consumer)
        yield reader, consumer
    finally:
        for service in services:
            service.process.ask_to_end()
        for service in services:
            service.process.end()


def load(database: SpannerDatabase, workload: Workload, stop: Stop) -> Mapping[str, int]:
    """Commit the rows that are there from the start; return how many per table."""
    loaded: dict[str, int] = {}
    for transaction in workload.load():
        if stop.requested:
            break
        database.commit(transaction.writes)
        add_up(loaded, transaction)
    return loaded


def add_up(changes: dict[str, int], transaction: Transaction) -> None:
    """Add a transaction's changes to the changes per table."""
    for table, number in transaction.changes.items():
        changes[table] = changes.get(table, 0) + number
