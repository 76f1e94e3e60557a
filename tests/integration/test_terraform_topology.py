"""The topics and subscriptions that the Terraform module describes, made on the emulator: `doctor` finds nothing wrong.

Whatever check `doctor` gets is asked here, too. The emulator is needed because the checks read what a server answers.
"""

import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.contracts.durations import parse_duration
from shared.pubsub.channels import open_channel
from shared.pubsub.inspection import Inspection
from shared.pubsub.topology import check_dead_letter_subscription
from shared.runtime.findings import Level

pytestmark = pytest.mark.integration

SETTINGS: Final = Path(__file__).resolve().parents[2] / "deploy/terraform/subscriptions.yaml"
WEEK: Final = timedelta(days=7)


def test_doctor_finds_nothing_wrong_with_what_the_module_makes(pubsub_emulator: str) -> None:
    path = f"projects/millrace-test/{{}}/terraform-{uuid.uuid4().hex}"
    topic, dead_letters = path.format("topics"), path.format("topics") + "-dead-letters"
    consumer, kept = path.format("subscriptions"), path.format("subscriptions") + "-dead-letters"
    subscription: Mapping[str, Any] = yaml.safe_load(SETTINGS.read_text())
    assert subscription["expiration_policy_ttl"] == ""  # Terraform's word for never
    settings = {key: value for key, value in subscription.items() if key.startswith(("ack_", "enable_"))}
    settings |= {
        "message_retention_duration": parse_duration(subscription["message_retention_duration"]),
        "expiration_policy": {},
    }
    policy = {"dead_letter_topic": dead_letters, "max_delivery_attempts": subscription["max_delivery_attempts"]}
    with open_channel(pubsub_emulator) as channel:
        publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        for name in (topic, dead_letters):
            publisher.create_topic(request={"name": name})
        subscriber.create_subscription(
            request={"name": consumer, "topic": topic, "dead_letter_policy": policy, **settings}
        )
        subscriber.create_subscription(request={"name": kept, "topic": dead_letters, **settings})

        inspection = Inspection(channel)
        found = [
            *inspection.subscription(consumer, dead_letter_topic=dead_letters, keep_messages_for=WEEK, topic=topic),
            *inspection.topic(topic, WEEK),
            *inspection.topic(dead_letters, WEEK),
        ]
        check_dead_letter_subscription(channel, kept, WEEK, None, topic)

    assert [one for one in found if one.level is not Level.OK] == []
    assert len(found) > len(subscription)
