"""What a DeadLetterStore promises of what is done to dead letters: states, claims, sending, editing. On all three."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from services.dead_letter.adapters.store.database import DeadLetterDatabase
from services.dead_letter.core.dead_letters import Action, DeadLetterId, ReplayId, State
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterStore, Kept
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds
from tests.contract.dead_letter_stores import (
    LEASE,
    NOW,
    a_dead_letter,
    an_arrival,
    failing_again,
    identity,
    later,
    sqlite_store,
    the,
)

ONE, TWO, THREE = (identity(a_dead_letter(row)) for row in (1, 2, 3))
UNKNOWN = DeadLetterId("unknown")
OURS, THEIRS = ReplayId("ours"), ReplayId("theirs")
ANY_STATE = frozenset(State)


def actions(dead_letter: DeadLetterId, store: DeadLetterStore) -> list[Action]:
    """Return what its trail says was done to a dead letter."""
    return [entry.action for entry in store.trail(dead_letter)]


def discard(store: DeadLetterStore, ids: list[DeadLetterId], now: Nanoseconds) -> list[DeadLetterId]:
    """Discard dead letters that are open."""
    open_ones = frozenset({State.OPEN})
    return list(store.set_state(ids, State.DISCARDED, only_from=open_ones, who="ann", now=now, why="of no use"))


def fail_again(store: DeadLetterStore, row: int, message_id: str, seconds: float) -> None:
    """Let a dead letter come once more."""
    store.keep([an_arrival(failing_again(a_dead_letter(row), seconds=seconds), message_id)], later(seconds))


@pytest.fixture
def store(store: DeadLetterStore) -> DeadLetterStore:
    """Return a store with three dead letters, which are open."""
    store.keep([an_arrival(a_dead_letter(row), f"m{row}") for row in (1, 2, 3)], NOW)
    return store


def test_a_state_changes_only_from_those_named(store: DeadLetterStore) -> None:
    assert discard(store, [TWO, UNKNOWN, ONE, TWO], later(1)) == [TWO, ONE]
    assert discard(store, [ONE, TWO, THREE], later(2)) == [THREE]
    assert [the(one, store).state for one in (ONE, TWO, THREE)] == [State.DISCARDED] * 3
    restored = store.set_state(
        [ONE, THREE], State.OPEN, only_from=frozenset({State.DISCARDED}), who="bob", now=later(3), why="after all"
    )
    assert restored == [ONE, THREE]
    assert the(ONE, store).state is State.OPEN
    assert the(TWO, store).state is State.DISCARDED


def test_every_change_of_state_is_in_the_trail(store: DeadLetterStore) -> None:
    discard(store, [ONE], later(1))
    store.set_state([ONE], State.OPEN, only_from=ANY_STATE, who="bob", now=later(2), why="after all")
    store.set_state([ONE], State.SUPERSEDED, only_from=ANY_STATE, who="cyn", now=later(3), why="newer")
    discard(store, [ONE], later(4))  # not from superseded
    _, discarded, restored, superseded = store.trail(ONE)
    assert (discarded.action, discarded.who, discarded.at) == (Action.DISCARDED, "ann", later(1))
    assert (discarded.result, discarded.more) == ("of no use", {"before": "open"})
    assert (restored.action, restored.who, restored.more) == (Action.RESTORED, "bob", {"before": "discarded"})
    assert (superseded.action, superseded.result) == (Action.SUPERSEDED, "newer")
    assert actions(TWO, store) == [Action.ARRIVED]


def test_only_sending_makes_a_dead_letter_replayed(store: DeadLetterStore) -> None:
    with pytest.raises(ValueError, match="replayed"):
        store.set_state([ONE], State.REPLAYED, only_from=ANY_STATE, who="ann", now=NOW, why="")
    assert the(ONE, store).state is State.OPEN


def test_a_dead_letter_is_claimed_by_one_replay(store: DeadLetterStore) -> None:
    assert store.claim([TWO, ONE, UNKNOWN, TWO], OURS, NOW, LEASE) == [TWO, ONE]
    assert store.claim([ONE, TWO, THREE], THEIRS, later(1), LEASE) == [THREE]
    claimed = the(ONE, store)
    assert (claimed.state, claimed.claimed_by, claimed.claimed_until) == (State.OPEN, OURS, later(60))
    assert actions(ONE, store) == [Action.ARRIVED]


def test_only_open_dead_letters_are_claimed(store: DeadLetterStore) -> None:
    discard(store, [ONE], later(1))
    store.set_state([TWO], State.SUPERSEDED, only_from=ANY_STATE, who="ann", now=later(1), why="")
    store.claim([THREE], OURS, later(1), LEASE)
    store.sent([THREE], OURS, "ann", later(2))
    assert store.claim([ONE, TWO, THREE], OURS, later(3), LEASE) == []


def test_a_claim_ends_by_itself(store: DeadLetterStore) -> None:
    store.claim([ONE], OURS, NOW, LEASE)
    assert store.claim([ONE], THEIRS, Nanoseconds(later(60) - 1), LEASE) == []
    assert store.claim([ONE], THEIRS, later(60), LEASE) == [ONE]
    assert the(ONE, store).claimed_by == THEIRS
    assert store.claim([ONE], OURS, later(61), LEASE) == []


def test_ones_own_claim_is_renewed(store: DeadLetterStore) -> None:
    store.claim([ONE], OURS, NOW, LEASE)
    assert store.claim([ONE], OURS, later(50), LEASE) == [ONE]
    assert store.claim([ONE], THEIRS, later(109), LEASE) == []
    assert store.claim([ONE], THEIRS, later(110), LEASE) == [ONE]


def test_what_is_sent_is_replayed_and_released(store: DeadLetterStore) -> None:
    store.claim([ONE, TWO], OURS, NOW, LEASE)
    assert store.sent([ONE, UNKNOWN, TWO, ONE], OURS, "ann", later(5)) == [ONE, TWO]
    dead_letter = the(ONE, store)
    assert (dead_letter.state, dead_letter.replays, dead_letter.attempts) == (State.REPLAYED, 1, 1)
    assert (dead_letter.claimed_by, dead_letter.claimed_until) == (None, None)
    replayed = store.trail(ONE)[-1]
    assert (replayed.action, replayed.who, replayed.at) == (Action.REPLAYED, "ann", later(5))
    assert (replayed.result, replayed.more) == ("confirmed by Pub/Sub", {"replay": OURS})
    assert store.sent([ONE], OURS, "ann", later(6)) == []
    assert the(ONE, store).replays == 1


def test_what_was_not_claimed_is_not_sent(store: DeadLetterStore) -> None:
    store.claim([ONE], THEIRS, NOW, LEASE)
    assert store.sent([ONE, TWO], OURS, "ann", later(1)) == []
    assert [the(one, store).state for one in (ONE, TWO)] == [State.OPEN, State.OPEN]
    assert the(ONE, store).claimed_by == THEIRS


def test_an_expired_claim_still_sends_where_no_other_replay_has_taken_it(store: DeadLetterStore) -> None:
    store.claim([ONE, TWO], OURS, NOW, LEASE)
    store.claim([TWO], THEIRS, later(100), LEASE)
    assert store.sent([ONE, TWO], OURS, "ann", later(101)) == [ONE]
    assert the(TWO, store).claimed_by == THEIRS


def test_a_dead_letter_that_fails_again_while_it_is_sent_stays_open(store: DeadLetterStore) -> None:
    store.claim([ONE, TWO], OURS, NOW, LEASE)
    fail_again(store, 1, "m9", seconds=3)
    assert the(ONE, store).claimed_by is None
    assert store.sent([ONE, TWO], OURS, "ann", later(5)) == [TWO]
    dead_letter = the(ONE, store)
    assert (dead_letter.state, dead_letter.attempts) == (State.OPEN, 2)


def test_one_that_failed_again_before_that_was_written_counts_as_replayed_once(store: DeadLetterStore) -> None:
    """Else one that always fails at once would look as if it had never been tried, and be replayed for ever."""
    store.claim([ONE], OURS, NOW, LEASE)
    fail_again(store, 1, "m9", seconds=3)
    store.sent([ONE], OURS, "ann", later(5))
    store.sent([ONE], OURS, "ann", later(6))
    assert the(ONE, store).replays == 1
    assert actions(ONE, store) == [Action.ARRIVED, Action.FAILED_AGAIN, Action.REPLAYED]
    assert store.trail(ONE)[-1].result == "failed again before this was written"
    assert store.claim([ONE], THEIRS, later(7), LEASE) == [ONE]


def test_only_the_replay_that_held_it_counts_one_that_failed_again(store: DeadLetterStore) -> None:
    store.claim([ONE], OURS, NOW, LEASE)
    fail_again(store, 1, "m9", seconds=3)
    store.sent([ONE], THEIRS, "bob", later(4))
    assert the(ONE, store).replays == 0
    store.claim([ONE], THEIRS, later(5), LEASE)
    store.sent([ONE], OURS, "ann", later(6))
    assert the(ONE, store).replays == 0
    assert store.sent([ONE], THEIRS, "bob", later(7)) == [ONE]
    assert the(ONE, store).replays == 1


def test_a_message_that_is_delivered_again_takes_nothing_from_a_replay(store: DeadLetterStore) -> None:
    store.claim([ONE], OURS, NOW, LEASE)
    fail_again(store, 1, "m1", seconds=3)
    assert the(ONE, store).claimed_by == OURS
    assert store.sent([ONE], OURS, "ann", later(5)) == [ONE]


def test_one_that_fails_again_after_it_was_sent_is_open_and_counts(store: DeadLetterStore) -> None:
    for turn in range(1, 4):
        assert store.claim([ONE], OURS, later(turn * 10), LEASE) == [ONE]
        assert store.sent([ONE], OURS, "ann", later(turn * 10 + 1)) == [ONE]
        fail_again(store, 1, f"again{turn}", seconds=turn * 10 + 5)
        dead_letter = the(ONE, store)
        assert (dead_letter.state, dead_letter.replays, dead_letter.attempts) == (State.OPEN, turn, turn + 1)


def test_all_that_a_replay_holds_is_released(store: DeadLetterStore) -> None:
    store.claim([ONE, TWO], OURS, NOW, LEASE)
    store.claim([THREE], THEIRS, NOW, LEASE)
    store.release(OURS)
    assert [the(one, store).claimed_by for one in (ONE, TWO, THREE)] == [None, None, THEIRS]
    assert store.claim([ONE, TWO, THREE], THEIRS, later(1), LEASE) == [ONE, TWO, THREE]
    assert store.sent([ONE], OURS, "ann", later(2)) == []


def test_what_a_replay_could_not_release_is_released_once_it_has_ended(tmp_path: Path) -> None:
    """Its disk was full, say."""
    with sqlite_store(tmp_path / "store.sqlite3") as store:
        store.keep([an_arrival()], NOW)
        one = identity(a_dead_letter())
        with store.living(OURS):
            store.claim([one], OURS, NOW, LEASE)
        assert store.release_dead() == [OURS]
        assert store.claim([one], THEIRS, later(1), LEASE) == [one]


def test_what_a_living_replay_holds_is_not_taken_for_a_dead_ones(store: DeadLetterStore) -> None:
    with store.living(OURS):
        store.claim([ONE], OURS, NOW, LEASE)
        store.claim([TWO], THEIRS, NOW, LEASE)  # it is not known whether this one lives
        assert store.release_dead() == []
        assert [the(one, store).claimed_by for one in (ONE, TWO)] == [OURS, THEIRS]
        store.release(OURS)
    assert store.release_dead() == []  # it has ended as it should


def test_letting_go_of_one_that_failed_again_ends_its_counting(store: DeadLetterStore) -> None:
    store.claim([ONE], OURS, NOW, LEASE)
    fail_again(store, 1, "m9", seconds=3)
    store.release(OURS)
    store.sent([ONE], OURS, "ann", later(5))
    assert the(ONE, store).replays == 0


def test_what_a_replay_holds_is_left_as_it_is(store: DeadLetterStore) -> None:
    store.claim([ONE], OURS, NOW, LEASE)
    assert discard(store, [ONE, TWO], later(59)) == [TWO]
    assert the(ONE, store).state is State.OPEN
    assert discard(store, [ONE], later(60)) == [ONE]  # the claim has run out
    assert the(ONE, store).claimed_by is None
    assert store.sent([ONE], OURS, "ann", later(61)) == []
    assert the(ONE, store).state is State.DISCARDED


def test_ten_thousand_dead_letters_are_claimed_and_sent(store: DeadLetterStore) -> None:
    many = [a_dead_letter(row) for row in range(10, 10_010)]
    store.keep([an_arrival(one, one.key) for one in many], NOW)
    ids = [identity(one) for one in many]
    assert store.claim(ids, OURS, NOW, LEASE) == ids
    assert store.claim(ids, THEIRS, NOW, LEASE) == []
    assert store.sent(ids, OURS, "ann", later(1)) == ids
    assert store.count(Selection(states=frozenset({State.REPLAYED}))) == 10_000


def test_of_several_that_claim_at_once_each_dead_letter_goes_to_one(store: DeadLetterStore) -> None:
    many = [a_dead_letter(row) for row in range(10, 130)]
    store.keep([an_arrival(one, one.key) for one in many], NOW)
    ids = [identity(one) for one in many]

    def claim_all(name: int) -> list[DeadLetterId]:
        order = ids[::-1] if name % 2 else ids
        some = [order[start : start + 8] for start in range(0, len(order), 8)]
        return [got for few in some for got in store.claim(few, ReplayId(f"r{name}"), NOW, LEASE)]

    with ThreadPoolExecutor(4) as threads:
        got = [one for found in threads.map(claim_all, range(4)) for one in found]
    assert sorted(got) == sorted(ids)


def test_an_edited_copy_takes_the_place_of_its_original(store: DeadLetterStore) -> None:
    copy = an_edit()
    made = store.add_edit(ONE, copy, diff="- 1\n+ 2", why="typo", who="ann", now=later(9))
    assert made == the(identity(copy), store)
    assert made.dead_letter == copy
    assert (made.state, made.attempts, made.replays) == (State.OPEN, 0, 0)
    assert (made.edit_of, made.edited_as, made.arrived_at) == (ONE, None, later(9))
    original = the(ONE, store)
    assert (original.state, original.edited_as, original.edit_of) == (State.SUPERSEDED, made.id, None)
    assert original.dead_letter == a_dead_letter(1)
    for dead_letter, more in ((ONE, {"edited_as": made.id}), (made.id, {"edit_of": ONE})):
        edited = store.trail(dead_letter)[-1]
        assert (edited.action, edited.who, edited.at) == (Action.EDITED, "ann", later(9))
        assert edited.more == more | {"diff": "- 1\n+ 2", "why": "typo"}


def test_an_edit_that_is_written_needs_no_other_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(_database: DeadLetterDatabase) -> NoReturn:
        raise TransientError("no connection is left")

    with sqlite_store(tmp_path / "letters.db") as store:
        store.keep([an_arrival(a_dead_letter(1), "m1")], NOW)
        with monkeypatch.context() as patched:
            patched.setattr(DeadLetterDatabase, "reading", unavailable)
            made = store.add_edit(ONE, an_edit(), diff="- 1", why="typo", who="ann", now=later(9))
        assert made == the(made.id, store)


def test_an_edited_copy_is_claimed_sent_and_fails_as_any_dead_letter(store: DeadLetterStore) -> None:
    copy = an_edit()
    made = store.add_edit(ONE, copy, diff="", why="", who="ann", now=later(9)).id
    assert store.claim([ONE, made], OURS, later(10), LEASE) == [made]
    assert store.sent([made], OURS, "ann", later(11)) == [made]
    store.keep([an_arrival(failing_again(copy, seconds=20), "m9")], later(20))
    failed = the(made, store)
    assert (failed.state, failed.attempts, failed.replays, failed.edit_of) == (State.OPEN, 1, 1, ONE)


def test_a_copy_can_be_edited_in_its_turn(store: DeadLetterStore) -> None:
    first = store.add_edit(ONE, an_edit(), diff="", why="", who="ann", now=later(9))
    second = store.add_edit(first.id, an_edit(2), diff="", why="", who="ann", now=later(10))
    assert (second.edit_of, the(first.id, store).edited_as) == (first.id, second.id)
    assert the(first.id, store).state is State.SUPERSEDED


def test_there_is_one_copy_of_a_dead_letter(store: DeadLetterStore) -> None:
    store.add_edit(ONE, an_edit(), diff="", why="", who="ann", now=later(9))
    with pytest.raises(ValueError, match="edited copy already"):
        store.add_edit(ONE, an_edit(2), diff="", why="", who="ann", now=later(10))
    assert store.count(Selection()) == 4


def test_no_copy_of_what_is_not_there_or_held_or_the_same(store: DeadLetterStore) -> None:
    with pytest.raises(ValueError, match="no dead letter unknown"):
        store.add_edit(UNKNOWN, an_edit(), diff="", why="", who="ann", now=NOW)
    store.claim([ONE], OURS, NOW, LEASE)
    with pytest.raises(ValueError, match="claimed by the replay ours"):
        store.add_edit(ONE, an_edit(), diff="", why="", who="ann", now=later(59))
    with pytest.raises(ValueError, match="the same as dead letter"):
        store.add_edit(TWO, a_dead_letter(3), diff="", why="", who="ann", now=NOW)
    assert store.count(Selection(states=frozenset({State.OPEN}))) == 3
    assert [actions(one, store) for one in (ONE, TWO, THREE)] == [[Action.ARRIVED]] * 3
    assert store.add_edit(ONE, an_edit(), diff="", why="", who="ann", now=later(60)).edit_of == ONE
    assert store.sent([ONE], OURS, "ann", later(61)) == []


def test_nothing_is_done_to_no_dead_letters(store: DeadLetterStore) -> None:
    assert store.keep([], NOW) == Kept(new=0, again=0, seen=0)
    assert store.claim([], OURS, NOW, LEASE) == []
    assert store.sent([], OURS, "ann", NOW) == []
    assert discard(store, [], NOW) == []
    store.note([], Action.EXPORTED, "ann", NOW)
    store.release(OURS)


def test_a_lease_is_exact(store: DeadLetterStore) -> None:
    store.claim([ONE], OURS, Nanoseconds(NOW + 1), timedelta(microseconds=3))
    assert the(ONE, store).claimed_until == NOW + 3001


def an_edit(revision: int = 1) -> DeadLetter:
    """Return dead letter one, edited: the same row, the next revision."""
    dead_letter = a_dead_letter(1)
    sequence = dead_letter.sequence[:-1] + str(revision)
    return replace(dead_letter, data=dead_letter.data + b" ", sequence=sequence, identity="")
