"""What a DeadLetterStore promises of what it keeps: on the fake, in a file of SQLite and in PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from services.dead_letter.adapters.store import store_queries
from services.dead_letter.core.dead_letters import COLLECTOR, Action, DeadLetterId, State
from services.dead_letter.core.groups import group_of
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import TRAIL_SHOWN, DeadLetterStore, Kept
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from tests.contract.dead_letter_stores import (
    FAILED,
    NOW,
    SECOND,
    a_dead_letter,
    an_arrival,
    failing_again,
    identity,
    kept,
    later,
    put,
    the,
)


def test_a_dead_letter_is_kept_as_it_came(store: DeadLetterStore) -> None:
    dead_letter = a_dead_letter(data=bytes(range(256)), attributes={"b": "ü", "a": "\x00\U0001f600"})
    assert store.keep([an_arrival(dead_letter)], NOW) == Kept(new=1, again=0, seen=0)
    stored = the(identity(dead_letter), store)
    assert stored.dead_letter == dead_letter
    assert (stored.state, stored.attempts, stored.replays) == (State.OPEN, 1, 0)
    assert (stored.first_failed_at, stored.last_failed_at, stored.arrived_at) == (FAILED, FAILED, NOW)
    assert stored.group == group_of(dead_letter.reason, dead_letter.table, dead_letter.detail)
    assert (stored.edit_of, stored.edited_as, stored.claimed_by, stored.claimed_until) == (None, None, None, None)


@pytest.mark.parametrize("text", ["\x00", "\x01", "a\x00\x01\x02\x01\x01b", "é\x00", "'; DROP TABLE letters --", ""])
def test_any_text_is_kept(store: DeadLetterStore, text: str) -> None:
    sent = a_dead_letter(table=text, key=text, detail=text, ordering_key=text, failed_in=text, attributes={text: text})
    assert kept(store, sent, message_id=text).dead_letter == sent
    assert store.count(Selection(tables=frozenset({text}), keys=frozenset({text}))) == 1


def test_a_dead_letter_of_ten_megabytes_is_kept(store: DeadLetterStore) -> None:
    dead_letter = a_dead_letter(data=bytes(10_000_000))
    assert kept(store, dead_letter).dead_letter == dead_letter


def test_what_could_not_be_kept_of_a_dead_letter_is_reported(store: DeadLetterStore) -> None:
    dead_letter = a_dead_letter(data=b'{"id":"1"}', payload_bytes=12_000_000_000, reason=Reason.TOO_LARGE)
    assert kept(store, dead_letter).without_payload
    (line,) = store.find(Selection(), limit=9).dead_letters
    assert (line.size, line.payload_bytes, line.without_payload) == (10, 12_000_000_000, True)


@pytest.mark.parametrize("failed_at", [-(10**20), 10**20])
def test_a_time_that_no_clock_shows_is_the_nearest_that_can_be_kept(store: DeadLetterStore, failed_at: int) -> None:
    stored = kept(store, replace(a_dead_letter(), failed_at=Nanoseconds(failed_at)))
    assert abs(stored.last_failed_at) >= (1 << 63) - 1
    assert store.count(Selection(failed_from=Nanoseconds(-(10**21)), failed_until=Nanoseconds(10**21))) in (0, 1)


def test_a_message_that_is_delivered_again_changes_nothing(store: DeadLetterStore) -> None:
    before = kept(store, a_dead_letter())
    again = an_arrival(failing_again(a_dead_letter(), seconds=60, detail="another"))
    assert store.keep([again], later(60)) == Kept(new=0, again=0, seen=1)
    assert store.get(identity(a_dead_letter())) == before
    assert len(store.trail(identity(a_dead_letter()))) == 1


def test_the_id_of_a_message_belongs_to_the_dead_letter_that_it_brought(store: DeadLetterStore) -> None:
    """The emulator numbers messages from 1 after each start: no dead letter is lost by that."""
    store.keep([an_arrival(a_dead_letter(1), "7")], NOW)
    assert store.keep([an_arrival(a_dead_letter(2), "7")], NOW) == Kept(new=1, again=0, seen=0)
    assert store.count(Selection()) == 2


def test_the_same_dead_letter_in_another_message_is_one_more_attempt(store: DeadLetterStore) -> None:
    store.keep([an_arrival(message_id="m1")], NOW)
    again = failing_again(a_dead_letter(), seconds=60, reason=Reason.REFUSED_BY_BIGQUERY, detail="d", failed_in="there")
    again = replace(again, attributes={"replay_of": "x"}, ordering_key="elsewhere")
    assert store.keep([an_arrival(again, "m2")], later(61)) == Kept(new=0, again=1, seen=0)
    stored = the(identity(again), store)
    assert stored.attempts == 2
    assert (stored.first_failed_at, stored.last_failed_at) == (FAILED, FAILED + 60 * SECOND)
    assert stored.arrived_at == NOW
    newest = replace(a_dead_letter(), reason=again.reason, detail="d", failed_in="there", failed_at=again.failed_at)
    assert stored.dead_letter == newest  # bytes, attributes and ordering key stay those of its first arrival
    assert stored.group == group_of(Reason.REFUSED_BY_BIGQUERY, "planes", "d")


def test_an_older_failure_that_comes_late_does_not_hide_the_newest(store: DeadLetterStore) -> None:
    newest = failing_again(a_dead_letter(), seconds=60, detail="newest")
    store.keep([an_arrival(newest, "m2")], NOW)
    store.keep([an_arrival(a_dead_letter(detail="older"), "m1")], NOW)
    stored = the(identity(newest), store)
    assert stored.dead_letter.detail == "newest"
    assert (stored.first_failed_at, stored.last_failed_at, stored.attempts) == (FAILED, FAILED + 60 * SECOND, 2)


def test_the_same_dead_letter_several_times_at_once_has_the_attributes_of_the_first(store: DeadLetterStore) -> None:
    arrivals = [an_arrival(a_dead_letter(attributes={"n": name}), name) for name in ("m1", "m2", "m1", "m3")]
    assert store.keep(arrivals, NOW) == Kept(new=1, again=2, seen=1)
    stored = the(identity(a_dead_letter()), store)
    assert (stored.attempts, stored.dead_letter.attributes) == (3, {"n": "m1"})
    assert store.count(Selection()) == 1


def test_many_at_once(store: DeadLetterStore) -> None:
    arrivals = [an_arrival(a_dead_letter(key), f"m{key}") for key in range(1203)]
    assert store.keep(arrivals, NOW) == Kept(new=1203, again=0, seen=0)
    assert store.keep(arrivals, NOW) == Kept(new=0, again=0, seen=1203)
    assert store.count(Selection()) == 1203


def test_of_several_that_keep_the_same_at_once_none_loses_or_repeats_any(store: DeadLetterStore) -> None:
    def keep(collector: int) -> Kept:
        rows = range(40) if collector % 2 else range(39, -1, -1)
        found = [store.keep([an_arrival(a_dead_letter(row), f"{collector}")], NOW) for row in rows]
        some = [an_arrival(a_dead_letter(row), f"{collector}.") for row in rows]
        found.append(store.keep(some, NOW))
        return Kept(new=sum(one.new for one in found), again=sum(one.again for one in found), seen=0)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(keep, range(4)))
    assert sum(one.new for one in results) == 40
    assert sum(one.again for one in results) == 7 * 40
    dead_letters = list(store.in_replay_order(Selection()))
    assert [one.attempts for one in dead_letters] == [8] * 40
    assert {len(store.trail(one.id)) for one in dead_letters} == {8}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.REPLAYED, State.OPEN),
        (State.SUPERSEDED, State.OPEN),
        (State.DISCARDED, State.DISCARDED),
    ],
)
def test_a_dead_letter_that_fails_again_opens_unless_discarded(
    store: DeadLetterStore, before: State, after: State
) -> None:
    dead_letter = one_in(before, store)
    assert store.keep([an_arrival(failing_again(a_dead_letter(), seconds=90), "m2")], later(90)).again == 1
    stored = the(dead_letter, store)
    assert (stored.state, stored.attempts) == (after, 2)
    assert store.trail(dead_letter)[-1].action is Action.FAILED_AGAIN


def test_the_trail_of_arrivals(store: DeadLetterStore) -> None:
    dead_letter = identity(a_dead_letter())
    store.keep([an_arrival(message_id="m1")], NOW)
    store.keep([an_arrival(failing_again(a_dead_letter(), seconds=9, reason=Reason.TOO_LARGE), "m2")], later(9))
    first, second = store.trail(dead_letter)
    assert (first.dead_letter, first.at, first.who, first.action) == (dead_letter, NOW, COLLECTOR, Action.ARRIVED)
    assert first.more == {"message_id": "m1", "reason": "value_does_not_fit"}
    assert (second.at, second.action, second.result) == (later(9), Action.FAILED_AGAIN, "open")
    assert second.more == {"message_id": "m2", "reason": "too_large"}
    assert store.trail(DeadLetterId("unknown")) == []


def test_a_dead_letter_is_found_by_how_its_id_begins(store: DeadLetterStore) -> None:
    one, two = a_dead_letter(1, identity="abcdefgh1111"), a_dead_letter(2, identity="abcdefgh2222")
    store.keep([an_arrival(one), an_arrival(two)], NOW)
    for asked, found in (
        ("abcdefgh1111", one),
        ("abcdefgh1", one),
        ("abcdefgh2", two),
        ("abcdefgh", None),  # two begin so
        ("abcdefg", None),
        ("abcdefgh3", None),
        ("", None),
        ("abcdefgh%", None),
        ("abcdefgh_111", None),
    ):
        stored = store.get(DeadLetterId(asked))
        assert (None if stored is None else stored.dead_letter) == found, asked


def test_an_id_is_itself_though_others_begin_with_it(store: DeadLetterStore) -> None:
    both = [a_dead_letter(1, identity="abcdefgh"), a_dead_letter(2, identity="abcdefghi")]
    store.keep([an_arrival(one) for one in both], NOW)
    stored = the(DeadLetterId("abcdefgh"), store)
    assert stored.dead_letter.key == "[1]"
    assert store.get(DeadLetterId("abc")) is None


def test_notes(store: DeadLetterStore) -> None:
    store.keep([an_arrival(a_dead_letter(1)), an_arrival(a_dead_letter(2))], NOW)
    one, two = identity(a_dead_letter(1)), identity(a_dead_letter(2))
    before = store.get(one)
    store.note([one, two, one, DeadLetterId("unknown")], Action.VALUES_SHOWN, "eve", later(1), "in a browser")
    for dead_letter in (one, two):
        arrived, shown = store.trail(dead_letter)
        assert arrived.action is Action.ARRIVED
        assert (shown.action, shown.who, shown.at) == (Action.VALUES_SHOWN, "eve", later(1))
        assert (shown.result, shown.more) == ("in a browser", {})
    assert store.get(one) == before


def test_old_dead_letters_are_forgotten_unless_they_are_open(store: DeadLetterStore) -> None:
    for key, state in enumerate(State):
        one_in(state, store, a_dead_letter(key))
    assert store.forget(before=later(1000), limit=100) == 3
    assert [line.state for line in store.find(Selection(), limit=9).dead_letters] == [State.OPEN]
    assert store.forget(before=later(1000), limit=100) == 0


def test_a_dead_letter_is_forgotten_with_all_of_it_and_may_come_again(store: DeadLetterStore) -> None:
    dead_letter = one_in(State.DISCARDED, store)
    assert store.forget(before=later(1000), limit=1) == 1
    assert store.get(dead_letter) is None
    assert store.trail(dead_letter) == []
    assert store.stats().payload_bytes == 0
    assert store.keep([an_arrival()], later(1001)) == Kept(new=1, again=0, seen=0)
    stored = the(dead_letter, store)
    assert (stored.state, stored.attempts) == (State.OPEN, 1)


@pytest.mark.parametrize("table", ["planes", "a\x00b", "a\x01b"])
def test_a_walk_in_the_order_of_a_replay_finds_all_whatever_the_table_is_called(
    store: DeadLetterStore, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(store_queries, "_ORDERED_AT_A_TIME", 2)
    dead_letters = [a_dead_letter(number, table=table) for number in range(5)]
    store.keep([an_arrival(one) for one in dead_letters], NOW)
    assert {one.id for one in store.in_replay_order(Selection())} == set(map(identity, dead_letters))


def test_what_was_edited_may_be_edited_again_once_its_copy_is_forgotten(store: DeadLetterStore) -> None:
    original = one_in(State.OPEN, store)
    copy = store.add_edit(original, a_dead_letter(2), diff="", why="x", who="ann", now=later(1))
    for one, state in ((copy.id, State.DISCARDED), (original, State.OPEN)):
        assert store.set_state([one], state, only_from=frozenset(State), who="ann", now=later(2), why="x") == [one]
    assert store.forget(before=later(1000), limit=9) == 1
    assert the(original, store).edited_as is None
    store.add_edit(original, a_dead_letter(3), diff="", why="x", who="ann", now=later(1001))


@pytest.mark.parametrize("state", [State.REPLAYED, State.DISCARDED, State.SUPERSEDED])
def test_what_was_decided_while_it_was_edited_stands(store: DeadLetterStore, state: State) -> None:
    original = one_in(state, store)
    trail = store.trail(original)
    with pytest.raises(ValueError, match=f"is {state.value} by now: restore it first"):
        store.add_edit(original, a_dead_letter(2), diff="", why="x", who="ann", now=later(9))
    assert the(original, store).state is state
    assert store.trail(original) == trail
    assert store.count(Selection()) == 1


def test_of_a_dead_letter_that_comes_again_and_again_the_newest_failures_are_shown_and_all_else(
    store: DeadLetterStore,
) -> None:
    discarded, again = one_in(State.DISCARDED, store), TRAIL_SHOWN + 300
    for first in range(0, again, 100):
        arrivals = [an_arrival(a_dead_letter(), message_id=f"again {first + number}") for number in range(100)]
        assert store.keep(arrivals, later(first)).seen == 0
        assert store.keep([*arrivals[::7], *arrivals[:2]], later(first)) == Kept(new=0, again=0, seen=17)
    for number in range(9):
        store.note([discarded], (Action.VALUES_SHOWN, Action.EXPORTED)[number % 2], "eve", later(600 + number))
    assert the(discarded, store).attempts == again + 1
    arrived, decided, *repeated = store.trail(discarded)
    assert [one.action for one in (arrived, decided, repeated[-1])] == [
        Action.ARRIVED,
        Action.DISCARDED,
        Action.VALUES_SHOWN,
    ]
    shown = [f"again {n}" for n in range(again - TRAIL_SHOWN + 9, again)]
    assert [one.more["message_id"] for one in repeated[:-9]] == shown


def test_it_is_known_of_whose_replay_others_have_failed_and_when(store: DeadLetterStore) -> None:
    def of_replay(key: int, replayed: str | None, seconds: float = 0) -> DeadLetter:
        return a_dead_letter(key, seconds=seconds, attributes={} if replayed is None else {REPLAY_OF: replayed})

    sent = [DeadLetterId(f"{number:032}") for number in range(1_200)]
    first = [of_replay(1, sent[3], 5), of_replay(2, sent[3], 5), of_replay(3, sent[1_100], 1), of_replay(4, None, 9)]
    store.keep([an_arrival(one) for one in first], NOW)

    def back(since: float) -> list[DeadLetterId]:
        return sorted(store.brought_back(sent, Nanoseconds(FAILED + int(since * SECOND))))

    assert (back(1), back(2), back(6)) == ([sent[3], sent[1_100]], [sent[3]], [])
    again = [failing_again(one, seconds=7, attributes={REPLAY_OF: sent[9]}) for one in first[2:]]
    store.keep([an_arrival(one, message_id="m2") for one in again], NOW)
    assert (back(1), back(6)) == ([sent[3], sent[9]], [sent[9]])
    assert store.brought_back([], FAILED) == set()


def test_where_nothing_arrives_nothing_is_kept(store: DeadLetterStore) -> None:
    assert store.keep([], NOW) == Kept(new=0, again=0, seen=0)


def test_a_dead_letter_is_kept_as_long_as_its_last_failure_and_its_last_action_ask(store: DeadLetterStore) -> None:
    failed = one_in(State.DISCARDED, store, a_dead_letter(1, seconds=500))
    shown = one_in(State.DISCARDED, store, a_dead_letter(2))
    store.note([shown], Action.VALUES_SHOWN, "eve", later(600))
    assert store.forget(before=later(400), limit=9) == 0
    assert store.forget(before=later(501), limit=9) == 1
    assert store.get(failed) is None
    assert store.forget(before=later(600), limit=9) == 0
    assert store.forget(before=later(601), limit=9) == 1


def test_no_more_are_forgotten_at_once_than_asked_for(store: DeadLetterStore) -> None:
    for key in range(5):
        one_in(State.DISCARDED, store, a_dead_letter(key))
    assert [store.forget(before=later(1000), limit=2) for _ in range(4)] == [2, 2, 1, 0]


def one_in(state: State, store: DeadLetterStore, dead_letter: DeadLetter | None = None) -> DeadLetterId:
    """Keep a dead letter that arrived at `NOW`, and bring it into a state."""
    stored = kept(store, dead_letter or a_dead_letter())
    put(store, stored.dead_letter, state)
    return stored.id
