"""What the end-to-end tests stand on: one pipeline of its own, its source, its target, and hands on Pub/Sub."""

import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

import grpc

from deploy.local.comparison import compare_tables
from deploy.local.processes import Processes, wait_until
from deploy.local.services import Pipeline, Service
from deploy.local.source import SpannerDatabase, SpannerInstance, Write
from deploy.local.target import BigQueryDataset
from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.pubsub.channels import open_channel
from shared.pubsub.names import subscription_path
from shared.pubsub.stubs import (
    AcknowledgeRequest,
    PublishRequest,
    PullRequest,
    Subscription,
    acknowledge_stub,
    publish_stub,
    pull_stub,
)
from shared.pubsub.topology import create_topology

ACK_DEADLINE = timedelta(seconds=10)
"""The shortest that Pub/Sub takes, so that what a killed consumer held comes back soon."""
SOON = timedelta(seconds=60)
"""How long anything may take on a busy machine before a test says that it did not happen."""

SCHEMA = (
    """CREATE TABLE Singers (Id INT64 NOT NULL, Name STRING(MAX), Born DATE, Rate FLOAT64, Pay NUMERIC,
       Photo BYTES(MAX), Live BOOL, Seen TIMESTAMP, Facts JSON, Names ARRAY<STRING(MAX)>, Marks ARRAY<FLOAT32>)
       PRIMARY KEY (Id)""",
    """CREATE TABLE Albums (Id INT64 NOT NULL, AlbumId INT64 NOT NULL, Title STRING(MAX)) PRIMARY KEY (Id, AlbumId),
       INTERLEAVE IN PARENT Singers ON DELETE CASCADE""",
    "CREATE TABLE Tags (Tag STRING(MAX) NOT NULL) PRIMARY KEY (Tag)",
    "CREATE CHANGE STREAM everything FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')",
)
TABLES = ("Singers", "Albums", "Tags")
POSTGRESQL_SCHEMA = (
    """CREATE TABLE singers (id bigint NOT NULL PRIMARY KEY, name varchar, born date, rate double precision,
       pay numeric, photo bytea, live boolean, seen timestamptz, facts jsonb, names varchar[],
       marks real[], pays numeric[])""",
    "CREATE CHANGE STREAM everything FOR ALL WITH (value_capture_type = 'NEW_ROW')",
)


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


class NewRig(Protocol):
    """Makes a pipeline; ``bigquery`` are the addresses of the stand-in's REST and gRPC sides, where not the usual.

    Its database is one of `SCHEMA`, or of the PostgreSQL dialect and `POSTGRESQL_SCHEMA`.
    """

    def __call__(
        self, instance: SpannerInstance, bigquery: tuple[str, str] = ..., *, postgresql: bool = ...
    ) -> "Rig": ...


class Rig:
    """One pipeline and everything a test does to it."""

    def __init__(
        self,
        pipeline: Pipeline,
        database: SpannerDatabase,
        partitions: SpannerDatabase,
        processes: Processes,
        channel: grpc.Channel,
    ) -> None:
        self.pipeline = pipeline
        self.database = database
        self.partitions = partitions
        self.processes = processes
        self.target = BigQueryDataset(pipeline.bigquery_rest, pipeline.project, pipeline.dataset)
        self.target.create()
        self._channel = channel
        create_topology(channel, replace(pipeline.topology, ack_deadline=ACK_DEADLINE))
        self._recorder = subscription_path(pipeline.project, f"{pipeline.name}-recorder")
        self._create_subscription(self._recorder)
        self.start = database.now()

    def commit(self, *writes: Write) -> int:
        """Commit one transaction; return its commit timestamp in nanoseconds."""
        return self.database.commit(writes)

    def wait_until_equal(self, tables: Iterable[str] = TABLES, patience: timedelta = SOON) -> None:
        """Wait until BigQuery equals Spanner, by value; the test fails with what differs."""
        last: list[str] = []

        def equal() -> bool:
            last[:] = [named for one in compare_tables(self.database, self.target, tables) for named in one.named]
            return not last

        try:
            self.wait(equal, "BigQuery to equal Spanner", patience)
        except Exception as error:
            raise AssertionError(f"{error}\nwhat differs: " + "\n".join(last)) from error

    def wait(self, ready: Callable[[], Any], what: str, patience: timedelta = SOON) -> Any:
        """Wait for something to come true while no process dies unasked."""
        return self.processes.wait_until(lambda: ready() or None, what, patience)

    def counted(self, service: Service, metric: str) -> float:
        """Return what a service has counted so far."""
        return service.metrics().get(metric, 0.0)

    def published(self) -> list[Message]:
        """Return the messages that have been published since the last call (and those before it not yet seen)."""
        return [Message(m.data, dict(m.attributes), m.ordering_key) for m in self._drain(self._recorder)]

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters that have come since the last call."""
        drained = self._drain(self.pipeline.topology.dead_letter_subscription)
        return [from_message(m.data, dict(m.attributes)) for m in drained]

    def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages in this order, each in a request of its own."""
        publish = publish_stub(self._channel)
        for one in messages:
            body = {"data": one.data, "attributes": dict(one.attributes), "ordering_key": one.ordering_key}
            publish(PublishRequest(topic=self.pipeline.topology.topic, messages=[body]), timeout=30)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table's rows in BigQuery, Millrace's columns included; in no order."""
        return self.target.rows(table) or []

    def stats(self) -> Mapping[str, Any]:
        """Return what the stand-in has counted."""
        with urllib.request.urlopen(f"http://{self.pipeline.bigquery_rest}/control/stats", timeout=30) as answer:
            counted: Mapping[str, Any] = json.load(answer)
        return counted

    @contextmanager
    def fault(self, **fault: Any) -> Iterator[None]:
        """Let appends or REST calls go wrong while the block runs (fields of `deploy.local.bigquery.faults.Fault`)."""
        self._control("POST", "faults", fault)
        try:
            yield
        finally:
            self._control("DELETE", "faults", None)

    def close(self) -> None:
        """Close the clients."""
        self.target.close()

    def drop(self) -> None:
        """Drop the databases, for the emulator slows down with what it remembers."""
        self.database.drop()
        self.partitions.drop()

    def _drain(self, subscription: str) -> list[Any]:
        pull, acknowledge = pull_stub(self._channel), acknowledge_stub(self._channel)
        drained: list[Any] = []
        while True:
            request = PullRequest(subscription=subscription, max_messages=1000, return_immediately=True)
            received = pull(request, timeout=30).received_messages
            if not received:
                return drained
            ack_ids = [one.ack_id for one in received]
            acknowledge(AcknowledgeRequest(subscription=subscription, ack_ids=ack_ids), timeout=30)
            drained += [one.message for one in received]

    def _create_subscription(self, name: str) -> None:
        create = self._channel.unary_unary(
            "/google.pubsub.v1.Subscriber/CreateSubscription",
            request_serializer=Subscription.SerializeToString,
            response_deserializer=Subscription.FromString,
        )
        create(Subscription(name=name, topic=self.pipeline.topology.topic, ack_deadline_seconds=10), timeout=30)

    def _control(self, method: str, path: str, body: Mapping[str, Any] | None) -> None:
        request = urllib.request.Request(
            f"http://{self.pipeline.bigquery_rest}/control/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()


def first_section(committed: int) -> str:
    """Return how the sequence of a change begins that was committed at this time (in nanoseconds)."""
    return f"{committed // 1000:016X}/"


def pubsub_channel(address: str) -> grpc.Channel:
    """Return a channel to the Pub/Sub emulator."""
    return open_channel(address)


def wait_for(ready: Callable[[], Any], what: str, patience: timedelta = SOON) -> Any:
    """Wait for something that no process of the pipeline has to live for."""
    return wait_until(lambda: ready() or None, what, timeout=patience)
