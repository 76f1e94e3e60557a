"""A replay whose dead letters come back failing ends; any other is held up by nothing but a sample."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from services.dead_letter.app.replay.replay import Outcome
from services.dead_letter.app.replay.replay_failures import SAMPLE, TIME_TO_COME_BACK, TOO_MANY
from services.dead_letter.core.dead_letters import GroupId, State
from services.dead_letter.core.groups import group_of
from services.dead_letter.core.plan import Verdict
from shared.contracts.change_batch import decode_batch, encode_batch
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_header
from tests.fakes.replaying import WaitedClock
from tests.unit.dead_letter.dead_letters import NOW, a_dead_letter
from tests.worlds.replaying import OPEN, World

MANY = 600


class Late(WaitedClock):
    """A clock by which dead letters come back some time after they were sent."""

    def __init__(self, world: World, after: timedelta) -> None:
        super().__init__(NOW)
        self._world = world
        self._after = after // timedelta(microseconds=1) * 1_000
        self._coming: list[tuple[int, DeadLetter]] = []

    def fail(self, dead_letters: Sequence[DeadLetter]) -> None:
        self._coming += [(self.now() + self._after, one) for one in dead_letters]

    def move(self, by: timedelta) -> None:
        super().move(by)
        due = [one for at, one in self._coming if at <= self.now()]
        self._coming = [(at, one) for at, one in self._coming if at > self.now()]
        self._world.keep(*due)


def failing_world(bad: Any, after: float = 2.0) -> World:
    """Return a world in which dead letters that are ``bad`` come back so many seconds after they were sent."""
    world = World()
    clock = Late(world, timedelta(seconds=after))
    world.clock = clock
    world.publisher.then = lambda dead_letters: clock.fail([one for one in dead_letters if bad(one)])
    return world


def dead_letters_of(table: str, count: int) -> Sequence[DeadLetter]:
    """Return dead letters of one cause."""
    return [a_dead_letter(a_change(n), a_header(table)) for n in range(count)]


def a_whole_message(first: int) -> DeadLetter:
    """Return the dead letter of a message of three changes."""
    data = encode_batch(a_header(), [a_change(n) for n in range(first, first + 3)])
    plain: dict[str, Any] = {"table": "", "key": "", "sequence": "", "commit_timestamp": ""}
    return a_dead_letter(data=data, reason=Reason.NOT_APPLIED_IN_TIME, detail="delivered 100 times", **plain)


def changes_of(message: DeadLetter) -> Sequence[DeadLetter]:
    """Return a dead letter for each change of a replayed message."""
    attributes, batch = {**message.attributes, REPLAY_OF: message.identity}, decode_batch(message.data)
    return [a_dead_letter(data=batch.cut(n), attributes=attributes) for n in range(len(batch))]


def cause(table: str) -> GroupId:
    return group_of(Reason.VALUE_DOES_NOT_FIT, table, a_dead_letter().detail)


def is_quick(outcome: Outcome, world: World) -> bool:
    """Return whether a replay waited for one sample alone."""
    seconds = (world.clock.now() - NOW) / 1e9
    return TIME_TO_COME_BACK.total_seconds() <= seconds < 2 * TIME_TO_COME_BACK.total_seconds() and outcome.sent == MANY


def test_where_each_change_of_replayed_messages_comes_back_no_more_than_a_sample_is_sent() -> None:
    """Pub/Sub has forwarded whole messages, and the consumer refuses their changes: these are other dead letters."""
    world, whole = World(), [a_whole_message(n) for n in range(0, 3 * MANY, 3)]
    clock = Late(world, timedelta(seconds=2))
    world.clock = clock
    world.publisher.then = lambda sent: clock.fail([one for each in sent for one in changes_of(each)])
    world.keep(*whole)
    outcome = world.replay()

    assert (outcome.sent, outcome.failed_again) == (SAMPLE, SAMPLE)
    assert outcome.failing == {group_of(whole[0].reason, whole[0].table, whole[0].detail): SAMPLE}
    assert world.states() == {State.OPEN: MANY - SAMPLE + 3 * SAMPLE, State.REPLAYED: SAMPLE}


@pytest.mark.parametrize("rate", [None, 500.0])
@pytest.mark.parametrize("after", [0.1, 2.0, 4.9])
def test_where_everything_comes_back_no_more_than_a_sample_is_sent(after: float, rate: float | None) -> None:
    world = failing_world(lambda _one: True, after)
    world.keep(*dead_letters_of("planes", MANY))
    outcome = world.replay(rate=rate)

    assert (outcome.sent, outcome.failed_again, outcome.stopped) == (SAMPLE, SAMPLE, False)
    assert outcome.failing == {cause("planes"): SAMPLE}
    assert outcome.left_open == outcome.verdicts[Verdict.SEND] > SAMPLE
    assert world.states() == {State.OPEN: MANY}
    assert all(one.claimed_by is None for one in world.store.in_replay_order(OPEN))


def test_where_nothing_comes_back_it_waits_once_for_each_cause() -> None:
    world = failing_world(lambda _one: False)
    world.keep(*dead_letters_of("planes", MANY))
    outcome = world.replay(rate=None)
    assert is_quick(outcome, world)
    assert outcome.failing == {}

    several = failing_world(lambda _one: False)
    several.keep(*dead_letters_of("pilots", 100), *dead_letters_of("planes", 100), *dead_letters_of("seats", SAMPLE))
    assert several.replay(rate=None).sent == 200 + SAMPLE
    waited = (several.clock.now() - NOW) / 1e9
    assert waited == pytest.approx(2 * TIME_TO_COME_BACK.total_seconds())


@pytest.mark.parametrize(("there", "limit"), [(SAMPLE, None), (100, SAMPLE)], ids=["few dead letters", "a limit"])
def test_what_is_no_more_than_the_sample_is_not_waited_for(there: int, limit: int | None) -> None:
    world = failing_world(lambda _one: True)
    world.keep(*dead_letters_of("planes", there))
    assert world.replay(rate=None, limit=limit).sent == SAMPLE
    assert world.clock.now() == NOW


def test_a_few_that_fail_among_many_end_nothing() -> None:
    chance = random.Random(3)
    bad = {one.identity for one in dead_letters_of("planes", MANY) if chance.random() < 0.2}
    world = failing_world(lambda one: one.identity in bad, 0.4)
    world.keep(*dead_letters_of("planes", MANY))
    outcome = world.replay(rate=100.0)

    assert (outcome.sent, outcome.failing) == (MANY, {})
    assert outcome.failed_again >= 0.8 * len(bad)


def test_a_cause_that_fails_behind_others_that_are_healthy_ends_it_with_its_own_sample() -> None:
    world = failing_world(lambda one: one.table == "seats")
    world.keep(*dead_letters_of("planes", 300), *dead_letters_of("seats", 300), *dead_letters_of("ticks", 300))
    outcome = world.replay(rate=None)

    assert (outcome.sent, outcome.failing) == (300 + SAMPLE, {cause("seats"): SAMPLE})
    assert world.states() == {State.REPLAYED: 300, State.OPEN: 600}


def test_what_begins_to_fail_in_the_midst_ends_it_when_half_of_what_was_sent_of_late_has_come_back() -> None:
    world = failing_world(lambda one: one.key >= "[3", 1.0)  # keys are texts here: "[1]" < "[10]" < "[2]"
    world.keep(*dead_letters_of("planes", MANY))
    outcome = world.replay(rate=20.0)
    healthy = len([one for one in dead_letters_of("planes", MANY) if one.key < "[3"])

    assert list(outcome.failing) == [cause("planes")]
    assert healthy < outcome.sent < MANY


def test_fewer_than_so_many_end_nothing() -> None:
    in_order = sorted(dead_letters_of("planes", 100), key=lambda one: one.key)
    bad = {one.identity for one in in_order[: TOO_MANY - 1]}
    world = failing_world(lambda one: one.identity in bad)
    world.keep(*dead_letters_of("planes", 100))
    outcome = world.replay(rate=None)
    assert (outcome.sent, outcome.failing, outcome.failed_again) == (100, {}, TOO_MANY - 1)


def test_a_stop_while_the_sample_is_waited_for_ends_it_at_once() -> None:
    world = failing_world(lambda _one: False)
    world.keep(*dead_letters_of("planes", 100))
    world.publisher.then = lambda _dead_letters: world.clock.request()
    outcome = world.replay(rate=None)
    assert (outcome.stopped, outcome.sent, outcome.left_open) == (True, SAMPLE, 80)
