"""A pipeline without a reader, for tests of the consumer: the test publishes, and a consumer applies."""

import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psutil

from deploy.local.platform.emulators import HOST
from deploy.local.platform.processes import Process, Processes, wait_until
from deploy.local.platform.services import CONSUMER, Pipeline, Service, start_consumer, wait_until_ready
from deploy.local.platform.target import BigQueryDataset
from services.cdc_consumer.commands.command_line import ConsumerStatusCommand
from services.cdc_consumer.commands.status import status
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.channels import open_channel
from shared.pubsub.stubs import (
    ModifyAckDeadlineRequest,
    PullRequest,
    modify_ack_deadline_stub,
    pull_stub,
)
from shared.pubsub.topology import create_topology
from tests.integration.pubsub_topics import publish_each, take
from tests.integration.stand_in import PROJECT, StandIn

ACK_DEADLINE = timedelta(seconds=15)
COME_AGAIN_WITHIN = ACK_DEADLINE + timedelta(seconds=10)
"""A killed executor extended its leases when it was killed, at the latest. A pull that waits
already may not get what comes again from the emulator, and it lasts five seconds. Five more are for two busy cores.
"""
STOP_WITHIN = timedelta(seconds=10)
TIMEOUT = timedelta(minutes=2, seconds=30)
WITHOUT_SPARK, ON_SPARK = "tests.worlds.without_spark", CONSUMER


class World:
    """A pipeline without a reader: the test publishes, and a consumer applies."""

    def __init__(self, pipeline: Pipeline, processes: Processes, stand_in: StandIn) -> None:
        self.pipeline = pipeline
        self.processes = processes
        self.stand_in = stand_in
        self.project = f"setup-{uuid.uuid4().hex[:8]}"
        self.channel = open_channel(pipeline.pubsub)
        self.topology = replace(pipeline.topology, ack_deadline=ACK_DEADLINE)
        self.dataset = BigQueryDataset(pipeline.bigquery_rest, pipeline.project, pipeline.dataset)
        create_topology(self.channel, self.topology)
        self.dataset.create()

    def launch(self, name: str = "cdc_consumer", *, module: str = WITHOUT_SPARK, **settings: str) -> Service:
        """Start a consumer; one of the same name goes on with the files of the one before."""
        return start_consumer(self.processes, self.pipeline, name, module=module, **settings)

    def start(self, name: str = "cdc_consumer", *, module: str = WITHOUT_SPARK, **settings: str) -> Service:
        """Start a consumer and wait until it is ready."""
        consumer = self.launch(name, module=module, **settings)
        wait_until_ready(self.processes, consumer)
        return consumer

    def publish(self, *messages: Mapping[str, Any]) -> None:
        publish_each(self.channel, self.topology.topic, *messages)

    def wait_for_rows(self, expected: Mapping[int, str], table: str = "planes") -> None:
        def equal() -> bool:
            return self.names(table) == expected

        self.processes.wait_until(equal, f"{table} to be {expected}", TIMEOUT)

    def names(self, table: str = "planes") -> Mapping[int, str] | None:
        rows = self.dataset.rows(table)
        return None if rows is None else {row["id"]: row["name"] for row in rows}

    def dead_letters(self) -> Sequence[DeadLetter]:
        found = take(self.channel, self.topology.dead_letter_subscription)
        return [from_message(one.data, one.attributes) for one in found]

    def deliver(self, until: int) -> None:
        """Lease the one message there is and give it back, again and again, until it has been delivered so often."""
        pull, modify = pull_stub(self.channel), modify_ack_deadline_stub(self.channel)
        subscription = self.topology.subscription

        def once() -> bool | None:
            request = PullRequest(subscription=subscription, max_messages=10, return_immediately=True)
            received = pull(request, timeout=10).received_messages
            ids = [one.ack_id for one in received]
            if ids:
                modify(
                    ModifyAckDeadlineRequest(subscription=subscription, ack_ids=ids, ack_deadline_seconds=0), timeout=10
                )
            assert len(received) <= 1
            return True if received and received[0].delivery_attempt >= until else None

        wait_until(once, f"delivery {until}", timeout=3 * ACK_DEADLINE)

    def fault(self, **fault: Any) -> None:
        self.stand_in.control("POST", "faults", **fault)

    def fix(self) -> None:
        self.stand_in.control("DELETE", "faults")

    def faults_met(self) -> int:
        """Return how many calls have met a fault since the stand-in was started."""
        return int(self.stand_in.control("GET", "stats")["faults_met"])


@contextmanager
def a_world(pubsub: str, bigquery: tuple[str, str], processes: Processes) -> Iterator[World]:
    """Make a pipeline without a reader; its consumer is still to be started."""
    rest, storage = bigquery
    pipeline = Pipeline(
        spanner="",
        pubsub=pubsub,
        bigquery_rest=rest,
        bigquery_grpc=storage,
        database="",
        change_stream="",
        project=PROJECT,
        instance="",
        name=f"consumer-{uuid.uuid4().hex[:8]}",
    )
    world = World(pipeline, processes, StandIn(bigquery))
    yield world
    world.fix()
    world.channel.close()


def counter(consumer: Service, name: str) -> float:
    return consumer.metrics()[f"millrace_{name}_total"]


def command_line(process: psutil.Process) -> Sequence[str]:
    """Return how a process was called; nothing if it has ended meanwhile, as a shell that starts another does."""
    try:
        return process.cmdline()
    except psutil.Error:
        return ()


def executors(process: Process) -> Sequence[psutil.Process]:
    """Return the executors that a process has started: a worker, or the driver of a local cluster."""
    children = psutil.Process(process.pid).children(recursive=True)
    found = [one for one in children if any("CoarseGrainedExecutorBackend" in word for word in command_line(one))]
    assert found, [command_line(one) for one in children]
    return found


def kill_with_its_workers(executor: psutil.Process) -> None:
    """Kill an executor as the end of its container does."""
    for process in (executor, *executor.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def acks(consumer: Service, least: int) -> Callable[[], bool]:
    """Return whether so many messages are acked. More, where a slow start of Spark let a lease run out."""
    return lambda: counter(consumer, "leases_acked") >= least


def ends(consumer: Service) -> int | None:
    """Ask a consumer to end; return its exit code, None where it does not end in time."""
    consumer.process.ask_to_end()
    return consumer.process.wait(STOP_WITHIN)


def asked(consumer: Service) -> Mapping[str, Any] | None:
    """Return the status, tables by name; None while the consumer does not answer."""
    screen = io.StringIO()
    try:
        status(ConsumerStatusCommand(json=True, address=f"{HOST}:{consumer.port}"), {}, screen)
    except MisconfiguredError:
        return None
    document: dict[str, Any] = json.loads(screen.getvalue())
    return document | {"tables": {one["table"]: one for one in document["tables"]}}
