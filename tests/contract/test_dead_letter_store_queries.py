"""What a DeadLetterStore promises of questions: lists, the order of replays, groups, numbers. On all three."""

from collections.abc import Iterable
from typing import Any

import pytest

from services.dead_letter.core.dead_letters import (
    DeadLetterId,
    DeadLetterLine,
    DeadLetterStats,
    ReplayId,
    State,
    TimeSpans,
)
from services.dead_letter.core.groups import group_of, normalised
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterStore
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from tests.contract.dead_letter_stores import (
    FAILED,
    LEASE,
    NOW,
    SECOND,
    a_dead_letter,
    an_arrival,
    failing_again,
    identity,
    later,
    of_a_message,
    put,
    the,
)
from tests.fakes.dead_letter_store import line_of


def keep(store: DeadLetterStore, *dead_letters: DeadLetter) -> None:
    """Keep dead letters, each in a message of its own."""
    store.keep([an_arrival(one, f"{one.identity}-{one.failed_at}") for one in dead_letters], NOW)


def keys(lines: Iterable[DeadLetterLine]) -> list[str]:
    """Return the keys of dead letters."""
    return [line.key for line in lines]


def all_pages(store: DeadLetterStore, limit: int, selection: Selection | None = None) -> list[DeadLetterLine]:
    """Return all dead letters, page by page."""
    found: list[DeadLetterLine] = []
    after = None
    while True:
        page = store.find(selection or Selection(), limit=limit, after=after)
        found += page.dead_letters
        after = page.after
        if after is None:
            return found
        assert len(page.dead_letters) == limit


def test_lists_show_all_but_the_bytes(store: DeadLetterStore) -> None:
    dead_letter = a_dead_letter()
    keep(store, dead_letter)
    store.claim([identity(dead_letter)], ReplayId("r"), NOW, LEASE)
    stored = the(identity(dead_letter), store)
    assert list(store.find(Selection(), limit=9).dead_letters) == [line_of(stored)]
    assert stored.size == len(dead_letter.data)


def test_those_that_failed_last_come_first(store: DeadLetterStore) -> None:
    keep(store, *(a_dead_letter(row, seconds=seconds) for row, seconds in ((1, 5), (2, 9), (3, -7), (4, 8))))
    assert keys(store.find(Selection(), limit=9).dead_letters) == ["[2]", "[4]", "[1]", "[3]"]
    keep(store, failing_again(a_dead_letter(3), seconds=8.5))
    assert keys(store.find(Selection(), limit=9).dead_letters) == ["[2]", "[3]", "[4]", "[1]"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 100])
def test_pages_hold_every_dead_letter_once(store: DeadLetterStore, limit: int) -> None:
    keep(store, *(a_dead_letter(row, seconds=row // 3) for row in range(6)))  # three fail in one instant, twice
    found = all_pages(store, limit)
    assert len(found) == 6
    assert found == list(store.find(Selection(), limit=100).dead_letters)
    assert [line.last_failed_at for line in found] == [FAILED + SECOND] * 3 + [FAILED] * 3


def test_new_dead_letters_meanwhile_neither_repeat_nor_hide_what_was_there(store: DeadLetterStore) -> None:
    keep(store, *(a_dead_letter(row) for row in range(4)))
    page = store.find(Selection(), limit=2)
    keep(store, a_dead_letter(10, seconds=9), a_dead_letter(11, seconds=-9), a_dead_letter(12))
    rest = store.find(Selection(), limit=9, after=page.after)
    assert sorted(keys([*page.dead_letters, *rest.dead_letters])) == ["[0]", "[11]", "[1]", "[2]", "[3]"]


def test_a_page_ends_though_what_it_ended_with_is_forgotten(store: DeadLetterStore) -> None:
    dead_letters = [a_dead_letter(row, seconds=-row) for row in range(4)]
    keep(store, *dead_letters)
    page = store.find(Selection(), limit=2)
    put(store, dead_letters[1], State.DISCARDED)
    assert store.forget(before=later(100), limit=9) == 1
    assert keys(store.find(Selection(), limit=2, after=page.after).dead_letters) == ["[2]", "[3]"]


@pytest.mark.parametrize("after", ["", "x", "1", "1.", "1.2.3", ".", "1.2 ", "--1.2", "1.٢", f"{10**30}.1"])
def test_what_no_page_ended_with_is_refused(store: DeadLetterStore, after: str) -> None:
    with pytest.raises(ValueError, match="not what a page ended with"):
        store.find(Selection(), limit=2, after=after)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_of_nothing_is_refused(store: DeadLetterStore, limit: int) -> None:
    with pytest.raises(ValueError, match="one dead letter or more"):
        store.find(Selection(), limit=limit)


def test_a_selection_is_what_holds_for_all_of_it(store: DeadLetterStore) -> None:
    dead_letters = a_few_dead_letters()
    keep(store, *dead_letters)
    put(store, dead_letters[1], State.DISCARDED)
    put(store, dead_letters[2], State.REPLAYED)
    one, two, three, four, five, message = dead_letters
    some = frozenset[Any]
    chosen: list[tuple[Selection, list[DeadLetter]]] = [
        (Selection(), dead_letters),
        (Selection(ids=some({identity(one), identity(message), "unknown"})), [one, message]),
        (Selection(tables=some({"pilots"})), [four, five]),
        (Selection(tables=some({""})), [message]),
        (Selection(tables=some({"pilots", "planes"})), [one, two, three, four, five]),
        (Selection(reasons=some({Reason.BAD_CHANGE, Reason.UNDECODABLE})), [five, message]),
        (Selection(keys=some({"[1]"})), [one, four]),
        (Selection(keys=some({"[1]", "[3]"}), tables=some({"planes"})), [one, three]),
        (Selection(states=some({State.OPEN})), [one, four, five, message]),
        (Selection(states=some({State.DISCARDED, State.REPLAYED})), [two, three]),
        (Selection(states=some({State.SUPERSEDED})), []),
        (Selection(groups=some({group_of(one.reason, one.table, one.detail)})), [one, two, three]),
        (Selection(failed_from=Nanoseconds(FAILED + 2 * SECOND)), [three, four, five, message]),
        (Selection(failed_until=Nanoseconds(FAILED + 2 * SECOND)), [one, two]),
        (Selection(failed_from=two.failed_at, failed_until=Nanoseconds(two.failed_at + 1)), [two]),
        (Selection(failed_from=two.failed_at, failed_until=two.failed_at), []),
        (Selection(sequence_from=str(four_sections(2))), [two, three, four, five]),
        (Selection(sequence_until=str(four_sections(3))), [one, two]),
        (Selection(sequence_from=str(four_sections(2)), sequence_until=str(four_sections(2, 1))), [two]),
        (Selection(tables=some({"pilots"}), reasons=some({Reason.TOO_LARGE})), []),
    ]
    for selection, expected in chosen:
        ids = {identity(each) for each in expected}
        assert {line.id for line in store.find(selection, limit=99).dead_letters} == ids, selection
        assert {each.id for each in store.in_replay_order(selection)} == ids, selection
        assert store.count(selection) == len(ids), selection
        assert sum(group.dead_letters for group in store.groups(selection, limit=99)) == len(ids), selection
        assert {line.id for line in all_pages(store, 2, selection)} == ids, selection


def test_a_selection_may_name_ten_thousand_dead_letters(store: DeadLetterStore) -> None:
    keep(store, a_dead_letter())
    others = (DeadLetterId(str(number)) for number in range(9_999))
    selection = Selection(ids=frozenset({identity(a_dead_letter()), *others}), states=frozenset(State))
    assert store.count(selection) == len(store.find(selection, limit=5).dead_letters) == 1


def test_replays_go_by_table_key_and_sequence(store: DeadLetterStore) -> None:
    ordered = [
        of_a_message(b"a", seconds=3),
        of_a_message(b"b", seconds=4),
        a_dead_letter(7, table="Zebras"),
        a_dead_letter(10, 1, table="planes"),  # a key is a text: "0" is before "]"
        a_dead_letter(1, 9, table="planes"),
        a_dead_letter(1, 10, table="planes"),
        a_dead_letter(1, 255, table="planes"),
        a_dead_letter(1, 256, table="planes"),
        a_dead_letter(2, 1, table="planes"),
        a_dead_letter(1, 1, table="räder"),
        a_dead_letter(1, 1, table="\U0001f6eb"),
    ]
    keep(store, *ordered[::2], *ordered[1::2])
    assert [one.dead_letter for one in store.in_replay_order(Selection())] == ordered


def test_sequences_are_compared_as_numbers_however_they_are_written(store: DeadLetterStore) -> None:
    written = ["1/f", "0002/0", "A", "a/1", "10/0/0/0"]
    keep(store, a_dead_letter(sequence="no number"), *(a_dead_letter(sequence=text) for text in reversed(written)))
    assert [one.dead_letter.sequence for one in store.in_replay_order(Selection())] == ["no number", *written]
    assert store.count(Selection(sequence_from=str(four_sections(0)))) == len(written)


def test_dead_letters_of_one_place_go_by_their_time(store: DeadLetterStore) -> None:
    dead_letters = [of_a_message(bytes([n]), seconds=-n) for n in range(5)]
    keep(store, *dead_letters)
    assert [one.dead_letter for one in store.in_replay_order(Selection())] == dead_letters[::-1]


def test_a_walk_sees_each_dead_letter_as_it_is_when_it_comes_to_it(store: DeadLetterStore) -> None:
    keep(store, *(a_dead_letter(row, data=bytes(5_000_000)) for row in range(4)))  # too large to be read together
    walk = store.in_replay_order(Selection(states=frozenset({State.OPEN})))
    assert next(walk).dead_letter.key == "[0]"
    put(store, a_dead_letter(2, data=bytes(5_000_000)), State.DISCARDED)
    keep(store, failing_again(a_dead_letter(3, data=bytes(5_000_000)), seconds=9, detail="newest"))
    assert [(one.dead_letter.key, one.dead_letter.detail == "newest") for one in walk] == [
        ("[1]", False),
        ("[3]", True),
    ]


def test_the_store_is_free_while_a_walk_stands_still(store: DeadLetterStore) -> None:
    keep(store, *(a_dead_letter(row) for row in range(3)))
    walk = store.in_replay_order(Selection())
    next(walk)
    keep(store, a_dead_letter(9))
    put(store, a_dead_letter(9), State.DISCARDED)
    assert store.forget(before=later(100), limit=9) == 1
    assert len(list(walk)) == 2


def test_a_walk_through_many(store: DeadLetterStore) -> None:
    keep(store, *(a_dead_letter(row % 7, row) for row in range(12_345)))
    found = [(one.dead_letter.key, one.dead_letter.sequence) for one in store.in_replay_order(Selection())]
    assert len(set(found)) == 12_345
    assert found == sorted(found)


def test_groups_are_dead_letters_that_fail_for_one_cause(store: DeadLetterStore) -> None:
    keep(
        store,
        a_dead_letter(1, detail="12 bytes are too many", seconds=2),
        a_dead_letter(2, detail="15 bytes are too many", seconds=9),
        a_dead_letter(3, detail="77 bytes are too many", seconds=1),
        a_dead_letter(4, detail="12 bytes are too many", table="pilots"),
        a_dead_letter(5, detail="12 bytes are too few", seconds=4),
        a_dead_letter(6, detail="9 bytes are too few", seconds=3),
    )
    put(store, a_dead_letter(3, detail="77 bytes are too many"), State.DISCARDED)
    many, few, of_pilots = store.groups(Selection(), limit=9)
    assert many.id == group_of(Reason.VALUE_DOES_NOT_FIT, "planes", "1 bytes are too many")
    assert (many.reason, many.table) == (Reason.VALUE_DOES_NOT_FIT, "planes")
    assert many.detail == normalised("12 bytes are too many") == "<number> bytes are too many"
    assert (many.dead_letters, many.by_state) == (3, {State.OPEN: 2, State.DISCARDED: 1})
    assert (many.first_failed_at, many.last_failed_at) == (FAILED + SECOND, FAILED + 9 * SECOND)
    assert many.sample == identity(a_dead_letter(2, detail="15 bytes are too many"))
    assert (few.dead_letters, few.by_state, few.sample) == (2, {State.OPEN: 2}, identity(a_dead_letter(5)))
    assert of_pilots.table == "pilots"
    assert [group.id for group in store.groups(Selection(), limit=2)] == [many.id, few.id]


def test_failures_are_counted_by_group_and_span(store: DeadLetterStore) -> None:
    keep(
        store,
        *(a_dead_letter(row, seconds=seconds) for row, seconds in enumerate((0, 1, 9, 11, 29, 30))),
        a_dead_letter(7, table="pilots", seconds=15),
        a_dead_letter(8, table="pilots", seconds=31),
        a_dead_letter(9, table="crews", seconds=31),
    )
    put(store, a_dead_letter(1, seconds=1), State.DISCARDED)
    spans = TimeSpans(since=Nanoseconds(FAILED + SECOND), length=10 * SECOND, count=3)
    counts = {
        group.table: store.failures(Selection(), spans).get(group.id) for group in store.groups(Selection(), limit=9)
    }
    assert counts == {"planes": [2, 1, 2], "pilots": [0, 1, 0], "crews": None}
    still_open = store.failures(Selection(tables=frozenset({"planes"}), states=frozenset({State.OPEN})), spans)
    assert list(still_open.values()) == [[1, 1, 2]]


def test_groups_of_a_selection_know_nothing_of_others(store: DeadLetterStore) -> None:
    keep(store, a_dead_letter(1, seconds=1), a_dead_letter(2, seconds=2), a_dead_letter(3, seconds=3))
    put(store, a_dead_letter(3), State.DISCARDED)
    (group,) = store.groups(Selection(states=frozenset({State.OPEN})), limit=9)
    assert (group.dead_letters, group.by_state, group.sample) == (2, {State.OPEN: 2}, identity(a_dead_letter(2)))
    assert group.last_failed_at == FAILED + 2 * SECOND


def test_of_groups_as_large_the_one_that_failed_last_comes_first(store: DeadLetterStore) -> None:
    keep(store, *(a_dead_letter(row, table=f"t{row}", seconds=row % 4) for row in range(4)))
    assert [group.table for group in store.groups(Selection(), limit=9)] == ["t3", "t2", "t1", "t0"]


def test_a_dead_letter_that_fails_for_another_cause_changes_its_group(store: DeadLetterStore) -> None:
    keep(store, a_dead_letter(1))
    keep(store, failing_again(a_dead_letter(1), seconds=5, reason=Reason.REFUSED_BY_BIGQUERY, detail="quota"))
    (group,) = store.groups(Selection(), limit=9)
    assert (group.reason, group.detail) == (Reason.REFUSED_BY_BIGQUERY, "quota")


def test_numbers(store: DeadLetterStore) -> None:
    dead_letters = a_few_dead_letters()
    keep(store, *dead_letters)
    put(store, dead_letters[0], State.DISCARDED)
    put(store, dead_letters[4], State.SUPERSEDED)
    assert store.stats() == DeadLetterStats(
        by_state={State.OPEN: 4, State.DISCARDED: 1, State.SUPERSEDED: 1},
        by_reason={Reason.VALUE_DOES_NOT_FIT: 3, Reason.UNDECODABLE: 1},
        by_table={"planes": 2, "pilots": 1, "": 1},
        oldest_by_reason={
            Reason.VALUE_DOES_NOT_FIT: Nanoseconds(FAILED + SECOND),
            Reason.UNDECODABLE: Nanoseconds(FAILED + 5 * SECOND),
        },
        payload_bytes=sum(len(one.data) for one in dead_letters),
    )


def test_numbers_of_nothing(store: DeadLetterStore) -> None:
    assert store.stats() == DeadLetterStats(
        by_state={}, by_reason={}, by_table={}, oldest_by_reason={}, payload_bytes=0
    )
    assert list(store.find(Selection(), limit=5).dead_letters) == []
    assert store.groups(Selection(), limit=5) == []
    assert list(store.in_replay_order(Selection())) == []


def a_few_dead_letters() -> list[DeadLetter]:
    """Return dead letters of two tables and three reasons, failed a second apart; the last is of a whole message."""
    return [
        a_dead_letter(1, 1, seconds=0),
        a_dead_letter(2, 2, seconds=1),
        a_dead_letter(3, 3, seconds=2),
        a_dead_letter(1, 4, table="pilots", seconds=3),
        a_dead_letter(5, 5, table="pilots", seconds=4, reason=Reason.BAD_CHANGE, detail="not a JSON object"),
        of_a_message(seconds=5),
    ]
