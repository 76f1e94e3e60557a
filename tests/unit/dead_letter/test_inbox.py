"""The dead-letter subscription through a channel in memory: how much is asked for, and what becomes of leases."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest

from deploy.local.platform.processes import wait_until
from services.dead_letter.adapters.inbox import PubsubInbox, open_inbox
from shared.contracts.errors import TransientError
from shared.pubsub.leases import Keeper, PubsubLeases
from shared.pubsub.stubs import PubsubMessage, PullResponse, ReceivedMessage, Subscription
from shared.runtime.stop import Stop
from tests.fakes.pubsub_channel import FakeChannel, FakeRpcError

NOW = timedelta(seconds=5)
SUBSCRIPTION = "projects/p/subscriptions/s"
MINUTE = timedelta(minutes=1)


def an_answer(count: int, size: int = 10, first: int = 0) -> Any:
    """Return so many messages of about this size."""
    return PullResponse(
        received_messages=[
            ReceivedMessage(
                ack_id=f"a{number}",
                message=PubsubMessage(
                    message_id=str(number), data=b"x" * size, attributes={"a": "b"}, ordering_key="planes/3"
                ),
            )
            for number in range(first, first + count)
        ]
    )


class Answers:
    """A channel that answers pulls with what it is told, one after the other, and everything else with success."""

    def __init__(self, *pulls: Any) -> None:
        self.pulls = list(pulls)
        self.asked: list[int] = []
        self.deadlines: list[tuple[list[str], int]] = []
        self.acked: list[str] = []
        self.changed = threading.Event()
        self.failures = 0
        self.unavailable = False

    def __call__(self, name: str, request: Any) -> Any:
        match name:
            case "Pull":
                self.asked.append(request.max_messages)
                answer = self.pulls.pop(0)
                if isinstance(answer, grpc.RpcError):
                    raise answer
                return answer
            case "ModifyAckDeadline":
                if self.failures:
                    self.failures -= 1
                    raise FakeRpcError(grpc.StatusCode.UNAVAILABLE)
                self.deadlines.append((list(request.ack_ids), request.ack_deadline_seconds))
            case "Acknowledge":
                self.acked += request.ack_ids
            case "GetSubscription":
                if self.unavailable:
                    raise FakeRpcError(grpc.StatusCode.DEADLINE_EXCEEDED)
                return Subscription(ack_deadline_seconds=60)
            case _:
                raise AssertionError(name)
        return None


def an_inbox(answers: Answers, messages: int = 500) -> PubsubInbox:
    """Return one whose leases nothing extends."""
    channel: Any = FakeChannel(answers)
    leases = PubsubLeases(channel, SUBSCRIPTION, MINUTE, Stop(), budget=timedelta(0))
    keeper = Keeper(leases.extend, MINUTE)
    return PubsubInbox(channel, SUBSCRIPTION, leases, keeper, messages=messages, outstanding_bytes=32_000_000)


@contextmanager
def opened(answers: Answers, ack_deadline: timedelta = timedelta(milliseconds=30)) -> Iterator[PubsubInbox]:
    channel: Any = FakeChannel(answers)
    leases = PubsubLeases(channel, SUBSCRIPTION, ack_deadline, Stop(), budget=timedelta(0))
    with open_inbox(channel, SUBSCRIPTION, leases, messages=500, outstanding_bytes=32_000_000) as inbox:
        yield inbox


def test_a_message_comes_as_it_is() -> None:
    (received,) = an_inbox(Answers(an_answer(1))).pull(NOW)

    assert (received.data, received.attributes, received.ordering_key) == (b"x" * 10, {"a": "b"}, "planes/3")
    assert (received.message_id, received.ack_id) == ("0", "a0")


def test_small_dead_letters_are_asked_for_in_ever_larger_numbers_up_to_the_limit() -> None:
    answers = Answers(*[an_answer(10)] * 6)
    inbox = an_inbox(answers, messages=100)

    for _ in range(6):
        inbox.pull(NOW)

    assert answers.asked == [10, 20, 40, 80, 100, 100]


def test_large_dead_letters_are_asked_for_in_small_numbers() -> None:
    answers = Answers(an_answer(4, size=8_000_000), an_answer(1, size=1_000), an_answer(1, size=1_000))
    inbox = an_inbox(answers)

    for _ in range(3):
        inbox.pull(NOW)

    assert answers.asked == [10, 1, 2]


def test_after_an_answer_that_was_too_large_no_more_is_asked_for_than_always_fits() -> None:
    answers = Answers(FakeRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED), an_answer(1))
    inbox = an_inbox(answers)

    with pytest.raises(TransientError):
        inbox.pull(NOW)
    inbox.pull(NOW)

    assert answers.asked == [10, 3]


def test_a_pull_that_ends_by_its_own_deadline_brought_nothing() -> None:
    assert an_inbox(Answers(FakeRpcError(grpc.StatusCode.DEADLINE_EXCEEDED))).pull(NOW) == ()


def test_what_is_held_is_extended_also_when_that_fails_once_and_released_in_the_end() -> None:
    answers = Answers(an_answer(2))
    answers.failures = 1

    with opened(answers) as inbox:
        inbox.pull(NOW)
        wait_until(lambda: len(answers.deadlines) > 3, "the leases", timeout=timedelta(seconds=20))

    assert answers.deadlines[0] == (["a0", "a1"], 1)
    assert answers.deadlines[-1] == (["a0", "a1"], 0)


def test_what_is_acked_is_extended_no_more_and_not_released() -> None:
    answers = Answers(an_answer(3))

    with opened(answers) as inbox:
        inbox.pull(NOW)
        inbox.ack(["a0", "a1"])
        sent = len(answers.deadlines) + 1  # one may have been under way
        wait_until(lambda: len(answers.deadlines) > sent, "the leases", timeout=timedelta(seconds=20))

    assert answers.acked == ["a0", "a1"]
    assert {tuple(ack_ids) for ack_ids, _seconds in answers.deadlines[sent:]} == {("a2",)}


def test_what_cannot_be_released_in_the_end_is_left_to_its_lease() -> None:
    answers = Answers(an_answer(1))

    with opened(answers, MINUTE) as inbox:
        inbox.pull(NOW)
        answers.failures = 1

    assert (answers.failures, answers.deadlines) == (0, [])


def test_after_a_silence_nothing_is_pulled_from_a_pubsub_that_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(an_answer(1))
    inbox = an_inbox(answers)
    monkeypatch.setattr("services.dead_letter.adapters.inbox._SILENCE", 0.0)
    answers.unavailable = True
    for _ in range(2):
        with pytest.raises(TransientError, match="DEADLINE_EXCEEDED"):
            inbox.pull(NOW)
    assert answers.asked == []

    answers.unavailable = False
    assert len(inbox.pull(NOW)) == 1
