"""The collector as a process, between the Pub/Sub emulator and its SQLite file: kills, floods, refusals to start."""

import json
import random
import re
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from deploy.local.platform.processes import Processes
from shared.contracts.reasons import Reason
from shared.pubsub.dead_letters import DeadLetterPublisher
from shared.pubsub.names import short_name
from shared.pubsub.stubs import (
    GetSubscriptionRequest,
    ModifyAckDeadlineRequest,
    PublishRequest,
    PubsubMessage,
    get_subscription_stub,
    modify_ack_deadline_stub,
    publish_stub,
)
from shared.runtime.service import MISCONFIGURED
from shared.runtime.stop import Stop
from tests.integration.generous_pubsub import generous_pubsub
from tests.integration.pubsub_topics import a_topology, pull
from tests.integration.wire import wire
from tests.worlds.dead_letter_service import ACK_DEADLINE, STARTS, TIMEOUT, DeadLetterService, a_dead_letter, counted

pytestmark = pytest.mark.integration

BURST = 3_000


@pytest.fixture
def service(channel: grpc.Channel, pubsub_emulator: str, new_processes: Processes, tmp_path: Path) -> DeadLetterService:
    topology = a_topology(channel, ACK_DEADLINE)
    return DeadLetterService(channel, pubsub_emulator, topology, new_processes, tmp_path / "letters.sqlite3")


def test_dead_letters_are_in_the_store_and_a_stop_ends_it_with_0(service: DeadLetterService) -> None:
    sent = [a_dead_letter(number) for number in (1, 2, 3, 2)]
    collector = service.start()
    service.publish(sent)

    service.wait_until_stored(counted(sent))

    kept = {"new": 3, "again": 1, "seen": 0}  # counted once they are in the store
    service.processes.wait_until(
        lambda: json.loads(service.get("/status") or "{}").get("kept") == kept or None, "the count of them", TIMEOUT
    )
    metrics = service.get("/metrics") or ""
    assert 'millrace_dead_letter_received_total{reason="value_does_not_fit"} 4.0' in metrics
    topic = service.topology.dead_letter_topic  # no setting names it: it is the subscription's
    assert re.search(rf'^millrace_topics_info{{dead_letter_topic="{topic}",topic=".*"}} 1', metrics, re.MULTILINE)
    assert service.get("/healthz") == "alive\n"
    collector.ask_to_end()
    assert collector.wait(timedelta(seconds=10)) == 0
    assert pull(service.channel, service.topology.dead_letter_subscription) == []


def test_a_burst_is_kept_whole_though_the_collector_is_killed_again_and_again_in_its_midst(
    service: DeadLetterService,
) -> None:
    chance = random.Random(5)
    sent = [a_dead_letter(number) for number in range(BURST)]
    sent += [a_dead_letter(number) for number in range(0, BURST, 10)]  # each tenth fails once more
    publishing = threading.Thread(target=service.publish, args=(sent,))
    publishing.start()
    kills: list[int] = []
    for _ in range(5):
        collector = service.launch()
        there = len(kills) and kills[-1]
        more = there + chance.randint(1, 500)
        service.processes.wait_until(lambda more=more: service.count() >= more or None, "more dead letters", TIMEOUT)  # type: ignore[misc]
        collector.kill()
        kills.append(service.count())
    publishing.join()
    assert kills[-1] < BURST, "killed in its midst"
    collector = service.start()

    service.wait_until_stored(counted(sent))

    assert collector.exit_code is None
    service.processes.wait_until(
        lambda: pull(service.channel, service.topology.dead_letter_subscription) == [] or None, "acks", TIMEOUT
    )


def test_what_pubsub_forwards_by_its_own_policy_is_collected_as_not_applied_in_time(service: DeadLetterService) -> None:
    subscription = service.topology.subscription
    found = get_subscription_stub(service.channel)(GetSubscriptionRequest(subscription=subscription), timeout=10)
    assert found.dead_letter_policy.dead_letter_topic == service.topology.dead_letter_topic
    deliveries = found.dead_letter_policy.max_delivery_attempts
    message = PubsubMessage(data=b"never acknowledged", attributes={"table": "planes"}, ordering_key="planes/3")
    publish_stub(service.channel)(PublishRequest(topic=service.topology.topic, messages=[message]), timeout=10)
    service.start()

    def is_forwarded() -> bool:
        ack_ids = [one.ack_id for one in pull(service.channel, subscription)]
        if ack_ids:
            request = ModifyAckDeadlineRequest(subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=0)
            modify_ack_deadline_stub(service.channel)(request, timeout=10)
        return service.file.exists() and bool(service.stored())

    service.processes.wait_until(lambda: is_forwarded() or None, "Pub/Sub to forward it", TIMEOUT)

    (line,) = service.stored()
    assert line.reason is Reason.NOT_APPLIED_IN_TIME
    assert f"delivered {deliveries} times by subscription " in line.detail
    assert short_name(subscription) in line.detail
    assert line.ordering_key == "planes/3"


def test_an_answer_larger_than_the_window_is_refused_and_its_dead_letters_come_in_smaller_ones(
    service: DeadLetterService,
) -> None:
    sent = [a_dead_letter(number, size=4_000_000) for number in range(8)]
    service.publish(sent)

    with generous_pubsub(service.pubsub) as pubsub:
        collector = service.start(PUBSUB_EMULATOR_HOST=pubsub, PULL_BYTES="11000000")

        service.wait_until_stored(counted(sent))
        assert "RESOURCE_EXHAUSTED" in collector.output(), "all of them came in one answer"
        assert collector.exit_code is None
        collector.end()


def test_a_second_collector_on_one_file_is_refused(service: DeadLetterService) -> None:
    service.start()

    second = service.launch(PORT="0")

    assert second.wait(STARTS) == MISCONFIGURED
    assert "another collector" in second.log.read_text()


def test_a_store_that_is_locked_is_waited_for_and_the_service_is_not_ready(service: DeadLetterService) -> None:
    collector = service.start()
    with closing(sqlite3.connect(service.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        service.publish([a_dead_letter(1)])
        service.processes.wait_until(
            lambda: service.get("/readyz") is None or None, "the collector to say that it is not ready", TIMEOUT
        )
        assert service.get("/healthz") == "alive\n"
        other.execute("ROLLBACK")

    service.wait_until_stored(counted([a_dead_letter(1)]))
    assert collector.exit_code is None
    service.processes.wait_until(lambda: service.get("/readyz"), "the collector to be ready", TIMEOUT)


def test_a_silent_pubsub_is_reported_the_collector_stays_stoppable_and_continues_afterwards(
    service: DeadLetterService,
) -> None:
    with wire(service.pubsub) as pubsub:
        collector = service.start(PUBSUB_EMULATOR_HOST=pubsub.address)
        service.publish([a_dead_letter(1)])
        service.wait_until_stored(counted([a_dead_letter(1)]))
        pubsub.buffer()
        service.processes.wait_until(
            lambda: service.get("/readyz") is None or None, "the collector to say that it is not ready", TIMEOUT
        )
        assert service.get("/healthz") == "alive\n", "a restart would fix nothing"
        service.publish([a_dead_letter(2)])

        pubsub.let_go()
        service.processes.wait_until(lambda: service.get("/readyz"), "the collector to be ready", TIMEOUT)
        service.wait_until_stored(counted([a_dead_letter(1), a_dead_letter(2)]))

        pubsub.buffer()
        service.processes.wait_until(
            lambda: service.get("/readyz") is None or None, "the collector to say that it is not ready", TIMEOUT
        )
        collector.ask_to_end()
        assert collector.wait(timedelta(seconds=10)) == 0, collector.obituary()


def test_the_consumers_own_subscription_is_no_subscription_of_dead_letters(service: DeadLetterService) -> None:
    process = service.launch(DEAD_LETTER_SUBSCRIPTION=short_name(service.topology.subscription))

    assert process.wait(STARTS) == MISCONFIGURED
    assert "it is of the topic of change batches" in process.log.read_text()


def test_a_collector_of_another_pipeline_is_refused_and_takes_no_dead_letter(service: DeadLetterService) -> None:
    service.start().end()
    theirs = a_topology(service.channel, ACK_DEADLINE)
    DeadLetterPublisher(service.channel, theirs.dead_letter_topic, Stop()).keep([a_dead_letter(1)])

    other = service.launch(
        DEAD_LETTER_SUBSCRIPTION=short_name(theirs.dead_letter_subscription), TOPIC=short_name(theirs.topic)
    )

    assert other.wait(STARTS) == MISCONFIGURED
    output = other.log.read_text()
    for name in (service.topology.dead_letter_subscription, theirs.dead_letter_subscription, theirs.topic):
        assert name in output
    assert "give each pipeline a DATABASE of its own" in output
    assert service.stored() == []
    assert len(pull(service.channel, theirs.dead_letter_subscription)) == 1
