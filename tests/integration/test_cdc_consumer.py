"""The consumer as a process: Pub/Sub emulator -> micro-batches without Spark -> BigQuery stand-in."""

import sys

import pytest

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import wait_until
from shared.pubsub.stubs import (
    PullRequest,
    pull_stub,
)
from shared.pubsub.topology import check_subscription
from tests.builders import a_change, a_message
from tests.integration.log_lines import events
from tests.integration.stand_in import PROJECT
from tests.worlds.consumer import TIMEOUT, World, acks, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_killed_in_mid_batch_and_started_again_it_applies_everything(world: World) -> None:
    first = world.start("first")
    world.publish(a_message(a_change(1)))
    world.wait_for_rows({1: "name 1"})
    world.fault(action="stall", when="after")  # rows are taken, and the consumer never learns of it
    world.publish(*[a_message(a_change(n, 2)) for n in range(1, 6)])
    world.wait_for_rows(dict.fromkeys(range(1, 6), "name 2"))
    first.process.kill()
    world.fix()
    world.publish(a_message(a_change(1, 3, op="DELETE")))

    second = world.start("second")
    world.wait_for_rows(dict.fromkeys(range(2, 6), "name 2"))
    world.processes.wait_until(acks(second, 6), "six acks", TIMEOUT)
    assert ends(second) == 0
    assert world.letters() == []


def test_a_stop_while_bigquery_is_unavailable_nacks_and_ends_in_time(world: World) -> None:
    consumer = world.start()
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(a_message(a_change(1)))
    wait_until(lambda: bool(events(consumer.process, "call_retried")), "a retry", [consumer.process], TIMEOUT)

    assert ends(consumer) == 0, consumer.process.obituary()
    world.fix()
    request = PullRequest(subscription=world.topology.subscription, max_messages=10)
    (received,) = pull_stub(world.channel)(request, timeout=5).received_messages  # at once, not after the deadline
    assert received.delivery_attempt == 2


def test_without_its_dataset_it_does_not_start_and_names_the_command(world: World) -> None:
    consumer = world.launch(BIGQUERY_DATASET="nowhere")
    consumer.process.expected_to_end = True

    assert consumer.process.wait(TIMEOUT) == 2, consumer.process.obituary()
    (event,) = events(consumer.process, "service_misconfigured")
    assert f"bq --project_id={PROJECT} mk --dataset nowhere" in event["error"]


def test_a_spark_that_cannot_run_its_tasks_is_refused_with_a_clear_error(world: World) -> None:
    consumer = world.launch(SPARK_MASTER="local[*]", TASKS="500")
    consumer.process.expected_to_end = True

    assert consumer.process.wait(TIMEOUT) == 2, consumer.process.obituary()
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
        assert process.wait(TIMEOUT) == 0, process.obituary()
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
    assert process.wait(TIMEOUT) == 2
    said = process.output()
    assert said.startswith("error: unknown command run\n")
    assert "\nthe commands are setup, doctor, status, sweep, reconcile, advise, tables; " in said
