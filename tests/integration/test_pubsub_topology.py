"""Topics and subscriptions on the emulator: set-up makes them, and what would lose messages is refused by name."""

from dataclasses import replace
from datetime import timedelta

import grpc
import pytest
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.contracts.errors import MessagesLostError, MisconfiguredError
from shared.pubsub.inspection import Inspection
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.pubsub.topology import (
    PubsubTopology,
    check_dead_letter_subscription,
    check_subscription,
    check_topic,
    create_topology,
)
from shared.runtime.findings import Level
from shared.runtime.stop import Stop
from tests.integration.pubsub_topics import a_topology, subscribe

pytestmark = pytest.mark.integration


def check(channel: grpc.Channel, topology: PubsubTopology, subscription: str) -> str:
    return check_subscription(channel, subscription, topic=topology.topic, dead_letter_topic=topology.dead_letter_topic)


def test_what_set_up_makes_passes_the_checks_and_doing_it_again_changes_nothing(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    create_topology(channel, topology)

    check_topic(channel, topology.topic)
    check_topic(channel, topology.dead_letter_topic)
    assert check(channel, topology, topology.subscription) == topology.topic
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    made = client.get_subscription(request={"subscription": topology.subscription})
    assert made.ack_deadline_seconds == 60
    assert made.message_retention_duration == timedelta(days=7)
    assert made.dead_letter_policy.max_delivery_attempts == 100
    assert not made.enable_message_ordering


def test_every_mistake_is_in_one_error(channel: grpc.Channel, topology: PubsubTopology) -> None:
    name = subscribe(channel, topology, expiration_policy=None, enable_message_ordering=True, dead_letter_policy=None)

    message = rf"(?s)of topic {topology.topic}.*expires after 31 days.*not set.*ordered"
    with pytest.raises(MisconfiguredError, match=message):
        check(channel, topology, name)


def test_a_subscription_that_is_not_there_is_refused_with_the_command_that_makes_it(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    message = (
        r"-nobody does not exist or cannot be read.*python -m services\.cdc_consumer setup.*grant roles/pubsub\.viewer"
    )
    with pytest.raises(MisconfiguredError, match=message):
        check(channel, topology, f"{topology.subscription}-nobody")


def test_a_topic_that_is_not_there_is_refused(channel: grpc.Channel) -> None:
    topic = "projects/millrace-test/topics/nobody"
    with pytest.raises(
        MisconfiguredError, match=rf"{topic} does not exist: correct TOPIC .*cdc_consumer setup"
    ) as refused:
        check_topic(channel, topic)
    assert not isinstance(refused.value, MessagesLostError)  # nothing can be published to it


def test_the_subscription_of_the_dead_letter_topic_is_refused_without_a_policy_that_would_make_a_loop(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    with pytest.raises(
        MisconfiguredError, match=r"of the dead-letter topic.*name that of the change batches"
    ) as refused:
        check_subscription(channel, topology.dead_letter_subscription, dead_letter_topic=topology.dead_letter_topic)
    assert "--dead-letter-topic=" not in str(refused.value)


def test_set_up_with_a_subscription_of_another_topic_names_both_topics_and_another_name(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    other = a_topology(channel)
    new = replace(topology, topic=f"{topology.topic}-new", subscription=other.subscription)

    with pytest.raises(MisconfiguredError) as refused:
        create_topology(channel, new)
    message = str(refused.value)
    assert f"belongs to topic {other.topic}, not {new.topic}" in message
    assert "under a new SUBSCRIPTION" in message
    assert "would lose messages" not in message


def test_a_topic_without_a_subscription_that_keeps_messages_is_refused(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    client.delete_subscription(request={"subscription": topology.subscription})

    with pytest.raises(
        MessagesLostError, match=r"(?s)would lose messages.* for 7d, and it has no subscription"
    ) as lost:
        check_topic(channel, topology.topic)
    assert f"create NAME --topic={topology.topic} --expiration-period=never" in str(lost.value)
    assert "--message-retention-duration=7d" in str(lost.value)
    assert "python -m services.cdc_consumer setup" in str(lost.value)

    subscribe(channel, topology, expiration_policy=None)
    with pytest.raises(MisconfiguredError, match=r"(?s)expires after 31 days.*--expiration-period=never") as refused:
        check_topic(channel, topology.topic)
    assert not isinstance(refused.value, MessagesLostError)  # what is published now is kept


def test_of_the_dead_letters_topic_it_is_no_change_that_is_lost(
    channel: grpc.Channel, topology: PubsubTopology, pubsub_emulator: str
) -> None:
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    client.delete_subscription(request={"subscription": topology.dead_letter_subscription})
    for topics, lost in (((0, 1), False), ((1, 0), True)):
        names = [(topology.topic, topology.dead_letter_topic)[place] for place in topics]
        subscriptions = TopicSubscriptions(pubsub_emulator, names, timedelta(days=1))
        with pytest.raises(MisconfiguredError) as refused:
            subscriptions.check_now(Stop())
        assert isinstance(refused.value, MessagesLostError) == lost


def test_one_subscription_that_keeps_everything_is_enough(channel: grpc.Channel, topology: PubsubTopology) -> None:
    subscribe(channel, topology, expiration_policy=None)

    check_topic(channel, topology.topic)
    with pytest.raises(MisconfiguredError, match="keeps messages for 7d, not 8d"):
        check_topic(channel, topology.topic, keep_messages_for=timedelta(days=8))


def test_the_subscription_that_is_named_has_to_keep_everything_whatever_others_do(
    channel: grpc.Channel, topology: PubsubTopology, pubsub_emulator: str
) -> None:
    """Another subscriber's would hide that the consumer's is gone, and all that was published meanwhile with it."""
    other = subscribe(channel, topology)
    subscriptions = TopicSubscriptions(
        pubsub_emulator, [topology.topic, topology.dead_letter_topic], timedelta(days=7), topology.subscription
    )
    subscriptions.check_now(Stop())
    check_topic(channel, topology.topic, subscription=other)

    SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)).delete_subscription(
        request={"subscription": topology.subscription}
    )
    check_topic(channel, topology.topic)
    with pytest.raises(MessagesLostError, match=f"no subscription {topology.subscription}, which SUBSCRIPTION names"):
        subscriptions.check_now(Stop())
    (finding,) = Inspection(channel).topic(topology.topic, timedelta(days=7), topology.subscription)
    assert finding.level is Level.ERROR
    assert topology.subscription in finding.detail


def test_the_consumer_needs_a_dead_letter_topic_with_a_subscription_that_keeps_messages(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    client.delete_subscription(request={"subscription": topology.dead_letter_subscription})

    with pytest.raises(MisconfiguredError, match=topology.dead_letter_topic):
        check(channel, topology, topology.subscription)


def test_the_subscription_of_dead_letters_that_set_up_makes_is_right(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    name = topology.dead_letter_subscription
    found = check_dead_letter_subscription(channel, name, topic_of_changes=topology.topic)
    assert found == topology.dead_letter_topic


def test_every_mistake_of_a_subscription_of_dead_letters_is_in_one_error_with_its_fix(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    name = subscribe(
        channel,
        replace(topology, topic=topology.dead_letter_topic),
        expiration_policy=None,
        message_retention_duration=timedelta(days=1),
        enable_exactly_once_delivery=True,
        enable_message_ordering=True,
        filter='attributes.table = "x"',
        dead_letter_policy={"dead_letter_topic": topology.topic, "max_delivery_attempts": 5},
    )

    with pytest.raises(MisconfiguredError) as refused:
        check_dead_letter_subscription(channel, name)
    for fix in ("expiration-period=never", "message-retention-duration=7d", "no-enable-exactly-once-delivery"):
        assert f"--{fix}" in str(refused.value)
    for message in ("--clear-dead-letter-policy", "it is ordered", "it has a filter"):
        assert message in str(refused.value)


def test_a_subscription_of_the_changes_is_none_of_dead_letters(channel: grpc.Channel, topology: PubsubTopology) -> None:
    with pytest.raises(MisconfiguredError, match="it is of the topic of change batches"):
        check_dead_letter_subscription(channel, topology.subscription, topic_of_changes=topology.topic)


def test_a_dead_letter_topic_without_a_subscription_is_reported_with_the_command_that_makes_one(
    channel: grpc.Channel, topology: PubsubTopology
) -> None:
    with pytest.raises(MisconfiguredError, match=r"does not exist.*cdc_consumer setup"):
        check_dead_letter_subscription(channel, topology.dead_letter_subscription + "-gone")
