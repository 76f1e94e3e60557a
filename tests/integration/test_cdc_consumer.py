"""The consumer as a process: Pub/Sub emulator -> Spark -> BigQuery stand-in, with hand-made change batches."""

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import psutil
import pytest

from deploy.local.emulators import ROOT
from deploy.local.processes import Processes, wait_until
from deploy.local.services import Pipeline, Service, start_consumer, wait_until_ready
from deploy.local.target import BigQueryDataset
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.contracts.reasons import Reason
from shared.pubsub.channels import open_channel
from shared.pubsub.stubs import (
    AcknowledgeRequest,
    PublishRequest,
    PubsubMessage,
    PullRequest,
    acknowledge_stub,
    publish_stub,
    pull_stub,
)
from shared.pubsub.topology import check_subscription, create_topology
from tests.builders import a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.integration.stand_in import PROJECT, StandIn

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ACK_DEADLINE = timedelta(seconds=15)
STOP_WITHIN = timedelta(seconds=10)
PATIENCE = timedelta(minutes=2, seconds=30)


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

    def start(self, name: str = "cdc_consumer") -> Service:
        consumer = start_consumer(self.processes, self.pipeline, name)
        wait_until_ready(self.processes, consumer)
        return consumer

    def publish(self, *messages: Mapping[str, Any]) -> None:
        for one in messages:
            message = PubsubMessage(
                data=one["data"], attributes=dict(one["attributes"]), ordering_key=one["ordering_key"]
            )
            request = PublishRequest(topic=self.topology.topic, messages=[message])
            publish_stub(self.channel)(request, timeout=10)

    def wait_for_rows(self, expected: Mapping[int, str], table: str = "planes") -> None:
        def equal() -> bool:
            return self.names(table) == expected

        self.processes.wait_until(equal, f"{table} to be {expected}", PATIENCE)

    def names(self, table: str = "planes") -> Mapping[int, str] | None:
        rows = self.dataset.rows(table)
        return None if rows is None else {row["id"]: row["name"] for row in rows}

    def letters(self) -> Sequence[DeadLetter]:
        request = PullRequest(
            subscription=self.topology.dead_letter_subscription, max_messages=100, return_immediately=True
        )
        received = pull_stub(self.channel)(request, timeout=10).received_messages
        if received:
            acknowledgement = AcknowledgeRequest(
                subscription=self.topology.dead_letter_subscription, ack_ids=[one.ack_id for one in received]
            )
            acknowledge_stub(self.channel)(acknowledgement, timeout=10)
        return [from_message(one.message.data, one.message.attributes) for one in received]

    def fault(self, **fault: Any) -> None:
        self.stand_in.control("POST", "faults", **fault)

    def mend(self) -> None:
        self.stand_in.control("DELETE", "faults")


@pytest.fixture
def world(pubsub_emulator: str, bigquery_stand_in: tuple[str, str], new_processes: Processes) -> Iterator[World]:
    rest, grpc = bigquery_stand_in
    pipeline = Pipeline(
        spanner="",
        pubsub=pubsub_emulator,
        bigquery_rest=rest,
        bigquery_grpc=grpc,
        database="",
        change_stream="",
        project=PROJECT,
        instance="",
        name=f"consumer-{uuid.uuid4().hex[:8]}",
    )
    world = World(pipeline, new_processes, StandIn(bigquery_stand_in))
    yield world
    world.mend()
    world.channel.close()


def counter(consumer: Service, name: str) -> float:
    return consumer.metrics().get(f"millrace_{name}_total", 0)


def command_line(process: psutil.Process) -> Sequence[str]:
    """Return how a process was called; nothing if it has ended meanwhile, as a shell that starts another does."""
    try:
        return process.cmdline()
    except psutil.Error:
        return ()


def acks(consumer: Service, least: int) -> Callable[[], bool]:
    """Tell whether so many messages are acked. More, where a slow start of Spark let a lease run out."""
    return lambda: counter(consumer, "leases_acked") >= least


def ends(consumer: Service) -> int | None:
    """Ask a consumer to end; return its exit code, None where it does not end in time."""
    consumer.process.ask_to_end()
    return consumer.process.wait(STOP_WITHIN)


def test_changes_arrive_poison_is_set_aside_and_an_outage_loses_nothing(world: World) -> None:
    consumer = world.start()
    world.publish(
        a_message(header=a_header("airports")),
        a_message(a_change(1), a_change(2), a_change(3, seats="many")),
        a_message(data=b"garbage"),
    )
    world.wait_for_rows({1: "name 1", 2: "name 1"})
    world.wait_for_rows({}, "airports")
    world.publish(a_message(a_change(1, 2, op="DELETE"), a_change(2, 5)), a_message(a_change(2, 4), a_change(4)))
    world.wait_for_rows({2: "name 5", 4: "name 1"})
    world.processes.wait_until(acks(consumer, 5), "five acks", PATIENCE)
    assert {letter.reason for letter in world.letters()} == {Reason.VALUE_DOES_NOT_FIT, Reason.UNDECODABLE}

    for sequence in range(6, 12):
        world.publish(a_message(a_change(2, sequence)))
        world.wait_for_rows({2: f"name {sequence}", 4: "name 1"})
    world.processes.wait_until(acks(consumer, 11), "eleven acks", PATIENCE)
    batches = len(events(consumer.process, "micro_batch_applied"))
    connections = len(events(consumer.process, "append_connection_opened"))
    assert connections <= 4 < batches  # one for each worker process, of which Spark keeps a few, and not for each task

    # BigQuery goes away for a while: nothing is redelivered or set aside. (For longer than leases last: in tests/e2e.)
    before = int(counter(consumer, "leases_acked"))
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(a_message(a_change(5)), a_message(a_change(4, 2)))
    world.processes.wait_until(lambda: bool(events(consumer.process, "call_retried")) or None, "a retry", PATIENCE)
    assert world.names() == {2: "name 11", 4: "name 1"}
    world.mend()
    world.wait_for_rows({2: "name 11", 4: "name 2", 5: "name 1"})
    world.processes.wait_until(acks(consumer, before + 2), "two more acks", PATIENCE)
    assert counter(consumer, "consumer_messages") == before + 2
    assert counter(consumer, "consumer_appends") > 0
    assert counter(consumer, "consumer_appended_bytes") > 0
    assert world.letters() == []

    assert ends(consumer) == 0, consumer.process.obituary()
    assert len(events(consumer.process, "service_started")) == 1
    tables = {event["table"] for event in events(consumer.process, "append_connection_opened")}
    assert tables == {"planes"}


def test_killed_in_mid_batch_and_started_again_it_applies_everything(world: World) -> None:
    first = world.start("first")
    world.publish(a_message(a_change(1)))
    world.wait_for_rows({1: "name 1"})
    world.fault(action="stall", when="after")  # rows are taken, and the consumer never learns of it
    world.publish(*[a_message(a_change(n, 2)) for n in range(1, 6)])
    world.wait_for_rows(dict.fromkeys(range(1, 6), "name 2"))
    first.process.kill()
    world.mend()
    world.publish(a_message(a_change(1, 3, op="DELETE")))

    second = start_consumer(world.processes, world.pipeline, "second")
    wait_until_ready(world.processes, second)
    world.wait_for_rows(dict.fromkeys(range(2, 6), "name 2"))
    world.processes.wait_until(acks(second, 6), "six acks", PATIENCE)
    assert ends(second) == 0
    assert world.letters() == []


def test_asked_to_stop_while_bigquery_is_away_it_gives_back_and_ends_in_time(world: World) -> None:
    consumer = world.start()
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(a_message(a_change(1)))
    wait_until(lambda: bool(events(consumer.process, "call_retried")), "a retry", [consumer.process], PATIENCE)

    assert ends(consumer) == 0, consumer.process.obituary()
    world.mend()
    request = PullRequest(subscription=world.topology.subscription, max_messages=10)
    (received,) = pull_stub(world.channel)(request, timeout=5).received_messages  # at once, not after the deadline
    assert received.delivery_attempt == 2


def test_a_spark_that_hangs_turns_healthz_red_and_one_that_goes_on_turns_it_green_again(world: World) -> None:
    consumer = start_consumer(world.processes, world.pipeline, LIVENESS="15s")
    wait_until_ready(world.processes, consumer)
    (java,) = [
        one
        for one in psutil.Process(consumer.process.pid).children()
        if "org.apache.spark" in " ".join(command_line(one))
    ]
    java.suspend()
    try:
        world.processes.wait_until(lambda: not consumer.alive, "the consumer to be called dead", PATIENCE)
    finally:
        java.resume()
    world.processes.wait_until(lambda: consumer.alive, "the consumer to be alive again", PATIENCE)
    assert ends(consumer) == 0


def test_asked_to_stop_while_spark_starts_it_ends_in_time_and_leaves_no_process(world: World) -> None:
    consumer = start_consumer(world.processes, world.pipeline)

    def of_spark() -> list[psutil.Process] | None:
        children = psutil.Process(consumer.process.pid).children(recursive=True)
        return [one for one in children if "pyspark-shell" in command_line(one)] or None

    started = world.processes.wait_until(of_spark, "Spark to be started", PATIENCE)
    assert not consumer.ready
    assert ends(consumer) == 0, consumer.process.obituary()
    _gone, alive = psutil.wait_procs(started, timeout=STOP_WITHIN.total_seconds())
    assert alive == []


def test_a_newer_wire_format_ends_it_with_the_way_out_and_nothing_is_acked(world: World) -> None:
    consumer = world.start()
    consumer.process.expected_to_end = True
    world.publish(a_message(a_change(1), header=msgspec.structs.replace(a_header(), format=3)))

    assert consumer.process.wait(PATIENCE) == 2, consumer.process.obituary()
    (event,) = events(consumer.process, "service_misconfigured")
    assert event["error"].startswith("a change batch of wire format 3 arrived")
    assert event["error"].endswith("(nothing was acked or set aside)")
    request = PullRequest(subscription=world.topology.subscription, max_messages=10)
    wait_until(
        lambda: len(pull_stub(world.channel)(request, timeout=60).received_messages) == 1 or None,
        "the message, which was put off for half a minute",
        timeout=PATIENCE,
    )
    assert world.letters() == []


def test_without_its_dataset_it_does_not_start_and_names_the_command(world: World) -> None:
    consumer = start_consumer(world.processes, world.pipeline, BIGQUERY_DATASET="nowhere")
    consumer.process.expected_to_end = True

    assert consumer.process.wait(PATIENCE) == 2, consumer.process.obituary()
    (event,) = events(consumer.process, "service_misconfigured")
    assert f"bq --project_id={PROJECT} mk --dataset nowhere" in event["error"]


def test_when_spark_dies_it_ends_with_an_error_and_another_start_goes_on(world: World) -> None:
    consumer = world.start("first")
    consumer.process.expected_to_end = True
    children = psutil.Process(consumer.process.pid).children(recursive=True)
    (java,) = [one for one in children if "pyspark-shell" in command_line(one)]
    java.kill()

    assert consumer.process.wait(PATIENCE) == 1, consumer.process.obituary()
    assert len(events(consumer.process, "service_failed")) == 1
    world.publish(a_message(a_change(1)))
    world.start("first")
    world.wait_for_rows({1: "name 1"})


def test_every_lease_is_counted_though_a_worker_is_killed_in_mid_batch(world: World) -> None:
    first = world.start("first")
    first.process.expected_to_end = True
    for sequence in range(1, 5):
        world.publish(*[a_message(a_change(n, sequence)) for n in range(3)])
        world.wait_for_rows(dict.fromkeys(range(3), f"name {sequence}"))
    world.processes.wait_until(acks(first, 12), "twelve acks", PATIENCE)
    world.fault(action="stall")
    world.publish(*[a_message(a_change(n, 9)) for n in range(3)])
    wait_until(
        lambda: world.stand_in.control("GET", "stats")["faults_met"] > 0,
        "an append without an answer",
        timeout=PATIENCE,
    )
    for one in psutil.Process(first.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # workers end by themselves as well
            if any("pyspark.daemon" in parent.cmdline() for parent in one.parents()[:1]):
                one.kill()

    assert first.process.wait(PATIENCE) == 1, first.process.obituary()
    (counted,) = events(first.process, "leases_counted")
    assert counted["left"] >= 1, "what the killed worker held"
    assert counted["taken"] == counted["acked"] + counted["left"]

    world.mend()
    second = start_consumer(world.processes, world.pipeline, "first")
    wait_until_ready(world.processes, second)
    world.wait_for_rows(dict.fromkeys(range(3), "name 9"))
    world.processes.wait_until(acks(second, counted["left"]), "everything that was left to be acked", PATIENCE)
    assert ends(second) == 0
    (rest,) = [event for event in events(second.process, "leases_counted") if event != counted]
    assert (rest["left"], rest["taken"]) == (0, rest["acked"] + rest["given_back"])
    assert counted["acked"] + rest["acked"] >= 15
    assert world.letters() == []


def test_a_spark_that_cannot_run_its_tasks_is_refused_with_a_clear_error(world: World) -> None:
    consumer = start_consumer(world.processes, world.pipeline, SPARK_MASTER="local[*]", TASKS="500")
    consumer.process.expected_to_end = True

    assert consumer.process.wait(PATIENCE) == 2, consumer.process.obituary()
    (event,) = events(consumer.process, "service_misconfigured")
    assert event["error"].startswith("TASKS=500 is more than the ")
    assert "Traceback" not in consumer.process.output()


def test_set_up_makes_what_the_consumer_needs_and_can_be_repeated(world: World) -> None:
    names = {
        "TOPIC": "changes",
        "SUBSCRIPTION": "consumer",
        "DEAD_LETTER_TOPIC": "dead",
        "GOOGLE_CLOUD_PROJECT": world.project,
    }
    environment = {**names, "PUBSUB_EMULATOR_HOST": world.pipeline.pubsub, "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        process = world.processes.start("setup", [sys.executable, "-m", "services.cdc_consumer", "setup"], environment)
        process.expected_to_end = True
        assert process.wait(PATIENCE) == 0, process.obituary()
        assert len(events(process, "topology_created")) == 1

    def path(kind: str, name: str) -> str:
        return f"projects/{world.project}/{kind}/{name}"

    check_subscription(
        world.channel,
        path("subscriptions", "consumer"),
        topic=path("topics", "changes"),
        dead_letter_topic=path("topics", "dead"),
    )


def test_a_wrong_command_names_the_right_ones(world: World) -> None:
    process = world.processes.start(
        "usage", [sys.executable, "-m", "services.cdc_consumer", "run"], {"PYTHONPATH": str(ROOT)}
    )
    process.expected_to_end = True
    assert process.wait(PATIENCE) == 2
    said = process.output()
    assert said.startswith("error: there is no command run\n")
    assert all(f"\n  {command} " in said for command in ("setup", "doctor", "status", "sweep", "reconcile"))
