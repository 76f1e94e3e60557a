"""The collector: a dead letter is in the subscription or in the store at every moment, wherever the process dies."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.dead_letter.app.collector import Collector
from services.dead_letter.app.metrics import CollectorMetrics
from services.dead_letter.core.dead_letters import Arrival, DeadLetterId, DeadLetterStats, State
from services.dead_letter.core.received import Received, to_arrival
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import Kept
from shared.contracts.dead_letter import DeadLetter, to_attributes
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.builders import a_change
from tests.fakes.dead_letter_store import FakeDeadLetterStore
from tests.fakes.effects import CrashError, Effects
from tests.fakes.inbox import FakeInbox, FakeSubscription
from tests.fakes.replaying import WaitedClock
from tests.unit.dead_letter.dead_letters import a_dead_letter

NOON: Final = Nanoseconds(1_760_000_000_000_000_000)


class WatchedStore(FakeDeadLetterStore):
    """The fake, with a journal and with failures: before a transaction, or when it is done and nobody has heard."""

    def __init__(self) -> None:
        super().__init__()
        self.effects = Effects()
        self.unavailable = 0
        self.when_unavailable: Callable[[], None] = lambda: None
        self.unheard = 0
        self.bad: str | None = None
        """The message id that it refuses with ``error``."""
        self.error: Exception = ZeroDivisionError("no such dead letter has been seen")

    def keep(self, arrivals: Sequence[Arrival], now: Nanoseconds) -> Kept:
        if self.unavailable:
            self.unavailable -= 1
            self.when_unavailable()
            raise TransientError("the database is away")
        if any(arrival.message_id == self.bad for arrival in arrivals):
            raise self.error
        self.effects.note(f"keep {len(arrivals)}")
        kept = super().keep(arrivals, now)
        if self.unheard:
            self.unheard -= 1
            raise TransientError("the connection broke at the commit")
        return kept


class World:
    """A subscription and a store that outlive the process, and lives of the collector between them."""

    def __init__(self) -> None:
        self.subscription = FakeSubscription()
        self.store = WatchedStore()
        self.clock = WaitedClock(NOON)
        self.health = Health()
        self.registry = CollectorRegistry()
        self.metrics = CollectorMetrics(self.registry, self.clock)
        self.inbox: FakeInbox | None = None

    def live(
        self, effects: Effects | None = None, unavailable: int = 0, at_once: int = 3, stop: Stop | None = None
    ) -> None:
        """Run the collector until nothing is left, or it dies."""
        stop = stop or Stop()
        self.store.effects = effects or Effects()
        self.inbox = FakeInbox(self.subscription, stop, self.store.effects, at_once)
        self.inbox.unavailable = unavailable
        collector = Collector(self.inbox, self.store, self.metrics, self.health, self.clock, timedelta(days=90))
        collector.run(stop)

    def dead_letters(self) -> Mapping[str, int]:
        """Return how often each dead letter of the store has failed."""
        found = self.store.find(Selection(), limit=1_000).dead_letters
        return {line.id: line.attempts for line in found}


def numbered(number: int) -> DeadLetter:
    return a_dead_letter(a_change(number), failed_at=NOON)


def publish(world: World, *numbers: int) -> None:
    for number in numbers:
        dead_letter = numbered(number)
        world.subscription.publish(dead_letter.data, to_attributes(dead_letter))


def names(*numbers: int) -> set[str]:
    return {numbered(number).identity for number in numbers}


def test_what_comes_is_kept_and_then_acknowledged() -> None:
    world = World()
    publish(world, 1, 2, 3, 4)

    world.live()

    assert world.dead_letters().keys() == names(1, 2, 3, 4)
    assert world.subscription.messages == {}
    assert world.store.effects.done == ["pull", "keep 3", "ack 3", "pull", "keep 1", "ack 1", "pull"]


def test_wherever_it_dies_every_dead_letter_is_in_the_end_there_once_with_its_attempts() -> None:
    crash, died = 0, True
    while died:
        world = World()
        publish(world, 1, 2, 1, 3, 4)
        try:
            world.live(Effects(crash_before=crash))
            died = False
        except CrashError:
            kept = world.dead_letters().keys()
            left = {to_arrival(one).dead_letter.identity for one in world.subscription.messages.values()}
            assert kept | left == names(1, 2, 3, 4), "in the one or in the other, at every moment"
        world.live()
        assert world.dead_letters() == {numbered(1).identity: 2} | dict.fromkeys(names(2, 3, 4), 1)
        assert world.subscription.messages == {}
        crash += 1
    assert crash > 6


@given(
    st.lists(st.integers(0, 4), max_size=12),
    st.lists(st.integers(0, 8), max_size=6),
    st.integers(1, 4),
    st.integers(0, 1),
)
def test_any_lives_keep_every_dead_letter(numbers: list[int], crashes: list[int], at_once: int, unheard: int) -> None:
    world = World()
    world.store.unheard = unheard
    waiting = list(numbers)
    for crash in crashes:
        publish(world, *waiting[:3])
        del waiting[:3]
        try:
            world.live(Effects(crash_before=crash), at_once=at_once)
        except CrashError:
            continue
    publish(world, *waiting)
    world.live(at_once=at_once)

    assert world.dead_letters() == {numbered(number).identity: numbers.count(number) for number in set(numbers)}
    assert world.subscription.messages == {}


def test_nothing_is_acknowledged_while_the_store_is_unavailable_and_the_service_reports_so() -> None:
    world = World()
    publish(world, 1)
    world.store.unavailable = 2
    world.health = Health(now=itertools.count(0, 10).__next__)
    seen: list[bool] = []
    reported: list[str] = []

    class Watching(WaitedClock):
        def now(self) -> Nanoseconds:
            seen.append(world.health.ready)
            reported.extend(world.health.obstacles)
            assert world.dead_letters() or world.subscription.messages
            return NOON

    world.clock = Watching(NOON)
    world.live()

    assert False in seen[1:], "not ready while it was away"
    assert reported[-1].startswith("a call has failed for "), "and it says why"
    assert world.health.ready, "and ready again"
    assert world.dead_letters().keys() == names(1)


def test_pubsub_unavailable_is_waited_for() -> None:
    world = World()
    publish(world, 1)

    world.live(unavailable=2)

    assert world.dead_letters().keys() == names(1)


def test_a_burst_is_held_a_few_at_a_time() -> None:
    world = World()
    publish(world, *range(500))

    world.live(at_once=7)

    assert world.dead_letters().keys() == names(*range(500))
    assert world.inbox is not None
    assert world.inbox.most_outstanding == 7


def test_a_dead_letter_that_no_store_can_take_holds_up_no_other() -> None:
    world = World()
    publish(world, 1, 2, 3, 4)
    world.store.bad = "m2"

    with pytest.raises(ZeroDivisionError):
        world.live()

    assert world.dead_letters().keys() == names(1, 3)
    assert list(world.subscription.messages) == ["m2", "m4"], "it ends the process, and stays where it was"


def test_a_stop_while_the_store_is_unavailable_is_no_failure() -> None:
    world, stop = World(), Stop()
    publish(world, 1)
    world.store.unavailable, world.store.when_unavailable = 1, stop.request

    world.live(stop=stop)

    assert list(world.subscription.messages) == ["m1"]


def test_a_store_of_another_version_ends_the_process() -> None:
    world = World()
    publish(world, 1)
    world.store.bad, world.store.error = "m1", MisconfiguredError("made-up", "of another version")

    with pytest.raises(MisconfiguredError):
        world.live()

    assert list(world.subscription.messages) == ["m1"]


def test_settled_dead_letters_are_forgotten_when_they_are_old_and_open_ones_never() -> None:
    world = World()
    publish(world, 1, 2, 3)
    world.live()
    settled = [DeadLetterId(numbered(number).identity) for number in (1, 2)]
    world.store.set_state(
        settled, State.DISCARDED, only_from=frozenset({State.OPEN}), who="an operator", now=NOON, why="a test"
    )

    world.clock.move(timedelta(days=89))
    world.live()
    assert world.dead_letters().keys() == names(1, 2, 3)

    world.clock.move(timedelta(days=2))
    world.live()
    assert world.dead_letters().keys() == names(3)


def metric(world: World, name: str, **labels: str) -> float | None:
    return world.registry.get_sample_value(name, labels)


def test_the_metrics_say_what_came_and_what_is_there() -> None:
    world = World()
    assert {
        sample.labels["reason"]
        for family in world.registry.collect()
        for sample in family.samples
        if sample.name == "millrace_dead_letter_received_total"
    } == {reason.value for reason in Reason}, "a closed list, from the beginning"
    publish(world, 1, 1, 2)
    world.subscription.publish(b"junk", {})
    world.live()
    world.clock.move(timedelta(seconds=60))
    world.live()

    assert metric(world, "millrace_dead_letter_received_total", reason="value_does_not_fit") == 3
    assert metric(world, "millrace_dead_letter_received_total", reason="unexplained") == 1
    assert metric(world, "millrace_dead_letter_kept_total", what="new") == 3
    assert metric(world, "millrace_dead_letter_kept_total", what="again") == 1
    assert metric(world, "millrace_dead_letter_open", reason="value_does_not_fit") == 2
    assert metric(world, "millrace_dead_letter_stored", state="open") == 3
    world.clock.move(timedelta(seconds=30))
    ages = {
        reason: metric(world, "millrace_dead_letter_oldest_open_age_seconds", reason=reason.value) for reason in Reason
    }
    assert {reason: age for reason, age in ages.items() if age} == {
        Reason.VALUE_DOES_NOT_FIT: pytest.approx(90, abs=1),
        Reason.UNEXPLAINED: pytest.approx(90, abs=1),
    }
    document = world.metrics.document()
    assert document["kept"] == {"new": 3, "again": 1, "seen": 0}
    assert document["open_by_reason"] == {"value_does_not_fit": 2, "unexplained": 1}


def test_what_there_is_is_counted_again_at_once_where_the_clock_was_set_back() -> None:
    class SetBack(FakeInbox):
        def pull(self, wait: timedelta) -> Sequence[Received]:
            counted.append(metric(world, "millrace_dead_letter_stored", state="open"))
            if len(counted) == 1:
                world.clock.move(-timedelta(hours=3))
                world.store.keep([to_arrival(message)], NOON)
            if len(counted) == 3:
                stop.request()
            return ()

    world, stop = World(), Stop()
    publish(world, 1)
    (message,) = world.subscription.messages.values()
    counted: list[float | None] = []
    inbox = SetBack(world.subscription, stop)
    Collector(inbox, world.store, world.metrics, world.health, world.clock, timedelta(days=90)).run(stop)

    assert counted == [0, 1, 1]


def test_before_anything_is_known_nothing_is_old() -> None:
    world = World()
    assert metric(world, "millrace_dead_letter_oldest_open_age_seconds", reason="undecodable") == 0
    world.metrics.show(DeadLetterStats(by_state={}, by_reason={}, by_table={}, oldest_by_reason={}, payload_bytes=0))
    assert metric(world, "millrace_dead_letter_oldest_open_age_seconds", reason="undecodable") == 0
    assert world.metrics.document()["oldest_open"] is None
