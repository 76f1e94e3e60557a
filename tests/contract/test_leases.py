"""What every Leases promises: the fake, and Pub/Sub's (on the emulator, with leases of two seconds)."""

import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Protocol

import grpc
import pytest

from services.cdc_consumer.ports import MessageLeases
from shared.pubsub.channels import open_channel
from shared.pubsub.leases import PubsubLeases
from shared.pubsub.stubs import PublishRequest, publish_stub
from shared.pubsub.topology import PubsubTopology
from shared.runtime.stop import Stop
from tests.fakes.leases import FakeLeases
from tests.integration.pubsub_topics import a_topology, pull

DEADLINE = timedelta(seconds=2)
LITTLE = timedelta(milliseconds=500)


class Subscription(Protocol):
    """A subscription with messages, as both the fake and the real one show it to these tests."""

    def publish(self, *messages: str) -> None: ...
    def lease(self) -> Mapping[str, str]: ...
    def pass_time(self, time: timedelta) -> None: ...


class RealSubscription:
    def __init__(self, channel: grpc.Channel, topology: PubsubTopology, leases: PubsubLeases) -> None:
        self._channel, self._topology, self._leases = channel, topology, leases

    def publish(self, *messages: str) -> None:
        request = PublishRequest(topic=self._topology.topic, messages=[{"data": one.encode()} for one in messages])
        publish_stub(self._channel)(request, timeout=10)

    def lease(self) -> Mapping[str, str]:
        received = pull(self._channel, self._topology.subscription)
        if received:  # a subscription's own deadline is ten seconds at least
            self._leases.extend([one.ack_id for one in received])
        return {one.message.data.decode(): one.ack_id for one in received}

    def pass_time(self, time: timedelta) -> None:
        threading.Event().wait(time.total_seconds())


class LeasesContract:
    def test_an_acked_message_never_comes_again(self, leases: MessageLeases, subscription: Subscription) -> None:
        subscription.publish("a", "b")
        leased = subscription.lease()
        leases.ack([leased["a"]])

        subscription.pass_time(DEADLINE + LITTLE)

        assert set(subscription.lease()) == {"b"}

    def test_a_message_released_comes_again_at_once(self, leases: MessageLeases, subscription: Subscription) -> None:
        subscription.publish("a", "b")
        leased = subscription.lease()
        leases.release([leased["a"]])
        subscription.pass_time(LITTLE)

        assert set(subscription.lease()) == {"a"}

    def test_a_deferred_message_comes_after_its_delay(self, leases: MessageLeases, subscription: Subscription) -> None:
        subscription.publish("a")
        leased = subscription.lease()
        leases.defer(list(leased.values()), DEADLINE * 2)
        subscription.pass_time(DEADLINE + LITTLE)
        before = subscription.lease()
        subscription.pass_time(DEADLINE + LITTLE)

        assert before == {}
        assert set(subscription.lease()) == {"a"}

    def test_leases_are_kept_as_long_as_is_asked_for(self, leases: MessageLeases, subscription: Subscription) -> None:
        subscription.publish("a", "b")
        leased = subscription.lease()
        with leases.keeping(list(leased.values())):
            subscription.pass_time(DEADLINE * 1.5)
            first = subscription.lease()
            subscription.pass_time(DEADLINE * 1.5)
            second = subscription.lease()
        subscription.pass_time(DEADLINE + LITTLE)

        assert (first, second) == ({}, {})
        assert set(subscription.lease()) == {"a", "b"}

    def test_what_is_settled_is_kept_no_longer(self, leases: MessageLeases, subscription: Subscription) -> None:
        subscription.publish("acked", "back", "later", "kept")
        leased = subscription.lease()
        with leases.keeping(list(leased.values())):
            leases.ack([leased["acked"]])
            leases.defer([leased["later"]], DEADLINE)
            leases.release([leased["back"]])
            subscription.pass_time(LITTLE)
            soon = subscription.lease()
            subscription.pass_time(DEADLINE)
            then = subscription.lease()

        assert set(soon) == {"back"}
        assert "later" in then
        assert not {"acked", "kept"} & set(then)

    def test_nothing_to_do_is_nothing_done(self, leases: MessageLeases, subscription: Subscription) -> None:
        subscription.publish("a")
        leased = subscription.lease()
        with leases.keeping([]):
            leases.ack([])
            leases.release([])
            leases.defer([], DEADLINE)
            subscription.pass_time(LITTLE)

        assert (set(leased), subscription.lease()) == ({"a"}, {})


class TestFakeLeases(LeasesContract):
    @pytest.fixture
    def leases(self) -> FakeLeases:
        return FakeLeases(ack_deadline=DEADLINE)

    @pytest.fixture
    def subscription(self, leases: FakeLeases) -> Subscription:
        return leases


@pytest.mark.integration
class TestPubsubLeases(LeasesContract):
    @pytest.fixture
    def channel(self, pubsub_emulator: str) -> Iterator[grpc.Channel]:
        with open_channel(pubsub_emulator) as channel:
            yield channel

    @pytest.fixture
    def topology(self, channel: grpc.Channel) -> PubsubTopology:
        return a_topology(channel)

    @pytest.fixture
    def leases(self, channel: grpc.Channel, topology: PubsubTopology) -> PubsubLeases:
        return PubsubLeases(channel, topology.subscription, DEADLINE, Stop())

    @pytest.fixture
    def subscription(self, channel: grpc.Channel, topology: PubsubTopology, leases: PubsubLeases) -> Subscription:
        return RealSubscription(channel, topology, leases)
