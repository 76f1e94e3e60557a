"""What becomes of a message when the pull that waited for it is over: the emulator leases it to nobody.

This is why `services/cdc_consumer/adapters/stream/pulling.py` awaits a pull that waits, and neither cuts it short nor
cancels it. Pub/Sub itself does so with pulls that end by their own deadline too (googleapis/python-pubsub#343); the
emulator answers those, with nothing, a second before.
"""

import threading
from datetime import timedelta
from typing import Any

import grpc
import pytest

from deploy.local.platform.processes import wait_until
from services.cdc_consumer.adapters.stream.pulling import Puller
from shared.pubsub.leases import PubsubLeases
from shared.pubsub.stubs import PullRequest, pull_stub
from shared.pubsub.topology import PubsubTopology
from shared.runtime.stop import Stop
from tests.integration.pubsub_topics import a_topology, publish, pull

pytestmark = pytest.mark.integration

ACK_DEADLINE = timedelta(seconds=10)
"""The shortest that Pub/Sub takes."""
TIMEOUT = timedelta(seconds=60)
A_WHILE = timedelta(seconds=1)


@pytest.fixture
def topology(channel: grpc.Channel) -> PubsubTopology:
    return a_topology(channel, ACK_DEADLINE)


def deliveries(received: Any) -> list[tuple[str, int]]:
    return [(one.message.message_id, one.delivery_attempt) for one in received]


def test_a_message_published_after_a_cancelled_pull_is_not_leased(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    waiting = pull_stub(channel).future(PullRequest(subscription=topology.subscription, max_messages=10), timeout=60)
    threading.Event().wait(A_WHILE.total_seconds())
    assert not waiting.done()
    waiting.cancel()

    (published,) = publish(channel, topology.topic, 1)
    threading.Event().wait(A_WHILE.total_seconds())  # whoever pulls at once may be quicker than the one that is gone

    assert pull(channel, topology.subscription) == []
    received = wait_until(lambda: pull(channel, topology.subscription) or None, "the lease to end", timeout=TIMEOUT)
    assert deliveries(received) == [(published, 2)], "its first delivery was to the pull that is gone"


def test_a_pull_whose_deadline_comes_is_answered_before_and_takes_nothing_along(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    request = PullRequest(subscription=topology.subscription, max_messages=10)
    assert deliveries(pull_stub(channel)(request, timeout=3).received_messages) == []

    (published,) = publish(channel, topology.topic, 1)

    assert deliveries(pull(channel, topology.subscription)) == [(published, 1)]


def test_the_pull_of_ours_that_waits_outlasts_a_wait_and_gets_the_message_at_its_first_delivery(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    puller = Puller(channel, topology.subscription, PubsubLeases(channel, topology.subscription, ACK_DEADLINE, Stop()))
    for _wait in range(2):
        assert puller.first(A_WHILE, most=10) is None

    (published,) = publish(channel, topology.topic, 1)

    response = puller.first(TIMEOUT, most=10)
    assert response is not None
    assert deliveries(response.received_messages) == [(published, 1)]
