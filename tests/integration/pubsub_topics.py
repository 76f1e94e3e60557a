"""Topics and subscriptions of one test on the Pub/Sub emulator, and what a test does with them."""

import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import grpc
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.pubsub.stubs import (
    AcknowledgeRequest,
    PublishRequest,
    PullRequest,
    acknowledge_stub,
    publish_stub,
    pull_stub,
)
from shared.pubsub.topology import (
    PubsubTopology,
    create_topology,
)


def a_topology(channel: grpc.Channel, ack_deadline: timedelta = timedelta(seconds=60)) -> PubsubTopology:
    """Make topics and subscriptions of their own."""
    name = f"test-{uuid.uuid4().hex}"
    topology = PubsubTopology(
        topic=f"projects/millrace-test/topics/{name}",
        subscription=f"projects/millrace-test/subscriptions/{name}",
        dead_letter_topic=f"projects/millrace-test/topics/{name}-dead",
        dead_letter_subscription=f"projects/millrace-test/subscriptions/{name}-dead",
        ack_deadline=ack_deadline,
    )
    create_topology(channel, topology)
    return topology


def publish(channel: grpc.Channel, topic: str, count: int, keys: int = 8) -> list[str]:
    """Publish small messages, each request under one ordering key; return their ids."""
    stub = publish_stub(channel)
    identities: list[str] = []
    for key in range(min(keys, count)):
        share = range(key, count, keys)
        messages = [{"data": f"message {number}".encode(), "ordering_key": f"planes/{key}"} for number in share]
        identities += stub(PublishRequest(topic=topic, messages=messages), timeout=10).message_ids
    return identities


def pull(channel: grpc.Channel, subscription: str) -> list[Any]:
    """Lease everything that can be leased now."""
    stub = pull_stub(channel)
    received: list[Any] = []
    request = PullRequest(subscription=subscription, max_messages=1_000, return_immediately=True)
    while messages := stub(request, timeout=10).received_messages:
        received += messages
    return received


def take(channel: grpc.Channel, subscription: str) -> list[Any]:
    """Lease and acknowledge everything that can be leased now; return the messages."""
    pull_once, acknowledge = pull_stub(channel), acknowledge_stub(channel)
    found: list[Any] = []
    request = PullRequest(subscription=subscription, max_messages=1_000, return_immediately=True)
    while received := pull_once(request, timeout=30).received_messages:
        ack_ids = [one.ack_id for one in received]
        acknowledge(AcknowledgeRequest(subscription=subscription, ack_ids=ack_ids), timeout=30)
        found += [one.message for one in received]
    return found


def publish_each(channel: grpc.Channel, topic: str, *messages: Mapping[str, Any]) -> None:
    """Publish messages in this order, each in a request of its own."""
    stub = publish_stub(channel)
    for one in messages:
        message = {"data": one["data"], "attributes": dict(one["attributes"]), "ordering_key": one["ordering_key"]}
        stub(PublishRequest(topic=topic, messages=[message]), timeout=30)


def pull_until(channel: grpc.Channel, subscription: str, count: int, timeout: timedelta) -> Sequence[str]:
    """Lease and acknowledge until so many messages came; return their ids, those of repeats too."""
    stub = pull_stub(channel)
    identities: list[str] = []
    ends = time.monotonic() + timeout.total_seconds()
    while len(set(identities)) < count and time.monotonic() < ends:
        request = PullRequest(subscription=subscription, max_messages=1_000)
        received = stub(request, timeout=2).received_messages
        if received:
            acknowledge_stub(channel)(
                AcknowledgeRequest(subscription=subscription, ack_ids=[one.ack_id for one in received]), timeout=10
            )
        identities += [one.message.message_id for one in received]
    return identities


def subscribe(channel: grpc.Channel, topology: PubsubTopology, **settings: Any) -> str:
    """Make one more subscription that is as it should be but for these settings; return its name."""
    name = f"{topology.subscription}-more"
    policy = {"dead_letter_topic": topology.dead_letter_topic, "max_delivery_attempts": 100}
    request = {"name": name, "topic": topology.topic, "expiration_policy": {}, "dead_letter_policy": policy} | settings
    request = {field: value for field, value in request.items() if value is not None}
    SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)).create_subscription(request=request)
    return name
