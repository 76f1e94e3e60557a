"""What an end-to-end test does with the standing pipeline: its own source, its tables, and hands on Pub/Sub."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from deploy.local.platform.processes import Processes, wait_until
from deploy.local.platform.services import TIMEOUT, Service, start_reader
from deploy.local.platform.source import SpannerInstance, Write
from deploy.local.platform.target import BigQueryDataset
from deploy.local.proof.comparison import compare_tables
from shared.contracts.dead_letter import DeadLetter
from tests.e2e.standing import Standing
from tests.integration.pubsub_topics import publish_each
from tests.integration.stand_in import StandIn

SOON = timedelta(seconds=60)
"""How long anything may take on a busy machine before a test says that it did not happen."""
SHORT_PAUSE = timedelta(milliseconds=20)
PAUSE = timedelta(milliseconds=200)
"""Between two comparisons of whole tables, which take the processor from what they wait for."""

SCHEMA = (
    """CREATE TABLE Singers_{number} (Id INT64 NOT NULL, Name STRING(MAX), Born DATE, Rate FLOAT64, Pay NUMERIC,
       Photo BYTES(MAX), Live BOOL, Seen TIMESTAMP, Facts JSON, Names ARRAY<STRING(MAX)>, Marks ARRAY<FLOAT32>)
       PRIMARY KEY (Id)""",
    """CREATE TABLE Albums_{number} (Id INT64 NOT NULL, AlbumId INT64 NOT NULL, Title STRING(MAX))
       PRIMARY KEY (Id, AlbumId), INTERLEAVE IN PARENT Singers_{number} ON DELETE CASCADE""",
    "CREATE TABLE Tags_{number} (Tag STRING(MAX) NOT NULL) PRIMARY KEY (Tag)",
    "CREATE CHANGE STREAM everything FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')",
)
TABLES = ("Singers", "Albums", "Tags")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Message:
    """A message of the topic, as a subscriber sees it."""

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str


class Rig:
    """A test's source, its tables in the standing pipeline, and everything a test does to them.

    No two tests share a table: the rig's number stands behind each name, in Spanner and in BigQuery. Whoever writes or
    reads by the rig takes the name without it; `named` returns the whole name.
    """

    def __init__(self, standing: Standing, instance: SpannerInstance, processes: Processes) -> None:
        self.number = next(_numbers)
        self.database = instance.create_database([one.format(number=self.number) for one in SCHEMA])
        self.partitions = instance.create_database([])
        self.standing = standing
        self.processes = processes
        self.pipeline = standing.spanner(self.database, self.partitions)
        self.target = standing.target
        self.stand_in = StandIn(standing.bigquery, standing.flow.dataset)
        self.start = self.database.now()
        standing.published()  # what came of the test before
        standing.dead_letters()

    def named(self, table: str) -> str:
        """Return the name of a table in Spanner and in BigQuery."""
        return f"{table}_{self.number}"

    def in_bigquery(self, table: str) -> str:
        """Return the full name of a table in BigQuery: ``project.dataset.table``."""
        return f"{self.pipeline.project}.{self.pipeline.dataset}.{self.named(table)}"

    def commit(self, *writes: Write) -> int:
        """Commit one transaction; return its commit timestamp in nanoseconds."""
        return self.database.commit([replace(one, table=self.named(one.table)) for one in writes])

    def wait_until_equal(
        self, tables: Iterable[str] = TABLES, timeout: timedelta = SOON, target: BigQueryDataset | None = None
    ) -> None:
        """Wait until BigQuery equals Spanner, by value; the test fails with what differs.

        ``target``: another dataset than the rig's.
        """
        last: list[str] = []
        whole = [self.named(table) for table in tables]

        def equal() -> bool:
            last[:] = [
                named for one in compare_tables(self.database, target or self.target, whole) for named in one.named
            ]
            return not last

        try:
            self.wait(equal, "BigQuery to equal Spanner", timeout, PAUSE)
        except Exception as error:
            raise AssertionError(f"{error}\nwhat differs: " + "\n".join(last)) from error

    def wait(
        self, ready: Callable[[], Any], what: str, timeout: timedelta = SOON, pause: timedelta = SHORT_PAUSE
    ) -> Any:
        """Wait for something to come true while no process dies unasked."""
        processes = [*self.standing.running, *self.processes.running]
        return wait_until(lambda: ready() or None, what, processes, timeout, pause=pause)

    def wait_until_ready(self, *services: Service, timeout: timedelta = TIMEOUT) -> None:
        """Wait until all of them say that they are ready."""
        for service in services:
            self.wait(lambda one=service: one.ready, f"{service.process.name} to be ready", timeout)  # type: ignore[misc]

    def consumer(self, **settings: str) -> Service:
        """Return the standing consumer, as `Standing.consumer` does."""
        return self.standing.consumer(**settings)

    def start_reader(self, name: str = "spanner_reader", **settings: str) -> Service:
        """Start a reader of the source, from where the rig began."""
        return start_reader(self.processes, self.pipeline, name, start=self.start, **settings)

    def counted(self, service: Service, metric: str) -> float:
        """Return what a service has counted so far."""
        return service.metrics()[metric]

    def published(self) -> list[Message]:
        """Return the messages that have been published since the last call (and those before it not yet seen)."""
        return [Message(m.data, dict(m.attributes), m.ordering_key) for m in self.standing.published()]

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters that have come since the last call."""
        return self.standing.dead_letters()

    def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages in this order, each in a request of its own."""
        publish_each(self.standing.channel, self.pipeline.topology.topic, *(asdict(one) for one in messages))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table's rows in BigQuery, Millrace's columns included; in no order."""
        return self.target.rows(self.named(table)) or []

    def stats(self) -> Mapping[str, Any]:
        """Return what the stand-in has counted."""
        counted: Mapping[str, Any] = self.stand_in.control("GET", "stats")
        return counted

    @contextmanager
    def fault(self, **fault: Any) -> Iterator[None]:
        """Let appends or REST calls go wrong while the block runs (fields of `emulators.bigquery.faults.Fault`)."""
        self.stand_in.control("POST", "faults", **fault)
        try:
            yield
        finally:
            self.stand_in.control("DELETE", "faults")

    def drop(self) -> None:
        """Drop the databases, for the emulator slows down with what it remembers."""
        self.database.drop()
        self.partitions.drop()
