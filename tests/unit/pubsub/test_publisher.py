"""The publisher: a future says what became of its changes, and nothing of a key overtakes what failed before it."""

import asyncio
import random
import time
import tracemalloc
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import grpc
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import from_message
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.safe_age import MAX_OUTSTANDING_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.pubsub.dead_letters import AsyncDeadLetterPublisher, DeadLettersRefusedError
from shared.pubsub.outage import NOT_READY_AFTER
from shared.pubsub.packer import PackerLimits
from shared.pubsub.publisher import BatchPublisher, PublisherHooks, PublisherOptions
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header
from tests.fakes.pubsub_channel import FakeAsyncChannel, SlowChannel
from tests.fakes.virtual_time import run_in_virtual_time

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class World:
    """A publisher on a Pub/Sub in memory."""

    def __init__(self, channel: Any = None, **options: Any) -> None:
        self.stop = Stop()
        usual: Any = FakeAsyncChannel()
        self.channel: Any = usual if channel is None else channel
        self.dead_letters = FakeAsyncChannel()
        dead_letters: Any = self.dead_letters  # duck-typed: a stub is all that is asked of a channel
        monotonic = options.get("monotonic", time.monotonic)
        waits = options.pop("waits", False)
        topic = "projects/p/topics/dead"
        keeper = AsyncDeadLetterPublisher(dead_letters, topic, self.stop, monotonic=monotonic, waits=waits)
        hooks = {name: options.pop(name) for name in ("clock", "monotonic", "confirmed", "took") if name in options}
        self.publisher = BatchPublisher(
            self.channel,
            "projects/p/topics/t",
            keeper,
            self.stop,
            PublisherOptions(failed_in="a test", **options),
            PublisherHooks(**hooks),
        )

    async def publish(self, key: str, *identities: int) -> "asyncio.Future[None]":
        """Hand over changes of these rows under one ordering key."""
        return await self.publisher.publish(a_header(), [(key, a_change(identity)) for identity in identities])

    def confirmed(self) -> list[str]:
        """Return the key of every change that Pub/Sub has, in order."""
        messages = [message for request in self.channel.confirmed for message in request.messages]
        return [bytes(key).decode() for message in messages for key in decode_batch(message.data).keys]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_future_resolves_when_all_its_changes_are_confirmed_and_not_before() -> None:
    confirmed: list[int] = []
    world = World(confirmed=confirmed.append)
    world.channel.open.clear()
    async with world.publisher:
        future = await world.publisher.publish(a_header(), [("planes/0", a_change(1)), ("planes/1", a_change(2))])
        await turns()
        assert len(world.channel.requests) == 2
        assert not future.done()
        world.channel.open.set()
        await future
        assert world.publisher.outstanding_bytes == 0
        assert confirmed == [1, 1]


async def test_each_confirmed_message_of_the_stream_reports_how_old_its_newest_change_is() -> None:
    took: list[tuple[str, float]] = []
    world = World(took=lambda table, seconds: took.append((table, seconds)), clock=CommitClock())
    snapshot = replace(a_header("airports"), origin="snapshot")
    async with world.publisher:
        await (await world.publish("planes/0", 1))
        await (await world.publisher.publish(snapshot, [("airports/0", a_change(1))]))
        await (await world.publisher.publish(a_header("airports"), ()))

    assert [table for table, _seconds in took] == ["planes"]
    assert all(seconds >= 0 for _table, seconds in took)


async def test_a_message_reports_in_its_attributes_what_it_holds() -> None:
    world = World()
    async with world.publisher:
        await (await world.publish("planes/0", 1))
    (message,) = world.channel.confirmed[0].messages

    assert dict(message.attributes) == {
        "source": a_header().source,
        "table": "planes",
        "change_count": "1",
        "format": "1",
        "first_commit_timestamp": a_change().commit_timestamp,
        "last_commit_timestamp": a_change().commit_timestamp,
    }
    assert message.ordering_key == "planes/0"


async def test_first_and_last_commit_are_by_time_whatever_their_number_of_digits() -> None:
    world = World()
    times = [
        "2026-01-01T00:00:01.5Z",
        "2026-01-01T00:00:01Z",
        "2026-01-01T00:00:01.49999Z",
        "2026-01-01T02:00:01.6+02:00",
    ]
    changes = [("k", replace(a_change(number), commit_timestamp=time)) for number, time in enumerate(times)]
    async with world.publisher:
        await (await world.publisher.publish(a_header(), changes))
    attributes = world.channel.confirmed[0].messages[0].attributes

    assert attributes["first_commit_timestamp"] == times[1]
    assert attributes["last_commit_timestamp"] == times[3]


async def test_what_failed_transiently_goes_again_before_anything_later_of_its_key() -> None:
    world = World(limits=PackerLimits(changes_per_message=1, messages_per_request=1))
    world.channel.failures = [UNAVAILABLE, UNAVAILABLE]
    async with world.publisher:
        futures = [await world.publish("k", number) for number in range(5)]
        await asyncio.gather(*futures)

    assert world.channel.requests[0] == world.channel.requests[1] == world.channel.requests[2]
    assert world.confirmed() == [a_change(number).key for number in range(5)]


async def test_publishing_waits_for_room_and_goes_on_in_the_order_in_which_it_was_asked() -> None:
    world = World(outstanding_bytes=1)
    world.channel.open.clear()
    async with world.publisher:
        tasks = [asyncio.create_task(world.publish("k", number)) for number in range(4)]
        await turns()
        assert [task.done() for task in tasks] == [True, False, False, False]
        world.channel.open.set()
        await asyncio.gather(*[await task for task in tasks])

    assert world.confirmed() == [a_change(number).key for number in range(4)]


async def test_a_key_rests_after_a_request_and_what_comes_meanwhile_is_one_message() -> None:
    world = World(rest=timedelta(hours=1))
    async with world.publisher:
        await (await world.publish("k", 1))
        resting = [await world.publish("k", number) for number in (2, 3)]
        await (await world.publish("other", 4))
        await turns()
        assert not any(future.done() for future in resting)
    await asyncio.gather(*resting)  # who ends does not rest

    assert [len(decode_batch(one.messages[0].data)) for one in world.channel.confirmed] == [1, 1, 2]


async def test_a_key_that_has_rested_publishes_by_itself() -> None:
    world = World(rest=timedelta(milliseconds=1))
    async with world.publisher:
        for number in range(3):
            await (await world.publish("k", number))
        assert world.confirmed() == [a_change(number).key for number in range(3)]


@dataclass
class Later:
    """A clock that stands still until it is set, some seconds after the changes were committed."""

    seconds: float

    def now(self) -> Nanoseconds:
        """Return the time."""
        return Nanoseconds(parse_timestamp(a_change().commit_timestamp) + int(self.seconds * 1e9))


@pytest.mark.parametrize(
    ("age", "rest"), [(-60.0, 0.05), (0.0, 0.05), (0.9, 0.05), (2.0, 0.5), (6.0, 1.5), (86_400.0, 2.0)]
)
async def test_keys_that_are_late_rest_for_a_quarter_of_that_within_bounds(age: float, rest: float) -> None:
    world = World(clock=Later(age))
    async with world.publisher:
        began = asyncio.get_running_loop().time()
        await (await world.publish("k", 1))
        resting = await world.publish("k", 2)
        number = 3
        while not resting.done():
            await world.publish("other", number)
            await asyncio.sleep(0.01)
            number += 1
        assert rest <= asyncio.get_running_loop().time() - began <= rest + 0.32


async def test_late_keys_rest_together_and_no_longer_than_changes_come() -> None:
    world = World(clock=Later(86_400.0))
    async with world.publisher:
        loop = asyncio.get_running_loop()
        for number in range(3):
            await (await world.publish(f"k{number}", number))
            await asyncio.sleep(0.05)
        resting = [await world.publish(f"k{number}", number) for number in range(3)]
        began = loop.time()
        await asyncio.wait(resting, return_when=asyncio.FIRST_COMPLETED)
        await turns()
        assert all(future.done() for future in resting)
        assert loop.time() - began < 0.7


async def test_who_waits_for_a_confirmation_ends_the_rest_of_late_keys_though_changes_come() -> None:
    world = World(clock=Later(86_400.0))
    async with world.publisher:
        await (await world.publish("k", 1))
        resting = await world.publish("k", 2)
        for number in range(100):  # 1 s: half of the rest
            await world.publish("other", number)
            await asyncio.sleep(0.01)
        assert not resting.done()
        world.publisher.hurry(2)
        for number in range(40):
            await world.publish("other", number)
            await asyncio.sleep(0.01)
        assert resting.done()
        later = await world.publish("k", 3)  # as rows that are read back come a moment later
        for number in range(20):
            await world.publish("other", number)
            await asyncio.sleep(0.01)
        assert later.done()


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_change_that_is_not_late_does_not_wait_for_those_that_are(ordered: bool) -> None:
    world = World(clock=Later(86_400.0), ordered=ordered)
    fresh = replace(a_change(9), commit_timestamp="2027-01-01T00:00:00Z")
    async with world.publisher:
        await (await world.publish("k", 1))
        late = await world.publish("k", 2)
        began = asyncio.get_running_loop().time()
        alone = await world.publisher.publish(a_header(), [("other", fresh)])
        with_late = await world.publisher.publish(a_header(), [("k", fresh), ("new", a_change(3))])
        await asyncio.gather(alone, late, with_late)
        assert asyncio.get_running_loop().time() - began < 0.15
        again = await world.publisher.publish(a_header(), [("other", fresh)])
        await again
        assert asyncio.get_running_loop().time() - began < 0.25


async def test_a_key_rests_no_longer_than_it_must_where_others_may_soon_wait_for_room() -> None:
    world = World(clock=Later(86_400.0), outstanding_bytes=3 * a_change().size())
    async with world.publisher:
        await (await world.publish("other", 1))  # alone: it rests for long
        waiting = await world.publish("other", 2)
        await (await world.publish("k", 3))
        resting = await world.publish("k", 4)
        await asyncio.sleep(0.1)
        assert (waiting.done(), resting.done()) == (False, True)


async def test_a_publisher_reports_so_once_publishing_has_failed_for_a_while_and_until_it_succeeds_again() -> None:
    world = World(monotonic=asyncio.get_running_loop().time)
    async with world.publisher:
        world.channel.failures = [UNAVAILABLE] * 1_000
        future = await world.publish("k", 1)
        await asyncio.sleep(NOT_READY_AFTER.total_seconds() - 1)
        assert world.publisher.why_not_ready() == ""
        await asyncio.sleep(2)
        assert world.publisher.why_not_ready() == "publishing to projects/p/topics/t has failed for 31 s"
        world.channel.failures = []
        await future
        assert world.publisher.why_not_ready() == ""


async def test_a_publisher_is_not_ready_while_the_topic_of_its_dead_letters_fails() -> None:
    world = World(monotonic=asyncio.get_running_loop().time)
    async with world.publisher:
        world.dead_letters.failures = [UNAVAILABLE] * 1_000
        too_large = await world.publisher.publish(a_header(), [("k", a_change(1, name="x" * 9_100_000))])
        await asyncio.sleep(NOT_READY_AFTER.total_seconds() + 1)
        await (await world.publish("k", 2))
        assert world.publisher.why_not_ready() == "publishing to projects/p/topics/dead has failed for 31 s"
        world.dead_letters.failures = []
        await too_large
        assert world.publisher.why_not_ready() == ""


async def test_what_has_waited_for_so_long_that_a_delete_after_it_may_be_forgotten_is_never_sent() -> None:
    clock = Later(0.0)
    world = World(clock=clock)
    world.channel.failures = [UNAVAILABLE] * 3
    async with world.publisher:
        cut_off = await world.publish("k", 1)
        await turns()
        clock.seconds = MAX_OUTSTANDING_AGE.total_seconds()
        fresh = await world.publish("k", 2)
        clock.seconds += 1
        for waiting in (cut_off, fresh):
            with pytest.raises(TransientError, match=r"have waited for .* since 2026-.* has to be read again"):
                await waiting
        with pytest.raises(TransientError, match="has to be read again"):
            await world.publish("other", 3)

    assert len(world.channel.requests) == 1
    assert world.channel.confirmed == []


@pytest.mark.parametrize(("key", "room"), [("k", 1_000_000), ("other", 1)], ids=["behind another", "for room"])
async def test_the_age_of_what_waits_here_counts_from_when_it_was_handed_over(key: str, room: int) -> None:
    clock = Later(0.0)
    world = World(clock=clock, outstanding_bytes=room)
    world.channel.open.clear()
    async with world.publisher:
        first = await world.publish("k", 1)
        await turns()
        waiting = asyncio.create_task(world.publish(key, 2))
        await turns()
        clock.seconds = (
            MAX_OUTSTANDING_AGE.total_seconds() + 1
        )  # the machine stood still; the answer had come just before
        world.channel.open.set()
        await first
        with pytest.raises(TransientError, match="has to be read again"):
            await (await waiting)

    assert world.confirmed() == [a_change(1).key]


@pytest.mark.parametrize("passes_first", [0.0, 90.0], ids=["at once", "after a while"])
async def test_what_a_process_hands_over_after_it_stood_still_for_long_is_never_sent(passes_first: float) -> None:
    clock = Later(0.0)
    world = World(clock=clock)
    async with world.publisher:
        for _hour in range(48):
            await asyncio.sleep(3600)
            clock.seconds += 3600
            await (await world.publish("k", 1))
        clock.seconds += MAX_OUTSTANDING_AGE.total_seconds() + 1
        await asyncio.sleep(passes_first)
        read_before = await world.publish("k", 2)
        with pytest.raises(TransientError, match=r"stood still from 2026-.* has to be read again"):
            await read_before

    assert set(world.confirmed()) == {a_change(1).key}


async def test_what_has_waited_for_less_is_sent_as_soon_as_the_service_is_back() -> None:
    clock = Later(0.0)
    world = World(clock=clock)
    world.channel.failures = [UNAVAILABLE] * 3
    async with world.publisher:
        future = await world.publish("k", 1)
        await turns()
        clock.seconds = MAX_OUTSTANDING_AGE.total_seconds()
        await future


async def test_misconfigured_fails_everything_that_waits_and_everything_later() -> None:
    world = World(outstanding_bytes=1)
    world.channel.open.clear()
    world.channel.failures = [grpc.StatusCode.NOT_FOUND] * 3
    async with world.publisher:
        first = await world.publisher.publish(a_header(), [("k", a_change(1)), ("other", a_change(2))])
        waiting = asyncio.create_task(world.publish("k", 3))
        await turns()
        world.channel.open.set()
        for failing in (first, waiting, world.publisher.publish(a_header(), [])):
            with pytest.raises(MisconfiguredError, match="setup"):
                await failing


async def test_a_stop_lets_what_is_under_way_be_confirmed() -> None:
    world = World()
    world.channel.open.clear()
    async with world.publisher:
        future = await world.publish("k", 1)
        await turns()
        world.stop.request()
        world.channel.open.set()
    await future


async def test_a_stop_that_cuts_the_retries_fails_what_is_left() -> None:
    world = World()
    world.channel.failures = [UNAVAILABLE] * 1_000
    with capture_logs() as logs:
        async with world.publisher:
            futures = [await world.publish("k", number) for number in range(3)]
            await turns()
            world.stop.request()
    for future in futures:
        with pytest.raises(TransientError):
            await future
    assert world.channel.confirmed == []
    assert [line["log_level"] for line in logs if line["event"] == "publishing_stopped"] == ["warning"]


async def test_closing_does_not_wait_for_ever_without_a_stop() -> None:
    world = World(last_chance=timedelta(milliseconds=10))
    world.channel.open.clear()  # no answer, as from a service that is away
    future = await world.publish("planes/3", 1)
    await world.publisher.close()

    with pytest.raises(TransientError, match="stopped before"):
        await future


async def test_a_change_too_large_for_any_message_is_a_dead_letter_before_its_future_resolves() -> None:
    world = World()
    world.dead_letters.open.clear()
    large = a_change(7, sequence=9, name="x" * 9_100_000)
    async with world.publisher:
        future = await world.publisher.publish(a_header(), [("planes/3", a_change(1)), ("planes/3", large)])
        await turns()
        assert len(world.confirmed()) == 1
        assert not future.done()
        world.dead_letters.open.set()
        await future
    (message,) = world.dead_letters.confirmed[0].messages
    kept = from_message(message.data, dict(message.attributes))

    assert (kept.data, kept.reason, kept.payload_bytes) == (b'{"id": "7"}', Reason.TOO_LARGE, large.size())
    assert (kept.table, kept.key, kept.sequence) == ("planes", "[7]", large.sequence)
    assert (kept.ordering_key, kept.commit_timestamp) == ("planes/3", large.commit_timestamp)
    assert kept.attributes["table"] == "planes"


async def test_while_the_dead_letter_topic_is_unavailable_no_values_of_oversized_changes_stay_in_memory() -> None:
    world = World(outstanding_bytes=100_000)
    world.dead_letters.open.clear()
    tracemalloc.start()
    try:
        async with world.publisher:
            futures = []
            for number in range(20):
                large = a_change(number, sequence=number, name="x" * 9_100_000)
                futures.append(await world.publisher.publish(a_header(), [("planes/3", large)]))
            del large
            await turns()
            in_memory, _peak = tracemalloc.get_traced_memory()
            counted = world.publisher.outstanding_bytes
            assert in_memory < 9_100_000
            world.dead_letters.open.set()
            await asyncio.gather(*futures)
            assert world.publisher.outstanding_bytes == 0
    finally:
        tracemalloc.stop()
    assert counted > 20 * 1_000
    assert [len(request.messages) for request in world.dead_letters.confirmed] == [20]  # all that waits, at once


async def test_oversized_changes_that_wait_for_their_dead_letters_take_room_from_others() -> None:
    world = World(outstanding_bytes=1)
    world.dead_letters.open.clear()
    async with world.publisher:
        await world.publisher.publish(a_header(), [("planes/3", a_change(7, name="x" * 9_100_000))])
        waiting = asyncio.create_task(world.publish("planes/3", 1))
        await turns()
        assert not waiting.done()
        world.dead_letters.open.set()
        await (await waiting)


async def test_of_a_service_a_dead_letter_that_is_refused_waits_and_no_other_change() -> None:
    world = World(waits=True)
    world.dead_letters.failures = [grpc.StatusCode.PERMISSION_DENIED] * 6
    async with world.publisher:
        with capture_logs() as logs:
            too_large = await world.publisher.publish(a_header(), [("planes/3", a_change(7, name="x" * 9_100_000))])
            await (await world.publish("planes/3", 1))
            assert not too_large.done()
            await too_large

    retried = [line for line in logs if line["event"] == "call_retried"]
    assert len(retried) == 6
    assert "roles/pubsub.publisher" in retried[0]["error"]
    assert [line["fix"] for line in retried if "fix" in line] == [DeadLettersRefusedError.fix]


async def test_a_dead_letter_that_is_refused_fails_the_future() -> None:
    world = World()
    world.dead_letters.failures = [grpc.StatusCode.NOT_FOUND]
    async with world.publisher:
        future = await world.publisher.publish(a_header(), [("planes/3", a_change(7, name="x" * 9_100_000))])
        with pytest.raises(MisconfiguredError):
            await future


class CommitClock:
    """A clock by which the usual change was committed as the event loop began."""

    def now(self) -> Nanoseconds:
        began = parse_timestamp(a_change().commit_timestamp)
        return Nanoseconds(began + int(asyncio.get_running_loop().time() * 1e9))


def published_in(seconds: float, keys: int, *, ordered: bool, **limits: Any) -> tuple[list[float], SlowChannel]:
    """Publish 2,000 changes a second as they are committed, each alone and of any key.

    Return how long each took to be confirmed, in the order in which they were.
    """
    latencies: list[float] = []
    channel = SlowChannel()
    chosen = random.Random(keys)

    def confirmed(began: float, done: "asyncio.Future[None]") -> None:
        latencies.append(done.get_loop().time() - began)

    async def scenario() -> None:
        loop, clock = asyncio.get_running_loop(), CommitClock()
        world = World([channel, channel], clock=clock, ordered=ordered, limits=PackerLimits(**limits))
        async with world.publisher:
            futures = []
            for number in range(int(seconds * 2_000)):
                await asyncio.sleep(number / 2_000 - loop.time())
                change = a_change(number, committed=format_timestamp(clock.now()))
                future = await world.publisher.publish(a_header(), [(f"planes/{chosen.randrange(keys)}", change)])
                future.add_done_callback(partial(confirmed, loop.time()))
                futures.append(future)
            await asyncio.gather(*futures)

    run_in_virtual_time(scenario())
    return latencies, channel


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("keys", [80, 1_600, 16_000, 160_000])
def test_half_of_all_changes_are_confirmed_within_150_ms_whatever_the_number_of_keys(keys: int, ordered: bool) -> None:
    latencies, channel = published_in(3, keys, ordered=ordered)

    assert len(latencies) == 6_000
    for second in range(3):  # a queue that grows would show in the last
        some = sorted(latencies[second * 2_000 : (second + 1) * 2_000])
        assert some[1_000] < 0.15
        assert some[1_980] < 0.3
    if not ordered:
        assert len(channel.requests) <= 3.2 / 0.01
        assert {message.ordering_key for request in channel.requests for message in request.messages} == {""}


def test_no_more_requests_are_under_way_than_the_limits_say() -> None:
    _latencies, channel = published_in(0.2, 16_000, ordered=True, requests=7)

    assert channel.most_under_way == 7


async def test_messages_without_ordering_keys_say_which_are_of_the_same_rows() -> None:
    world = World(ordered=False)
    async with world.publisher:
        changes = [(f"planes/{number % 3}", a_change(number)) for number in range(6)]
        await (await world.publisher.publish(a_header(), changes))
    (request,) = world.channel.confirmed

    assert {(message.ordering_key, message.attributes["bucket"]) for message in request.messages} == {
        ("", f"planes/{bucket}") for bucket in range(3)
    }
    assert [len(decode_batch(message.data).keys) for message in request.messages] == [2, 2, 2]


async def test_without_ordering_keys_as_many_timers_are_set_however_long_it_publishes_and_none_when_idle() -> None:
    loop, timers = asyncio.get_running_loop(), [0]
    set_timer = loop.call_at

    def counted(*args: Any, **options: Any) -> asyncio.TimerHandle:
        timers[0] += 1
        return set_timer(*args, **options)

    loop.call_at = counted  # type: ignore[assignment]
    world = World(SlowChannel(), clock=CommitClock(), ordered=False)
    of_seconds = []
    async with world.publisher:
        for second in range(3):
            before = timers[0]
            for number in range(200):
                await asyncio.sleep(second + number / 200 - loop.time())
                await world.publish(f"planes/{number}", number)
            of_seconds.append(timers[0] - before)
        await asyncio.sleep(0.5)  # all is confirmed, and the keys have rested
        before = timers[0]
        await asyncio.sleep(1)
        idle = timers[0] - before - 1  # this sleep's

    assert of_seconds[-1] < 1.5 * of_seconds[0] < 3_000
    assert idle == 0


async def test_a_key_whose_requests_are_not_answered_takes_half_of_the_room_and_blocks_no_other() -> None:
    world = World(SlowChannel(stuck="planes/0"), outstanding_bytes=100_000, last_chance=timedelta(seconds=1))
    async with world.publisher:

        async def fill() -> None:
            while True:
                (await world.publish("planes/0", 1)).add_done_callback(lambda done: done.exception())

        filling = asyncio.create_task(fill())
        await asyncio.sleep(1)
        assert 45_000 < world.publisher.outstanding_bytes < 55_000
        for number in range(100):
            async with asyncio.timeout(1):
                await (await world.publish("planes/1", number))
        assert not filling.done()
        filling.cancel()
        world.channel.stuck = ""
