"""Dead letters on the wire: what was kept can be read back as it came, whatever Pub/Sub's limits say."""

from typing import Any

import grpc
import pytest

from shared.contracts.dead_letter import DeadLetter, from_message
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.dead_letters import DeadLetterPublisher, dead_letter_message
from shared.pubsub.stubs import PublishResponse
from shared.runtime.stop import Stop
from tests.fakes.pubsub_channel import FakeChannel, FakeRpcError

TOPIC = "projects/p/topics/dead"


def a_dead_letter(data: bytes = b"{garbage", **fields: Any) -> DeadLetter:
    given: dict[str, Any] = {"attributes": {"table": "planes"}, "ordering_key": "planes/3", "detail": "line 1"} | fields
    return DeadLetter(
        data=data,
        reason=Reason.UNDECODABLE,
        failed_at=Nanoseconds(1_700_000_000_000_000_000),
        failed_in="a test",
        **given,
    )


def accepting(_name: str, request: Any) -> Any:
    return PublishResponse(message_ids=["1"] * len(request.messages))


def publisher(channel: Any, stop: Stop | None = None) -> DeadLetterPublisher:
    return DeadLetterPublisher(channel, TOPIC, stop or Stop())


def test_a_dead_letter_comes_back_as_it_was() -> None:
    message = dead_letter_message(a_dead_letter())

    assert from_message(message.data, dict(message.attributes)) == a_dead_letter()
    assert message.ordering_key == ""


def test_dead_letters_share_requests_within_the_limits() -> None:
    channel = FakeChannel(accepting)
    publisher(channel).keep([a_dead_letter(b"x" * 3_000_000)] * 4 + [a_dead_letter()] * 1_500)

    requests = [request for _name, request in channel.calls]

    assert sum(len(request.messages) for request in requests) == 1_504
    assert max(request.ByteSize() for request in requests) < 10_000_000
    assert max(len(request.messages) for request in requests) <= 1_000


def test_no_dead_letters_are_no_request() -> None:
    channel = FakeChannel(accepting)
    publisher(channel).keep([])

    assert channel.calls == []


def test_a_message_at_pubsubs_own_limit_is_kept_flagged_with_its_size() -> None:
    message = dead_letter_message(a_dead_letter(b"x" * 10_000_000))
    dead_letter = from_message(message.data, dict(message.attributes))

    assert (dead_letter.data, dead_letter.payload_bytes) == (b"", 10_000_000)
    assert dead_letter.identity == a_dead_letter(b"x" * 10_000_000).identity


def test_what_pubsub_added_to_a_message_of_a_topic_with_a_schema_is_left_out_for_it_takes_none_of_that() -> None:
    theirs = {"table": "planes", "googclient_schemarevisionid": "1a2b", "googclient_schemaencoding": "JSON"}
    message = dead_letter_message(a_dead_letter(attributes=theirs))

    assert [name for name in message.attributes if name.startswith("goog")] == []
    assert from_message(message.data, dict(message.attributes)).attributes == {"table": "planes"}


def test_a_message_with_as_many_attributes_as_pubsub_takes_is_kept() -> None:
    dead_letter = a_dead_letter(attributes={f"name{number}": "value" for number in range(100)})
    message = dead_letter_message(dead_letter)

    assert len(message.attributes) == 100
    assert from_message(message.data, dict(message.attributes)).identity == dead_letter.identity


@pytest.mark.parametrize("others", [1, 100])
def test_what_an_original_reports_in_attributes_like_ours_is_not_said_of_it(others: int) -> None:
    old = {"dead_letter_identity": "old", "dead_letter_reason": "old", "dead_letter_table": "old"}
    dead_letter = a_dead_letter(attributes=old | {f"name{number}": "value" for number in range(others)})
    message = dead_letter_message(dead_letter)
    read = from_message(message.data, dict(message.attributes))

    assert (read.identity, read.reason, read.table) == (dead_letter.identity, Reason.UNDECODABLE, "")


def test_keeping_goes_on_until_pubsub_is_back() -> None:
    failures = [grpc.StatusCode.UNAVAILABLE]

    def answer(name: str, request: Any) -> Any:
        if failures:
            raise FakeRpcError(failures.pop())
        return accepting(name, request)

    channel = FakeChannel(answer)
    publisher(channel).keep([a_dead_letter()])

    assert [request for _name, request in channel.calls] == [channel.calls[0][1]] * 2


@pytest.mark.parametrize(
    ("code", "error"),
    [(grpc.StatusCode.NOT_FOUND, MisconfiguredError), (grpc.StatusCode.UNAVAILABLE, TransientError)],
)
def test_what_is_not_kept_raises(code: grpc.StatusCode, error: type[Exception]) -> None:
    def answer(_name: str, _request: Any) -> Any:
        raise FakeRpcError(code)

    stop = Stop()
    stop.request()

    with pytest.raises(error, match=TOPIC):
        publisher(FakeChannel(answer), stop).keep([a_dead_letter()])
