"""The whole platform, started in order: emulators and stand-ins, tables and topics, then the services."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from deploy.local.demo.schema import DemoDatabase
from deploy.local.demo.wide_tables import WIDE_TABLES, WideTable
from deploy.local.platform import emulators
from deploy.local.platform.bigtable import BigtableInstance
from deploy.local.platform.creation import DATABASES, Addresses, Platform, platform_at, tables_file
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import (
    AnyPipeline,
    BigtablePipeline,
    DeadLettersApi,
    Endpoint,
    Flow,
    Pipeline,
    Service,
    start_consumer,
    start_dead_letter,
    start_reader,
    wait_until_ready,
)
from deploy.local.platform.source import SpannerDatabase
from deploy.local.platform.target import BigQueryDataset
from shared.contracts.timestamps import Nanoseconds

_SNAPSHOT_SECONDS: Final = 15

Sources = Literal["both", "spanner", "bigtable"]
PrintLine = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """One database of the demo, and the reader of its change stream."""

    demo: DemoDatabase
    pipeline: Pipeline
    database: SpannerDatabase
    reader: Endpoint


@dataclass(frozen=True)
class WideSource:
    """One table of the demo in Bigtable, and the reader of its change stream."""

    demo: WideTable
    pipeline: BigtablePipeline
    instance: BigtableInstance
    reader: Endpoint


@dataclass(frozen=True)
class Stack:
    """Everything that runs, and the clients that read it."""

    flow: Flow
    databases: Sequence[Source]
    wide_tables: Sequence[WideSource]
    dataset: BigQueryDataset
    consumer: Endpoint
    dead_letter: Endpoint
    dead_letters_api: DeadLettersApi | None = None
    """None where no service has one."""
    wait: Callable[[], None] = lambda: None
    """Waits until all of it is ready. Readers that take a snapshot are before, and rows may be written from then on."""

    @property
    def pipelines(self) -> Sequence[AnyPipeline]:
        """Return the pipelines of all readers."""
        return [*(one.pipeline for one in self.databases), *(one.pipeline for one in self.wide_tables)]

    def applied(self) -> int:
        """Return how many changes BigQuery has, as themselves or in a newer one of the same row."""
        counted = self.consumer.metrics()
        names = ("millrace_consumer_written_rows_total", "millrace_consumer_superseded_changes_total")
        return int(sum(counted[name] for name in names))


@dataclass(frozen=True)
class _Planned:
    """A reader that is to be started, from when on, and what becomes of it."""

    name: str
    pipeline: AnyPipeline
    start: Nanoseconds
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of its snapshot, if it takes one."""


@contextmanager
def running_platform(
    processes: Processes, print_line: PrintLine, sources: Sources = "both", before: int = 0, **spanner_flags: str
) -> Iterator[Platform]:
    """Start the emulators and stand-ins, make the demo's tables in them, and end them in the opposite order."""
    with ExitStack() as stack:
        with_spanner, with_bigtable = sources != "bigtable", sources != "spanner"
        named = [*(["Spanner"] if with_spanner else []), *(["Bigtable"] if with_bigtable else []), "Pub/Sub"]
        print_line(f"starting the emulators of {', '.join(named)}, and the BigQuery stand-in")
        spanner = bigtable = ""
        if with_spanner:
            spanner = stack.enter_context(emulators.spanner_emulator(processes, **spanner_flags))
        if with_bigtable:
            bigtable = stack.enter_context(emulators.bigtable_front(processes))
        pubsub = stack.enter_context(emulators.pubsub_emulator(processes))
        rest, grpc = stack.enter_context(emulators.bigquery_stand_in(processes))
        filling = f" with {before:,} flights, with what belongs to them, and the weather" if before else ""
        print_line(f"creating databases, tables{filling}, change streams, topics and dataset")
        tables = processes.directory / "tables.toml"
        tables.write_text(tables_file())
        addresses = Addresses(pubsub=pubsub, spanner=spanner, bigtable=bigtable, bigquery_rest=rest, bigquery_grpc=grpc)
        yield stack.enter_context(platform_at(addresses, tables, create=True, before=before))


@contextmanager
def running_stack(
    processes: Processes, print_line: PrintLine, sources: Sources = "both", before: int = 0, **spanner_flags: str
) -> Iterator[Stack]:
    """Start the platform with the demo's tables, and end it in the opposite order.

    There are so many flights, and what belongs to them, ``before`` the change streams are.
    """
    with running_platform(processes, print_line, sources, before, **spanner_flags) as made:
        # before the next row, so that the streams carry every row from here on
        planned = [
            _Planned(reader_name(one), one, database.now(), _of_snapshot(database, demo))
            for demo, (database, one) in zip(DATABASES, made.databases, strict=False)
        ]
        planned += [_Planned(reader_name(one), one, _now()) for _, one in made.wide_tables]
        api = DeadLettersApi.create(processes.directory)
        with _running_services(processes, made.flow, api, planned, print_line) as (consumer, dead_letter, readers):

            def wait() -> None:
                wait_until_ready(processes, *readers, dead_letter, consumer)

            yield replace(stack_of(made, readers, consumer, dead_letter, api), wait=wait)
            print_line("stopping")


def _of_snapshot(database: SpannerDatabase, demo: DemoDatabase) -> Mapping[str, str]:
    """Return the settings of a reader whose snapshot takes a few seconds, in which changes flow, too."""
    counts = [database.query(f"SELECT COUNT(*) AS counted FROM {table}") for table in demo.keys]
    rows = sum(int(str(found["counted"])) for (found,) in counts)
    return {"SNAPSHOT_ROWS_PER_SECOND": str(rows // _SNAPSHOT_SECONDS)} if rows >= _SNAPSHOT_SECONDS else {}


def stack_of(
    made: Platform,
    readers: Sequence[Endpoint],
    consumer: Endpoint,
    dead_letter: Endpoint,
    dead_letters_api: DeadLettersApi | None = None,
) -> Stack:
    """Return what runs on a platform; the readers are those of its databases, and then of its wide tables."""
    return Stack(
        made.flow,
        [
            Source(demo, one, database, reader)
            for demo, (database, one), reader in zip(DATABASES, made.databases, readers, strict=False)
        ],
        [
            WideSource(demo, one, instance, reader)
            for demo, (instance, one), reader in zip(
                WIDE_TABLES, made.wide_tables, readers[len(made.databases) :], strict=False
            )
        ],
        made.dataset,
        consumer,
        dead_letter,
        dead_letters_api,
    )


def reader_name(pipeline: AnyPipeline) -> str:
    """Return what the reader of a pipeline is called."""
    if isinstance(pipeline, Pipeline):
        return f"spanner_reader_{pipeline.database}"
    return f"bigtable_reader_{pipeline.table}"


def _now() -> Nanoseconds:
    """Return the time of this machine, which is the front's too."""
    return Nanoseconds(time.time_ns())


@contextmanager
def _running_services(
    processes: Processes, flow: Flow, api: DeadLettersApi, planned: Sequence[_Planned], print_line: PrintLine
) -> Iterator[tuple[Service, Service, list[Service]]]:
    print_line(f"starting {', '.join(one.name for one in planned)}, cdc_consumer (Spark), and dead_letter")
    services: list[Service] = []
    try:
        consumer = start_consumer(processes, flow)
        services.append(consumer)
        # heartbeats often, because the lag that is shown is that of the quietest partition, known by these alone
        readers = [
            start_reader(processes, one.pipeline, one.name, start=one.start, HEARTBEAT_INTERVAL="1s", **one.settings)
            for one in planned
        ]
        services += readers
        watched = ",".join(f"{one.process.name}=http://{one.address}" for one in services)
        dead_letter = start_dead_letter(processes, flow, CONSOLE_SERVICES=watched, **api.settings)
        services.append(dead_letter)
        # the others may take longer: what is written from now on is kept for them
        wait_until_ready(processes, *(one for one, of in zip(readers, planned, strict=True) if of.settings))
        yield consumer, dead_letter, readers
    finally:
        for service in services:
            service.process.ask_to_end()
        for service in services:
            service.process.end()
