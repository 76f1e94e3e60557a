"""The loop of a replay: in order, each dead letter once at a time, and nothing lost wherever it is killed."""

import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dead_letter.app.replay.replay import LEASE, Outcome, Replay, ReplayOrder
from services.dead_letter.core.dead_letters import Action, DeadLetterId, ReplayId, State
from services.dead_letter.core.plan import Verdict
from services.dead_letter.core.selection import Selection
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import TransientError
from shared.contracts.safe_age import SAFE_AGE
from tests.builders import a_change
from tests.fakes.effects import CrashError, Effects
from tests.unit.dead_letter.dead_letters import NOW, a_dead_letter, junk
from tests.worlds.replaying import OPEN, World


@pytest.fixture
def world() -> World:
    return World()


def test_a_dry_run_changes_nothing_and_reports_what_would_be(world: World) -> None:
    world.keep(*(a_dead_letter(a_change(n)) for n in range(3)), junk())
    outcome = world.replay(execute=False)

    assert outcome.verdicts == {Verdict.SEND: 4}
    assert [one["verdict"] for one in outcome.dead_letters] == ["send"] * 4
    listed = {"id", "table", "key", "sequence", "reason", "verdict", "why"}
    assert outcome.dead_letters[0].keys() == listed, "a list of a thousand holds no bytes of any"
    assert world.publisher.published == []
    assert world.states() == {State.OPEN: 4}
    assert [entry.action for entry in world.store.trail(DeadLetterId(str(outcome.dead_letters[0]["id"])))] == [
        Action.ARRIVED
    ]


def test_dead_letters_go_out_by_key_then_sequence_and_are_reported_as_replayed(world: World) -> None:
    dead_letters = [a_dead_letter(a_change(key, sequence=sequence)) for key, sequence in ((2, 1), (1, 9), (1, 3))]
    world.keep(*dead_letters)
    outcome = world.replay()

    assert [(one.key, one.sequence) for one in world.publisher.published] == [
        ("[1]", str(four_sections(3))),
        ("[1]", str(four_sections(9))),
        ("[2]", str(four_sections(1))),
    ]
    assert (outcome.sent, outcome.left_open) == (3, 0)
    assert world.states() == {State.REPLAYED: 3}
    last = world.store.trail(DeadLetterId(dead_letters[0].identity))[-1]
    assert (last.action, last.who, last.more) == (Action.REPLAYED, "ada", {"replay": outcome.replay})


def test_the_second_replay_of_everything_finds_nothing(world: World) -> None:
    world.keep(a_dead_letter(), junk())
    assert world.replay().sent == 2
    assert world.replay().verdicts == {}
    assert len(world.publisher.published) == 2


def test_what_the_mirror_has_something_newer_of_is_closed_and_not_sent(world: World) -> None:
    old, same = a_dead_letter(a_change(1, sequence=3)), a_dead_letter(a_change(2, sequence=3))
    world.keep(old, same)
    for dead_letter, applied in ((old, 4), (same, 3)):
        world.apply(dead_letter, applied)

    assert world.replay(execute=False).verdicts == {Verdict.SUPERSEDED: 1, Verdict.SEND: 1}
    assert world.states() == {State.OPEN: 2}
    outcome = world.replay()

    assert world.states() == {State.SUPERSEDED: 1, State.REPLAYED: 1}
    assert [one.identity for one in world.publisher.published] == [same.identity]
    assert outcome.left_open == 0
    last = world.store.trail(DeadLetterId(old.identity))[-1]
    assert (last.action, last.who) == (Action.SUPERSEDED, "ada")


def test_what_is_too_old_is_sent_when_it_is_forced_and_reports_so(world: World) -> None:
    world.clock.move(SAFE_AGE)
    world.keep(a_dead_letter())
    outcome = world.replay()
    assert (outcome.verdicts, outcome.sent, outcome.left_open) == ({Verdict.TOO_OLD: 1}, 0, 1)
    world.keep(a_dead_letter(a_change(2, op="DELETE")))
    assert world.replay(force=True).sent == 2
    assert dict(zip((one.key for one in world.publisher.published), world.publisher.forced, strict=True)) == {
        "[1]": True,
        "[2]": False,
    }


def test_a_dead_letter_that_fails_every_time_waits_for_a_person(world: World) -> None:
    dead_letter = a_dead_letter()
    (identity,) = world.keep(dead_letter)
    for _ in range(3):
        assert world.replay().sent == 1
        world.keep(dead_letter)
    stored = world.stored(identity)
    assert (stored.attempts, stored.replays, stored.state) == (4, 3, State.OPEN)

    assert world.replay().verdicts == {Verdict.WAITS: 1}
    named = Selection(ids=frozenset({identity}))
    assert world.replay(selection=named).sent == 1


def test_one_that_fails_before_it_is_reported_as_replayed_stays_open(world: World) -> None:
    dead_letter = a_dead_letter()
    (identity,) = world.keep(dead_letter)
    world.publisher.then = world.keep_again
    outcome = world.replay()

    assert (outcome.sent, outcome.failed_again, outcome.left_open) == (1, 1, 1)
    stored = world.stored(identity)
    assert (stored.state, stored.attempts, stored.replays, stored.claimed_by) == (State.OPEN, 2, 1, None)


def test_no_more_dead_letters_are_sent_than_the_limit(world: World) -> None:
    world.keep(*(a_dead_letter(a_change(n)) for n in range(5)))
    outcome = world.replay(limit=2)
    assert (outcome.sent, outcome.verdicts, outcome.left_open) == (2, {Verdict.SEND: 2}, 0)
    assert world.states() == {State.OPEN: 3, State.REPLAYED: 2}
    assert world.replay(limit=0).sent == 0


@pytest.mark.parametrize(("rate", "seconds"), [(10.0, 1.8), (100.0, 0), (0.5, 38), (7.0, 19 / 7)])
def test_dead_letters_go_no_faster_than_the_rate(world: World, rate: float, seconds: float) -> None:
    world.keep(*(a_dead_letter(a_change(n)) for n in range(20)))
    assert world.replay(rate=rate).sent == 20
    assert (world.clock.now() - NOW) / 1e9 == pytest.approx(seconds)


def test_a_replay_so_slow_that_its_claims_would_run_out_keeps_them(world: World) -> None:
    world.keep(*(a_dead_letter(a_change(n)) for n in range(20)))
    others: list[int] = []

    def inspect(_dead_letters: Sequence[DeadLetter]) -> None:
        still = [one.id for one in world.store.in_replay_order(OPEN)]
        others.append(len(world.store.claim(still, ReplayId("other"), world.clock.now(), timedelta(0))))

    world.publisher.then = inspect
    outcome = world.replay(rate=1 / 60)
    assert world.clock.now() - NOW > LEASE // timedelta(microseconds=1) * 1_000
    assert outcome.sent == 20
    assert set(others) == {0}


def test_a_stop_ends_the_replay_behind_what_is_under_way_and_lets_the_rest_go(world: World) -> None:
    world.keep(*(a_dead_letter(a_change(n)) for n in range(20)))
    world.publisher.then = lambda _dead_letters: world.clock.request()
    outcome = world.replay(rate=20.0)

    assert (outcome.stopped, outcome.sent, outcome.left_open) == (True, 5, 15)
    assert world.states() == {State.OPEN: 15, State.REPLAYED: 5}
    assert all(one.claimed_by is None for one in world.store.in_replay_order(OPEN))


def test_pubsub_unavailable_leaves_everything_open_and_free(world: World) -> None:
    world.keep(a_dead_letter(a_change(1)), a_dead_letter(a_change(2)))
    world.publisher.unavailable = 1
    with pytest.raises(TransientError):
        world.replay()
    assert world.states() == {State.OPEN: 2}
    assert world.replay().sent == 2


def test_two_replays_at_once_send_no_dead_letter_twice(world: World) -> None:
    world.keep(*(a_dead_letter(a_change(n)) for n in range(2_000)))
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(world.replay())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(Counter(one.identity for one in world.publisher.published).values()) == 1
    assert sum(outcome.sent for outcome in outcomes) == 2_000
    assert world.states() == {State.REPLAYED: 2_000}


changes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), unique=True, min_size=1, max_size=12)


@given(changes, st.sets(st.integers(1, 4)), st.integers(0, 12), st.sampled_from([None, 8.0]))
def test_killed_anywhere_and_run_again_every_dead_letter_is_sent_and_none_is_lost(
    sent: list[tuple[int, int]], newer: set[int], step: int, rate: float | None
) -> None:
    world = World()
    dead_letters = [a_dead_letter(a_change(key, sequence=sequence)) for key, sequence in sent]
    world.keep(*dead_letters)
    superseded = {one.identity for (key, _), one in zip(sent, dead_letters, strict=True) if key in newer}
    for dead_letter in dead_letters:
        if dead_letter.identity in superseded:
            world.apply(dead_letter, 99)
    wanted = {one.identity for one in dead_letters} - superseded
    try:
        world.replay(Effects(crash_before=step), rate=rate)
    except CrashError:
        done = {one.id for one in world.store.in_replay_order(Selection(states=frozenset({State.REPLAYED})))}
        assert done <= {one.identity for one in world.publisher.published}

    world.clock.move(LEASE)
    world.replay()
    assert {one.identity for one in world.publisher.published} == wanted
    expected = {State.REPLAYED: len(wanted), State.SUPERSEDED: len(superseded)}
    assert world.states() == {state: count for state, count in expected.items() if count}
    times = Counter(one.identity for one in world.publisher.published)
    assert max(times.values(), default=0) <= 2


def test_a_killed_replay_holds_its_dead_letters_no_longer_than_its_lease(world: World) -> None:
    world.keep(a_dead_letter())
    with pytest.raises(CrashError):
        world.replay(Effects(crash_before=1))
    assert world.replay().verdicts == {Verdict.CLAIMED: 1}
    world.clock.move(LEASE)
    assert world.replay().sent == 1


def test_what_a_replay_held_that_is_dead_for_certain_is_sent_at_once(world: World) -> None:
    (identity,) = world.keep(a_dead_letter())
    with pytest.raises(CrashError):
        world.replay(Effects(crash_before=1))
    holder = world.stored(identity).claimed_by
    assert holder is not None
    world.store.dead.add(holder)

    assert world.replay(execute=False).verdicts == {Verdict.CLAIMED: 1}, "a dry run changes nothing"
    assert world.replay().sent == 1


class CommitLost:
    """A store that commits what was sent, and loses the answer to the first such commit."""

    def __init__(self, store: Any) -> None:
        self._store, self._lost = store, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def sent(self, *arguments: Any) -> Any:
        """Record what was sent."""
        done = self._store.sent(*arguments)
        if self._lost:
            self._lost -= 1
            raise TransientError("the server closed the connection")
        return done


def test_a_commit_whose_answer_is_lost_is_no_failure_of_what_was_sent(world: World) -> None:
    world.keep(*(a_dead_letter(a_change(number)) for number in range(300)))
    order = ReplayOrder(selection=OPEN, who="ada", execute=True)
    outcome = Replay(CommitLost(world.store), world.publisher, world.mirrors, world.clock, world.clock).run(order)

    assert (outcome.failing, outcome.failed_again, outcome.left_open) == ({}, 0, 0)
    assert world.states() == {State.REPLAYED: 300}


def test_a_clock_that_is_set_back_stops_no_replay(world: World) -> None:
    world.keep(*(a_dead_letter(a_change(number)) for number in range(30)))
    steps = iter([-timedelta(hours=1)])
    world.publisher.then = lambda _dead_letters: world.clock.move(next(steps, timedelta(0)))
    began = world.clock.now()
    world.replay(rate=500.0)

    assert world.states() == {State.REPLAYED: 30}
    assert world.clock.now() < began  # it has not waited until the clock was there again
