"""The whole platform, started in order: emulators and stand-ins, tables and topics, then the services."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from deploy.local import emulators
from deploy.local.bigtable import BigtableInstance
from deploy.local.demo.schema import FLIGHTS, WEATHER, DemoDatabase
from deploy.local.demo.wide_tables import WIDE_TABLES, WideTable
from deploy.local.processes import Processes
from deploy.local.services import (
    AnyPipeline,
    BigtablePipeline,
    Flow,
    LettersApi,
    Pipeline,
    Service,
    start_consumer,
    start_dead_letter,
    start_reader,
    wait_until_ready,
)
from deploy.local.source import SpannerDatabase, SpannerInstance
from deploy.local.target import BigQueryDataset
from shared.contracts.timestamps import Nanoseconds

PROJECT: Final = "millrace-local"
INSTANCE: Final = "local"
CLUSTER: Final = f"{INSTANCE}-c1"
APP_PROFILE: Final = "millrace"
DATABASES: Final = (FLIGHTS, WEATHER)

Sources = Literal["both", "spanner", "bigtable"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """One database of the demo, and the reader of its change stream."""

    demo: DemoDatabase
    pipeline: Pipeline
    database: SpannerDatabase
    reader: Service


@dataclass(frozen=True)
class WideSource:
    """One table of the demo in Bigtable, and the reader of its change stream."""

    demo: WideTable
    pipeline: BigtablePipeline
    instance: BigtableInstance
    reader: Service


@dataclass(frozen=True)
class Stack:
    """Everything that runs, and the clients to look at it."""

    flow: Flow
    databases: Sequence[Source]
    wide_tables: Sequence[WideSource]
    dataset: BigQueryDataset
    consumer: Service
    dead_letter: Service
    letters_api: LettersApi

    @property
    def pipelines(self) -> Sequence[AnyPipeline]:
        """Return the pipelines of all readers."""
        return [*(one.pipeline for one in self.databases), *(one.pipeline for one in self.wide_tables)]

    def applied(self) -> int:
        """Return how many changes BigQuery has, as themselves or in a newer one of the same row."""
        counted = self.consumer.metrics()
        return int(sum(counted.get(f"millrace_consumer_{what}_total", 0) for what in ("rows_written", "superseded")))


@dataclass(frozen=True)
class _Planned:
    """A reader that is to be started, from when on, and what becomes of it."""

    name: str
    pipeline: AnyPipeline
    start: Nanoseconds


@contextmanager
def running_stack(processes: Processes, say: Say, sources: Sources = "both", **spanner_flags: str) -> Iterator[Stack]:
    """Start the platform with the demo's empty tables, and end it in the opposite order."""
    with ExitStack() as stack:
        with_spanner, with_bigtable = sources != "bigtable", sources != "spanner"
        named = [*(["Spanner"] if with_spanner else []), *(["Bigtable"] if with_bigtable else []), "Pub/Sub"]
        say(f"starting the emulators of {', '.join(named)}, and the BigQuery stand-in")
        spanner = bigtable = ""
        if with_spanner:
            spanner = stack.enter_context(emulators.spanner_emulator(processes, **spanner_flags))
        if with_bigtable:
            bigtable = stack.enter_context(emulators.bigtable_front(processes))
        pubsub = stack.enter_context(emulators.pubsub_emulator(processes))
        rest, grpc = stack.enter_context(emulators.bigquery_stand_in(processes))
        say("creating databases, tables, change streams, topics and dataset")
        tables_file = processes.directory / "tables.toml"
        tables_file.write_text(_tables_file())
        told: dict[str, Any] = {"pubsub": pubsub, "bigquery_rest": rest, "bigquery_grpc": grpc}
        told |= {"project": PROJECT, "tables_file": str(tables_file)}
        flow = Flow(**told)
        flow.create_topics()
        dataset = BigQueryDataset(rest, PROJECT, flow.dataset)
        stack.callback(dataset.close)
        dataset.create()
        databases = _create_databases(stack, spanner, told) if with_spanner else []
        wide = _create_tables(stack, bigtable, told) if with_bigtable else []
        # before the first row, so that the streams carry every row
        planned = [_Planned(f"spanner_reader_{one.database}", one, database.now()) for database, one in databases]
        planned += [_Planned(f"bigtable_reader_{one.table}", one, _now()) for _, one in wide]
        api = LettersApi.create(processes.directory)
        with _running_services(processes, flow, api, planned, say) as (consumer, dead_letter, readers):
            yield Stack(
                flow,
                [
                    Source(demo, one, database, reader)
                    for demo, (database, one), reader in zip(DATABASES, databases, readers, strict=False)
                ],
                [
                    WideSource(demo, one, instance, reader)
                    for demo, (instance, one), reader in zip(WIDE_TABLES, wide, readers[len(databases) :], strict=False)
                ],
                dataset,
                consumer,
                dead_letter,
                api,
            )
            say("stopping")


def _tables_file() -> str:
    histories = [f'[tables."{table}"]\nmode = "both"\n' for demo in DATABASES for table in demo.histories]
    return "\n".join([*histories, *(table.options for table in WIDE_TABLES)])


def _create_databases(
    stack: ExitStack, address: str, told: Mapping[str, Any]
) -> list[tuple[SpannerDatabase, Pipeline]]:
    """Make the databases of the demo, and for each one of the same dialect for its reader's partition table."""
    instance = SpannerInstance.create(address, PROJECT, INSTANCE)
    stack.callback(instance.close)
    made = []
    for demo in DATABASES:
        database = instance.create_database(demo.statements, demo.name, postgresql=demo.postgresql)
        partitions = instance.create_database([], f"{demo.name}-millrace", postgresql=demo.postgresql)
        pipeline = Pipeline(
            spanner=address,
            instance=INSTANCE,
            database=demo.name,
            partition_database=partitions.name,
            change_stream=demo.change_stream,
            **told,
        )
        made.append((database, pipeline))
    return made


def _create_tables(
    stack: ExitStack, address: str, told: Mapping[str, Any]
) -> list[tuple[BigtableInstance, BigtablePipeline]]:
    """Make the tables of the demo, and the app profile by which their readers read them."""
    instance = BigtableInstance(address, PROJECT, INSTANCE)
    stack.callback(instance.close)
    instance.create_profile(APP_PROFILE, CLUSTER)
    made = []
    for demo in WIDE_TABLES:
        instance.create_table(demo.table)
        pipeline = BigtablePipeline(
            bigtable=address, instance=INSTANCE, table=demo.name, app_profile=APP_PROFILE, **told
        )
        made.append((instance, pipeline))
    return made


def _now() -> Nanoseconds:
    """Return the time of this machine, which is the front's too."""
    return Nanoseconds(time.time_ns())


@contextmanager
def _running_services(
    processes: Processes, flow: Flow, api: LettersApi, planned: Sequence[_Planned], say: Say
) -> Iterator[tuple[Service, Service, list[Service]]]:
    say(f"starting {', '.join(one.name for one in planned)}, cdc_consumer (Spark), and dead_letter")
    services: list[Service] = []
    try:
        consumer = start_consumer(processes, flow)
        services.append(consumer)
        dead_letter = start_dead_letter(processes, flow, **api.settings)
        services.append(dead_letter)
        # heartbeats often, because the lag that is shown is that of the quietest partition, known by these alone
        readers = [
            start_reader(processes, one.pipeline, one.name, start=one.start, HEARTBEAT_INTERVAL="1s") for one in planned
        ]
        services += readers
        wait_until_ready(processes, *readers, dead_letter, consumer)
        yield consumer, dead_letter, readers
    finally:
        for service in services:
            service.process.ask_to_end()
        for service in services:
            service.process.end()
