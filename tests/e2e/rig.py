"""What an end-to-end test does with the standing pipeline: its own source, its tables, and hands on Pub/Sub."""

import itertools
import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from deploy.local.platform.processes import Processes, wait_until
from deploy.local.platform.services import TIMEOUT, Service, start_reader
from deploy.local.platform.source import SpannerInstance, Write
from deploy.local.platform.target import BigQueryDataset
from deploy.local.proof.comparison import compare_tables
from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.pubsub.stubs import PublishRequest, publish_stub
from tests.e2e.standing import Standing

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
POSTGRESQL_SCHEMA = (
    """CREATE TABLE singers_{number} (id bigint NOT NULL PRIMARY KEY, name varchar, born date, rate double precision,
       pay numeric, photo bytea, live boolean, seen timestamptz, facts jsonb, names varchar[],
       marks real[], pays numeric[])""",
    "CREATE CHANGE STREAM everything FOR ALL WITH (value_capture_type = 'NEW_ROW')",
)
_numbers = itertools.count(1)


@dataclass(frozen=True, order=True)
class PublishedChange:
    """A change as it was published: what it is a change of, and its place in history."""

    table: str
    key: str
    sequence: str


@dataclass(frozen=True)
class Message:
    """A message of the topic, as a subscriber sees it."""

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str

    def changes(self) -> list[PublishedChange]:
        """Return the changes of the batch in it."""
        batch = decode_batch(self.data)
        keyed = zip(batch.keys, batch.sequence, strict=True)
        return [PublishedChange(batch.header.table, bytes(key).decode(), sequence) for key, sequence in keyed]


class Rig:
    """A test's source, its tables in the standing pipeline, and everything a test does to them.

    No two tests share a table: the rig's number stands behind each name, in Spanner and in BigQuery. Whoever writes or
    reads by the rig takes the name without it; `named` returns the whole name.
    """

    def __init__(
        self, standing: Standing, instance: SpannerInstance, processes: Processes, *, postgresql: bool = False
    ) -> None:
        """The database is one of `SCHEMA`, or of the PostgreSQL dialect and `POSTGRESQL_SCHEMA`."""
        self.number = next(_numbers)
        schema = [one.format(number=self.number) for one in (POSTGRESQL_SCHEMA if postgresql else SCHEMA)]
        self.database = instance.create_database(schema, postgresql=postgresql)
        self.partitions = instance.create_database([], postgresql=postgresql)
        self.standing = standing
        self.processes = processes
        self.pipeline = standing.spanner(self.database, self.partitions)
        self.target = standing.target
        self.start = self.database.now()
        standing.published()  # what came of the test before
        standing.letters()

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

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters that have come since the last call."""
        return self.standing.letters()

    def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages in this order, each in a request of its own."""
        publish = publish_stub(self.standing.channel)
        for one in messages:
            body = {"data": one.data, "attributes": dict(one.attributes), "ordering_key": one.ordering_key}
            publish(PublishRequest(topic=self.pipeline.topology.topic, messages=[body]), timeout=30)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table's rows in BigQuery, Millrace's columns included; in no order."""
        return self.target.rows(self.named(table)) or []

    def stats(self) -> Mapping[str, Any]:
        """Return what the stand-in has counted."""
        with urllib.request.urlopen(f"http://{self.standing.bigquery[0]}/control/stats", timeout=30) as answer:
            counted: Mapping[str, Any] = json.load(answer)
        return counted

    @contextmanager
    def fault(self, **fault: Any) -> Iterator[None]:
        """Let appends or REST calls go wrong while the block runs (fields of `emulators.bigquery.faults.Fault`)."""
        self._control("POST", "faults", fault)
        try:
            yield
        finally:
            self._control("DELETE", "faults", None)

    def drop(self) -> None:
        """Drop the databases, for the emulator slows down with what it remembers."""
        self.database.drop()
        self.partitions.drop()

    def _control(self, method: str, path: str, body: Mapping[str, Any] | None) -> None:
        request = urllib.request.Request(
            f"http://{self.standing.bigquery[0]}/control/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()


def first_section(committed: int) -> str:
    """Return how the sequence of a change begins that was committed at this time (in nanoseconds)."""
    return f"{committed // 1000:016X}/"
