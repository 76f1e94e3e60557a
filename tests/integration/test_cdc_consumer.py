"""The consumer as a process: Pub/Sub emulator -> micro-batches without Spark -> BigQuery stand-in."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import wait_until
from deploy.local.platform.services import Service
from shared.pubsub.stubs import PullRequest, pull_stub
from shared.pubsub.topology import check_subscription
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import TIMEOUT, World, acks, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def started_and_in_midst(
    world: World, *messages: Mapping[str, Any], temporary: str | None = None, **stalled: Any
) -> Service:
    """Start a consumer that applies one change, and then waits for an answer about messages that never comes."""
    consumer = world.start("first", **({"TMPDIR": temporary} if temporary else {}))
    world.publish(a_message(a_change(1)))
    world.wait_for_rows({1: "name 1"})
    before = world.faults_met()
    world.fault(action="stall", **stalled)
    world.publish(*messages)
    wait_until(lambda: world.faults_met() > before or None, "a call without an answer", [consumer.process], TIMEOUT)
    return consumer


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_in_mid_batch_and_started_again_it_applies_everything_and_leaves_no_files(
    world: World, tmp_path: Path, when: str
) -> None:
    """BigQuery has taken the rows of the batch or not: the consumer never hears of it."""
    temporary = str(tmp_path)
    messages = [a_message(a_change(n, 2)) for n in range(1, 6)]
    first = started_and_in_midst(world, *messages, temporary=temporary, when=when)
    first.process.kill()
    (left,) = tmp_path.glob("millrace-process-*")
    assert list((left / "data").iterdir()), "what messages hold"
    world.fix()
    world.publish(a_message(a_change(1, 3, op="DELETE")))

    second = world.start("second", TMPDIR=temporary)
    assert not left.exists()
    world.wait_for_rows(dict.fromkeys(range(2, 6), "name 2"))
    world.processes.wait_until(acks(second, 6), "six acks", TIMEOUT)
    assert ends(second) == 0
    assert not list(tmp_path.glob("*millrace-process-*"))
    assert world.dead_letters() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_adds_a_column_it_loses_nothing(world: World, when: str) -> None:
    """BigQuery has altered the table or not: the consumer never hears of it."""
    wider = a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING")))
    red = a_message(a_change(2, colour="red"), header=wider)
    first = started_and_in_midst(world, red, on="rest", method="PATCH", when=when, times=1)
    first.process.kill()
    assert ("colour" in world.dataset.columns("planes")) is (when == "after")

    world.publish(a_message(a_change(1, 2)), a_message(a_change(3, colour="blue"), header=wider))
    world.start("second")
    world.wait_for_rows({1: "name 2", 2: "name 1", 3: "name 1"})
    world.fix()  # now what the killed one had asked for is done, or never will be
    world.publish(a_message(a_change(3, 2, colour="green"), header=wider))
    world.wait_for_rows({1: "name 2", 2: "name 1", 3: "name 2"})
    colours = {row["id"]: row["colour"] for row in world.dataset.rows("planes") or ()}
    assert colours == {1: None, 2: "red", 3: "green"}
    assert world.dead_letters() == []


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
