"""Replays on their way to the topic: as they came, in order, and confirmed."""

from datetime import timedelta
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dead_letter.adapters.replay_publisher import PubsubReplayPublisher
from services.dead_letter.core.dead_letters import DeadLetterId
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.stubs import PublishResponse
from shared.runtime.stop import Stop
from tests.builders import a_change
from tests.fakes.pubsub_channel import FakeChannel, FakeRpcError
from tests.unit.dead_letter.dead_letters import a_dead_letter, junk

TOPIC = "projects/p/topics/t"


class Topic:
    """What has been confirmed, in order; ``failing`` numbers of calls fail, after the messages arrived or before."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.requests: list[Any] = []
        self.failing: dict[int, grpc.StatusCode] = {}
        self.channel: Any = FakeChannel(self.answer)

    def answer(self, _call: str, request: Any) -> Any:
        self.requests.append(request)
        self.messages += request.messages
        if code := self.failing.get(len(self.requests)):
            raise FakeRpcError(code)
        return PublishResponse(message_ids=[str(n) for n in range(len(request.messages))])

    def publish(self, *dead_letters: DeadLetter, forced: bool = False) -> None:
        publisher = PubsubReplayPublisher(self.channel, TOPIC, Stop(), budget=timedelta(seconds=5))
        publisher.publish(dead_letters, [DeadLetterId(one.identity) for one in dead_letters] if forced else [])


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.mark.parametrize(("forced", "added"), [(False, {}), (True, {"replay_forced": "true"})])
def test_a_replay_is_the_dead_letter_as_it_came_and_whose_it_is(
    topic: Topic, forced: bool, added: dict[str, str]
) -> None:
    dead_letter = a_dead_letter()
    topic.publish(dead_letter, forced=forced)

    (request,) = topic.requests
    assert request.topic == TOPIC
    (message,) = request.messages
    assert (message.data, message.ordering_key) == (dead_letter.data, dead_letter.ordering_key)
    assert dict(message.attributes) == dict(dead_letter.attributes) | {"replay_of": dead_letter.identity} | added


def test_what_could_not_be_confirmed_is_published_again_and_the_rest_is_not(topic: Topic) -> None:
    one, two = a_dead_letter(a_change(1), ordering_key="planes/1"), a_dead_letter(a_change(2), ordering_key="planes/2")
    topic.failing = {1: grpc.StatusCode.UNAVAILABLE}
    topic.publish(one, two)
    assert [message.ordering_key for message in topic.messages] == ["planes/1", "planes/2", "planes/1"]


def test_a_topic_that_is_not_there_reports_so(topic: Topic) -> None:
    topic.failing = {1: grpc.StatusCode.NOT_FOUND}
    with pytest.raises(MisconfiguredError, match="does not exist"):
        topic.publish(a_dead_letter())


def test_a_topic_that_stays_unavailable_is_given_up(topic: Topic) -> None:
    topic.failing = dict.fromkeys(range(1, 1_000), grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(TransientError):
        PubsubReplayPublisher(topic.channel, TOPIC, Stop(), timedelta(0)).publish([a_dead_letter()], [])


def test_a_request_stays_below_the_limits_of_pubsub(topic: Topic) -> None:
    large = [junk(bytes([n]) * 4_000_000) for n in range(5)]
    topic.publish(*large, *(junk(str(n).encode()) for n in range(2_500)))
    assert all(request.ByteSize() < 9_100_000 and len(request.messages) <= 1_000 for request in topic.requests)
    assert len(topic.messages) == 2_505


keyed = st.lists(st.tuples(st.sampled_from(["", "a/1", "a/2", "b/1"]), st.integers(0, 9)), max_size=30)


@given(keyed, st.dictionaries(st.integers(1, 5), st.just(grpc.StatusCode.UNAVAILABLE), max_size=2))
def test_keys_keep_their_order_in_failures(sent: list[tuple[str, int]], failing: dict[int, grpc.StatusCode]) -> None:
    topic = Topic()
    topic.failing = failing
    topic.publish(*(junk(str(n).encode(), ordering_key=key) for key, n in sent))

    assert all(len({message.ordering_key for message in request.messages}) == 1 for request in topic.requests)
    for key in {key for key, _n in sent}:
        wanted = [str(n).encode() for each, n in sent if each == key]
        requests = [
            [m.data for m in request.messages] for request in topic.requests if request.messages[0].ordering_key == key
        ]
        assert requests[-1] == wanted
        assert all(each == wanted for each in requests)
