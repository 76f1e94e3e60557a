"""Pulling: short when quiet, long when behind, and every lease taken is handed on or given back."""

from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import grpc
import pytest

from services.cdc_consumer.adapters.stream.message_data import unpack
from services.cdc_consumer.adapters.stream.pulling import Puller, PullLimits, ack_ids, to_portions
from services.cdc_consumer.core.stream.messages import MESSAGE_SCHEMA
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.leases import PubsubLeases
from shared.pubsub.stubs import PullResponse
from shared.runtime.stop import Stop
from tests.fakes.pubsub_channel import FakeChannel, FakeRpcError

LINGER = timedelta(milliseconds=50)
LONGEST = timedelta(seconds=2)


class Backlog:
    """A subscription with a backlog, on a clock that a pull and a wait move."""

    def __init__(self, messages: int, per_pull: int = 100, size: int = 10) -> None:
        self.messages = messages
        self.per_pull = per_pull
        self.size = size
        self.failures: list[grpc.StatusCode | None] = []
        self.now = 0.0
        self.waits: list[float] = []
        self.arriving: list[int] = []
        self.leased: list[str] = []
        self.released: list[str] = []
        self.channel = FakeChannel(self.answer)
        channel: Any = self.channel
        leases = PubsubLeases(channel, "s", timedelta(seconds=60), Stop())
        self.puller = Puller(channel, "s", leases, clock=lambda: self.now, wait=self.wait)

    def answer(self, name: str, request: Any) -> Any:
        if name != "Pull":
            assert request.ack_deadline_seconds == 0
            self.released += request.ack_ids
            return None
        self.now += 0.003
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise FakeRpcError(failure)
        count = min(self.messages, self.per_pull, request.max_messages)
        self.messages -= count
        ids = [f"a{len(self.leased) + number}" for number in range(count)]
        self.leased += ids
        return PullResponse(received_messages=[{"ack_id": one, "message": {"data": b"x" * self.size}} for one in ids])

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        if self.arriving:
            self.messages += self.arriving.pop(0)

    def collect(self, messages: int = 2_000, size: int = 64_000_000) -> Iterator[Any]:
        return self.puller.collect(PullLimits(messages=messages, bytes=size, linger=LINGER, longest=LONGEST))

    def pulls(self) -> int:
        return sum(name == "Pull" for name, _request in self.channel.calls)


def taken(responses: Iterator[Any]) -> list[str]:
    return [ack_id for response in responses for ack_id in ack_ids(response)]


def test_when_quiet_it_pulls_at_once_and_once_more_after_the_linger() -> None:
    backlog = Backlog(messages=1)
    backlog.arriving = [2]

    assert len(taken(backlog.collect())) == 3
    assert backlog.waits == [pytest.approx(LINGER.total_seconds(), abs=0.01)]
    assert backlog.pulls() == 2


def test_when_behind_several_pulls_are_in_flight_and_nothing_waits() -> None:
    backlog = Backlog(messages=10_000)

    assert len(taken(backlog.collect())) == 2_000
    assert backlog.waits == []
    assert backlog.messages == 8_000


def test_the_limit_of_messages_is_kept_whatever_is_in_flight() -> None:
    for limit in (1, 7, 99, 101, 1_234):
        backlog = Backlog(messages=10_000)

        assert len(taken(backlog.collect(messages=limit))) == limit
        assert len(backlog.leased) == limit


def test_no_room_is_no_pull() -> None:
    backlog = Backlog(messages=10)

    assert taken(backlog.collect(messages=0)) == []
    assert backlog.pulls() == 0


def test_the_limit_of_bytes_is_kept_while_messages_are_alike() -> None:
    backlog = Backlog(messages=10_000, size=1_000)
    got = taken(backlog.collect(messages=10_000, size=500_000))

    assert 480 <= len(got) <= 500
    assert got == backlog.leased


def test_pulls_ask_for_as_many_messages_as_fit_by_the_size_of_the_latest() -> None:
    backlog = Backlog(messages=100, per_pull=1_000, size=1_000_000)
    for _micro_batch in range(2):
        got = taken(backlog.collect(messages=10_000, size=30_000_000))

        assert 20 <= len(got) <= 30, "no more is leased, and held in memory, than may be taken"
    assert len(backlog.leased) <= 60


def test_pulls_of_small_messages_ask_for_more_and_more() -> None:
    backlog = Backlog(messages=100_000, per_pull=1_000, size=10)

    assert len(taken(backlog.collect(messages=10_000))) == 10_000
    assert backlog.pulls() < 30


def test_reading_ends_while_there_is_still_more() -> None:
    backlog = Backlog(messages=10_000_000, per_pull=10)
    got = taken(backlog.collect(messages=10_000_000))

    assert got == backlog.leased
    assert backlog.now < LONGEST.total_seconds() + 0.1


def test_a_trickle_does_not_hold_the_first_message_up() -> None:
    backlog = Backlog(messages=1_000, per_pull=1)
    got = taken(backlog.collect())

    assert got == backlog.leased
    assert backlog.now < 3 * LINGER.total_seconds()


def test_what_is_in_flight_when_the_caller_breaks_off_is_awaited_and_released() -> None:
    backlog = Backlog(messages=10_000)
    reading = backlog.collect()
    handed_on = [one for _ in range(4) for one in ack_ids(next(reading))]
    reading.close()  # type: ignore[attr-defined]

    assert all(call.awaited for call in backlog.channel.in_flight)
    assert len(backlog.leased) > len(handed_on)
    assert sorted(handed_on + backlog.released) == sorted(backlog.leased)


def test_if_pubsub_becomes_unavailable_what_was_read_is_handed_on() -> None:
    backlog = Backlog(messages=10_000)
    backlog.failures = [None, None, grpc.StatusCode.UNAVAILABLE]
    got = taken(backlog.collect())

    assert got == backlog.leased
    assert len(got) >= 50
    assert backlog.released == []


def test_a_refusal_is_raised_and_releases_what_is_in_flight() -> None:
    backlog = Backlog(messages=10_000)
    backlog.failures = [None, None, grpc.StatusCode.NOT_FOUND]
    got: list[str] = []

    def read() -> None:
        for response in backlog.collect():
            got.extend(ack_ids(response))

    with pytest.raises(MisconfiguredError):
        read()
    assert sorted(got + backlog.released) == sorted(backlog.leased)


@pytest.mark.parametrize(
    ("failure", "error"),
    [(grpc.StatusCode.UNAVAILABLE, TransientError), (grpc.StatusCode.NOT_FOUND, MisconfiguredError)],
)
def test_waiting_for_the_first_message_reports_what_went_wrong(
    failure: grpc.StatusCode, error: type[Exception]
) -> None:
    backlog = Backlog(messages=0)
    backlog.failures = [failure]

    with pytest.raises(error):
        backlog.puller.first(timedelta(seconds=8), 2)


def test_a_wait_that_ran_out_found_nothing() -> None:
    backlog = Backlog(messages=0)
    backlog.failures = [grpc.StatusCode.DEADLINE_EXCEEDED]

    assert backlog.puller.first(timedelta(seconds=8), 2) is None
    assert backlog.puller.first(timedelta(seconds=8), 2) is None
    assert backlog.puller.now(2) is None


class PendingCall(Future[Any]):
    """A pull that Pub/Sub has not answered yet."""

    cancels = 0

    def answer(self, *ids: str) -> None:
        self.set_result(PullResponse(received_messages=[{"ack_id": one, "message": {}} for one in ids]))

    def cancel(self) -> bool:
        self.cancels += 1
        return True


class WaitingPubsub:
    """Leaves every pull without an answer until told, and remembers what was given back."""

    def __init__(self) -> None:
        self.pulls: list[PendingCall] = []
        self.timeouts: list[float] = []
        self.released: list[str] = []

    def unary_unary(self, path: str, **_serializers: Any) -> Any:
        return PendingStub(self, path.rpartition("/")[2])


class PendingStub:
    def __init__(self, pubsub: WaitingPubsub, name: str) -> None:
        self.pubsub, self.name = pubsub, name

    def future(self, request: Any, *, timeout: float, **_options: Any) -> PendingCall:
        call = PendingCall()
        if self.name == "Pull":
            self.pubsub.pulls.append(call)
            self.pubsub.timeouts.append(timeout)
        else:
            self.pubsub.released += request.ack_ids
            call.answer()
        return call


@pytest.fixture
def waiting() -> WaitingPubsub:
    return WaitingPubsub()


@pytest.fixture
def waiting_puller(waiting: WaitingPubsub) -> Puller:
    channel: Any = waiting
    return Puller(channel, "s", PubsubLeases(channel, "s", timedelta(seconds=60), Stop()))


SHORT = timedelta(milliseconds=20)


def test_a_pull_that_waits_is_never_cut_off_but_kept_for_the_next_wait(
    waiting: WaitingPubsub, waiting_puller: Puller
) -> None:
    for _ in range(3):
        assert waiting_puller.first(SHORT, 2) is None
    (call,) = waiting.pulls
    call.answer("a", "b")

    assert ack_ids(waiting_puller.first(SHORT, 2)) == ["a", "b"]
    assert waiting.timeouts[0] >= 300
    assert waiting_puller.first(SHORT, 2) is None
    assert len(waiting.pulls) == 2


def test_a_stop_ends_the_wait_and_not_the_pull(waiting: WaitingPubsub, waiting_puller: Puller) -> None:
    assert waiting_puller.first(timedelta(minutes=10), 2, enough=lambda: True) is None
    assert waiting.pulls[0].cancels == 0


def test_at_the_end_what_the_pull_brings_is_released_and_else_it_is_cancelled(
    waiting: WaitingPubsub, waiting_puller: Puller
) -> None:
    waiting_puller.wait_no_more(SHORT)
    assert waiting.pulls == []

    waiting_puller.first(SHORT, 2)
    waiting.pulls[0].answer("late")
    waiting_puller.wait_no_more(SHORT)
    assert (waiting.released, waiting.pulls[0].cancels) == (["late"], 0)

    waiting_puller.first(SHORT, 2)
    waiting_puller.wait_no_more(SHORT)
    assert (waiting.released, waiting.pulls[1].cancels) == (["late"], 1)


def test_a_row_is_the_message_with_its_lease() -> None:
    response = PullResponse(
        received_messages=[
            {
                "ack_id": "lease",
                "delivery_attempt": 3,
                "message": {
                    "data": b"\x00\xff",
                    "attributes": {"table": "planes"},
                    "message_id": "42",
                    "ordering_key": "planes/3",
                    "publish_time": {"seconds": 1_795_262_857, "nanos": 758_123_999},
                },
            },
            {"ack_id": "bare", "message": {}},
            {"ack_id": "unordered", "message": {"attributes": {"bucket": "planes/4"}}},
        ]
    )
    messages, _damaged = unpack([to_portions(response, (0,))])
    full, bare, unordered = messages.to_pylist()

    assert messages.schema.equals(MESSAGE_SCHEMA)
    assert full["publish_time"].isoformat() == "2026-11-21T12:07:37.758123+00:00"
    assert (full["ack_id"], full["message_id"], full["ordering_key"]) == ("lease", "42", "planes/3")
    assert (full["data"], full["attributes"], full["delivery_attempt"]) == (b"\x00\xff", [("table", "planes")], 3)
    assert (bare["ack_id"], bare["data"], bare["attributes"]) == ("bare", b"", [])
    assert (bare["ordering_key"], unordered["ordering_key"]) == ("", "planes/4")  # what routes messages to tasks
