"""What a doctor sees in Pub/Sub: on the emulator each setting that is wrong is named, alone, with the fix of it.

The emulator knows no rights; those are asked of a server that speaks the same protocol and has them.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.pubsub.inspection import Inspection
from shared.pubsub.topology import PubsubTopology
from shared.runtime.findings import Finding, Level
from tests.integration.iam_server import Rights, serving_rights
from tests.integration.pubsub_topics import subscribe

pytestmark = pytest.mark.integration

WEEK = timedelta(days=7)
DEAD = "projects/millrace-test/topics/dead"
READ = "projects/millrace-test/subscriptions/read"


def looked_at(channel: grpc.Channel, topology: PubsubTopology, subscription: str) -> Sequence[Finding]:
    inspection = Inspection(channel)
    return list(
        inspection.subscription(
            subscription,
            topic=topology.topic,
            dead_letter_topic=topology.dead_letter_topic,
            keep_messages_for=WEEK,
        )
    )


def wrong(findings: Sequence[Finding]) -> Mapping[str, Finding]:
    """Return what is not right, by the last word of its check."""
    return {one.check.rpartition(": ")[2]: one for one in findings if one.level is not Level.OK}


def test_what_set_up_makes_is_right_in_every_setting(channel: grpc.Channel, topology: PubsubTopology) -> None:
    findings = looked_at(channel, topology, topology.subscription)

    assert wrong(findings) == {}
    assert len(findings) == 10
    inspection = Inspection(channel)
    assert wrong([*inspection.topic(topology.topic, WEEK), *inspection.topic(topology.dead_letter_topic, WEEK)]) == {}


@pytest.mark.parametrize(
    ("setting", "settings", "fix"),
    [
        ("expiry", {"expiration_policy": {"ttl": timedelta(days=31)}}, "--expiration-period=never"),
        (
            "retention",
            {"message_retention_duration": timedelta(hours=1)},
            "--message-retention-duration=7d",
        ),
        ("ordering", {"enable_message_ordering": True}, "under a new SUBSCRIPTION"),
        ("filter", {"filter": 'attributes.table = "planes"'}, "under a new SUBSCRIPTION"),
        ("exactly-once", {"enable_exactly_once_delivery": True}, "--no-enable-exactly-once-delivery"),
        ("delivery", {"push_config": {"push_endpoint": "https://127.0.0.1/push"}}, "under a new SUBSCRIPTION"),
        ("dead-letter policy", {"dead_letter_policy": None}, "--max-delivery-attempts=100"),
        ("ack deadline", {"ack_deadline_seconds": 10}, "--ack-deadline=60"),
    ],
)
def test_a_wrong_setting_is_reported_alone_with_its_fix(
    channel: grpc.Channel, topology: PubsubTopology, setting: str, settings: dict[str, Any], fix: str
) -> None:
    settings = {"ack_deadline_seconds": 60} | settings
    found = wrong(looked_at(channel, topology, subscribe(channel, topology, **settings)))

    assert list(found) == [setting]
    assert fix in found[setting].fix


def test_everything_that_is_wrong_is_found_at_once(channel: grpc.Channel, topology: PubsubTopology) -> None:
    policy = {"dead_letter_topic": topology.dead_letter_topic, "max_delivery_attempts": 5}
    name = subscribe(channel, topology, enable_message_ordering=True, expiration_policy=None, dead_letter_policy=policy)

    found = wrong(looked_at(channel, topology, name))
    assert set(found) == {"ordering", "expiry", "dead-letter policy", "ack deadline"}
    assert "after 5 attempts" in found["dead-letter policy"].detail


def test_a_subscription_that_is_not_there_is_one_finding(channel: grpc.Channel, topology: PubsubTopology) -> None:
    (finding,) = looked_at(channel, topology, f"{topology.subscription}-gone")

    assert (finding.level, finding.fix) == (
        Level.ERROR,
        "correct the setting that names it, or make it with python -m services.cdc_consumer setup",
    )
    assert "does not exist" in finding.detail


def test_a_subscription_whose_topic_was_deleted_is_reported(channel: grpc.Channel, topology: PubsubTopology) -> None:
    PublisherClient(transport=PublisherGrpcTransport(channel=channel)).delete_topic(request={"topic": topology.topic})

    assert "detached" in wrong(looked_at(channel, topology, topology.subscription))["topic"].detail


def test_a_topic_that_would_lose_messages_is_reported_with_the_subscription_that_keeps_none(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    inspection, subscriber = Inspection(channel), SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    subscriber.delete_subscription(request={"subscription": topology.subscription})
    (finding,) = inspection.topic(topology.topic, WEEK)
    assert finding.level is Level.ERROR
    assert "--expiration-period=never" in finding.fix

    subscribe(channel, topology, expiration_policy=None)
    (finding,) = inspection.topic(topology.topic, WEEK)
    assert "it expires after 31 days" in finding.detail
    (finding,) = inspection.topic(f"{topology.topic}-gone", WEEK)
    assert "does not exist" in finding.detail


def test_the_emulator_has_no_rights_and_that_is_fine(channel: grpc.Channel, topology: PubsubTopology) -> None:
    inspection = Inspection(channel)
    findings = [
        *inspection.rights(topology.subscription, "consume", "get"),
        *inspection.rights(topology.dead_letter_topic, "publish"),
        *inspection.forwarding(topology.subscription, topology.dead_letter_topic),
    ]
    assert wrong(findings) == {}
    assert len(findings) == 4


def test_an_unavailable_pubsub_is_reported_for_each_check() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as nowhere:
        inspection = Inspection(nowhere)
        findings = [
            *inspection.subscription(READ, dead_letter_topic=DEAD, keep_messages_for=WEEK),
            *inspection.topic(DEAD, WEEK),
            *inspection.rights(READ, "consume"),
            *inspection.forwarding(READ, DEAD),
        ]

    assert [one.level for one in findings] == [Level.ERROR] * 5
    assert all("does not answer: UNAVAILABLE" in one.detail for one in findings)


@pytest.fixture
def rights() -> Iterator[tuple[Rights, Inspection]]:
    with serving_rights("google.iam.v1.IAMPolicy") as served, grpc.insecure_channel(served.address) as channel:
        yield served, Inspection(channel)


def test_rights_that_are_missing_are_named_with_the_role_that_has_them(rights: tuple[Rights, Inspection]) -> None:
    served, inspection = rights
    served.granted = {"pubsub.subscriptions.get"}
    (finding,) = inspection.rights(READ, "consume", "get")
    assert finding.level is Level.ERROR
    assert finding.detail == "this identity lacks pubsub.subscriptions.consume"
    assert "add-iam-policy-binding read" in finding.fix
    assert "--role=roles/pubsub.subscriber" in finding.fix

    served.granted.add("pubsub.subscriptions.consume")
    (finding,) = inspection.rights(READ, "consume", "get")
    assert finding.level is Level.OK


def test_pubsubs_own_agent_needs_rights_to_forward(rights: tuple[Rights, Inspection]) -> None:
    served, inspection = rights
    agent = "serviceAccount:service-7@gcp-sa-pubsub.iam.gserviceaccount.com"
    served.roles = {"roles/pubsub.publisher": [agent]}
    publishes, subscribes = inspection.forwarding(READ, DEAD)
    assert (publishes.level, subscribes.level) == (Level.OK, Level.WARNING)
    assert "--role=roles/pubsub.subscriber" in subscribes.fix

    served.roles["roles/pubsub.subscriber"] = ["user:a@b", agent]
    assert wrong(list(inspection.forwarding(READ, DEAD))) == {}
    served.denied = True
    assert all("cannot be read by this identity" in one.detail for one in inspection.forwarding(READ, DEAD))
