"""Leases on stubs: requests within Pub/Sub's limits, sent again one by one, and a keeper that nothing stops early."""

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import grpc
import pytest

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.leases import PubsubLeases, ack_deadline_of
from shared.pubsub.stubs import Subscription
from shared.runtime.stop import Stop
from tests.fakes.pubsub_channel import FakeChannel, FakeRpcError

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SHORT = timedelta(milliseconds=30)
RETRY_BUDGET = 10.0


class PubsubInMemory:
    """Answers, fails as told, and says when the next extension has arrived."""

    def __init__(self) -> None:
        self.failures: list[grpc.StatusCode] = []
        self.extensions = threading.Semaphore(0)
        self.channel = FakeChannel(self.answer)

    def answer(self, name: str, request: Any) -> Any:
        if name == "ModifyAckDeadline" and request.ack_deadline_seconds:
            self.extensions.release()
        if self.failures:
            raise FakeRpcError(self.failures.pop(0))
        return None

    def leases(self, ack_deadline: timedelta = SHORT, stop: Stop | None = None) -> PubsubLeases:
        channel: Any = self.channel
        return PubsubLeases(channel, "projects/p/subscriptions/s", ack_deadline, stop or Stop())

    def wait_for_extensions(self, count: int) -> None:
        for _ in range(count):
            assert self.extensions.acquire(timeout=RETRY_BUDGET)

    def called(self, name: str) -> list[Any]:
        return [request for called, request in list(self.channel.calls) if called == name]


@pytest.fixture
def pubsub() -> PubsubInMemory:
    return PubsubInMemory()


def test_many_long_ack_ids_are_cut_into_requests_that_pubsub_takes(pubsub: PubsubInMemory) -> None:
    ack_ids = [f"{number:0200d}" for number in range(10_000)]
    pubsub.leases().ack(ack_ids)

    requests = pubsub.called("Acknowledge")

    assert [one for request in requests for one in request.ack_ids] == ack_ids
    assert max(request.ByteSize() for request in requests) <= 512 * 1024
    assert len(requests) == 5


def test_only_what_failed_is_sent_again(pubsub: PubsubInMemory) -> None:
    pubsub.failures = [UNAVAILABLE]
    leases = pubsub.leases()
    leases.ack([f"{number:0200d}" for number in range(5_000)])

    sent = Counter(request.ack_ids[0] for request in pubsub.called("Acknowledge"))

    assert sorted(sent.values()) == [1, 1, 2]
    assert leases.acked == 5_000


def test_a_refusal_is_raised_and_nothing_counted(pubsub: PubsubInMemory) -> None:
    pubsub.failures = [grpc.StatusCode.NOT_FOUND]
    leases = pubsub.leases()

    with pytest.raises(MisconfiguredError, match="projects/p/subscriptions/s"):
        leases.ack(["a"])
    assert leases.acked == 0


def test_a_stop_ends_the_retries(pubsub: PubsubInMemory) -> None:
    stop = Stop()
    stop.request()
    pubsub.failures = [UNAVAILABLE] * 100

    with pytest.raises(TransientError):
        pubsub.leases(stop=stop).release(["a"])
    assert len(pubsub.called("ModifyAckDeadline")) == 1


def test_leases_are_kept_until_an_ack_or_a_putting_off_has_succeeded(pubsub: PubsubInMemory) -> None:
    unavailable = True

    def answer(name: str, request: Any) -> None:
        extension = name == "ModifyAckDeadline" and request.ack_deadline_seconds == 1
        if extension:
            pubsub.extensions.release()
        elif unavailable:
            raise FakeRpcError(UNAVAILABLE)

    pubsub.channel.answer = answer
    channel: Any = pubsub.channel
    leases = PubsubLeases(channel, "s", SHORT, Stop(), budget=timedelta(0))
    with leases.keeping(["a", "b", "c"]):
        with pytest.raises(TransientError):
            leases.ack(["a"])
        with pytest.raises(TransientError):
            leases.defer(["b"], timedelta(seconds=60))
        before = len(pubsub.channel.calls)
        pubsub.extensions = threading.Semaphore(0)
        pubsub.wait_for_extensions(3)
        assert set(pubsub.channel.calls[before + 2][1].ack_ids) == {"a", "b", "c"}
        unavailable = False
        leases.ack(["a"])
        leases.defer(["b"], timedelta(seconds=60))
        settled = len(pubsub.channel.calls)
        pubsub.extensions = threading.Semaphore(0)
        pubsub.wait_for_extensions(3)

    assert all(list(request.ack_ids) == ["c"] for _name, request in pubsub.channel.calls[settled + 1 :])
    assert (leases.acked, leases.deferred_count) == (1, 1)


def test_putting_off_asks_for_no_more_than_pubsub_takes(pubsub: PubsubInMemory) -> None:
    leases = pubsub.leases()
    leases.defer(["a"], timedelta(hours=2))
    leases.release(["b", "c"])

    assert [request.ack_deadline_seconds for request in pubsub.called("ModifyAckDeadline")] == [600, 0]
    assert (leases.deferred_count, leases.released) == (1, 2)


def test_the_first_extension_goes_out_before_the_block_begins(pubsub: PubsubInMemory) -> None:
    with pubsub.leases(timedelta(seconds=60)).keeping(["a", "b"]):
        (request,) = pubsub.called("ModifyAckDeadline")

    assert (list(request.ack_ids), request.ack_deadline_seconds) == (["a", "b"], 60)


def test_the_keeper_goes_on_whatever_happens_to_single_extensions(pubsub: PubsubInMemory) -> None:
    pubsub.failures = [UNAVAILABLE, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DATA_LOSS, UNAVAILABLE]
    with pubsub.leases().keeping(["a"]):
        pubsub.wait_for_extensions(8)

    assert pubsub.failures == []


def test_the_keeper_has_ended_when_the_block_has(pubsub: PubsubInMemory) -> None:
    def fail_meanwhile() -> None:
        with pubsub.leases().keeping(["a"]):
            pubsub.wait_for_extensions(2)
            raise ValueError("the work failed")

    before = threading.active_count()
    with pytest.raises(ValueError, match="the work failed"):
        fail_meanwhile()
    calls = len(pubsub.channel.calls)

    assert threading.active_count() == before
    assert len(pubsub.channel.calls) == calls


def test_what_is_acked_released_or_deferred_is_extended_no_more(pubsub: PubsubInMemory) -> None:
    leases = pubsub.leases()
    with leases.keeping(["acked", "back", "later", "kept"]):
        leases.ack(["acked"])
        leases.release(["back"])
        leases.defer(["later"], timedelta(seconds=60))
        settled = len(pubsub.channel.calls)
        pubsub.wait_for_extensions(4)
    extended = [list(request.ack_ids) for name, request in pubsub.channel.calls[settled:]]

    assert extended[1:]
    assert all(ids == ["kept"] for ids in extended[1:])  # the ack does not wait for an extension under way


def test_a_keeper_of_leases_that_are_taken_one_by_one_keeps_them_all(pubsub: PubsubInMemory) -> None:
    with pubsub.leases().keeper() as keeper:
        keeper.add(["a"])
        pubsub.wait_for_extensions(1)
        keeper.add(["b"])
        pubsub.wait_for_extensions(2)

    assert list(pubsub.called("ModifyAckDeadline")[-1].ack_ids) == ["a", "b"]


def test_a_message_is_not_released_while_an_extension_of_it_is_under_way(pubsub: PubsubInMemory) -> None:
    order: list[str] = []
    under_way, go_on = threading.Event(), threading.Event()

    def answer(_name: str, request: Any) -> None:
        if request.ack_deadline_seconds == 0:
            order.append("given back")
            return
        under_way.set()
        assert go_on.wait(RETRY_BUDGET)
        order.append("extended")

    pubsub.channel.answer = answer
    leases = pubsub.leases()
    with leases.keeper(["a"]):
        assert under_way.wait(RETRY_BUDGET)
        giving_back = threading.Thread(target=leases.release, args=(["a"],))
        giving_back.start()
        giving_back.join(0.05)
        still_waiting = giving_back.is_alive()
        go_on.set()
        giving_back.join()

    assert still_waiting
    assert order == ["extended", "given back"]


def test_the_subscription_decides_how_long_it_leases() -> None:
    channel: Any = FakeChannel(lambda _name, _request: Subscription(ack_deadline_seconds=60))
    assert ack_deadline_of(channel, "projects/p/subscriptions/s") == timedelta(seconds=60)
