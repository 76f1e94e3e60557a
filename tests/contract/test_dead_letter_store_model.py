"""The store in a file and the fake, side by side under whatever may happen: they never differ in what they say."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from services.dead_letter.adapters.store.database import DeadLetterDatabase, open_database
from services.dead_letter.core.dead_letters import Action, DeadLetterId, ReplayId, State
from services.dead_letter.core.selection import Selection
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from tests.contract.dead_letter_stores import (
    FAILED,
    NOW,
    SECOND,
    BothStores,
    a_dead_letter,
    an_arrival,
    an_edit,
    failing_again,
    of_a_message,
)

DEAD_LETTERS = [a_dead_letter(1, 1), a_dead_letter(1, 2), a_dead_letter(2, 1, table="pilots"), of_a_message()]
REPLAYS = [ReplayId(name) for name in ("r1", "r2")]
CAUSES = [
    (Reason.VALUE_DOES_NOT_FIT, "1 is too much"),
    (Reason.VALUE_DOES_NOT_FIT, "2 is too much"),
    (Reason.REFUSED_BY_BIGQUERY, "quota"),
]
SOME_STATES = st.frozensets(st.sampled_from(State), max_size=3)

arrivals = st.builds(
    lambda dead_letter, message, cause, seconds: an_arrival(
        failing_again(dead_letter, seconds=seconds, reason=cause[0], detail=cause[1]), f"m{message}"
    ),
    st.sampled_from(DEAD_LETTERS),
    st.integers(1, 6),
    st.sampled_from(CAUSES),
    st.integers(-3, 30),
)
selections = st.builds(
    Selection,
    tables=st.frozensets(st.sampled_from(["planes", "pilots", ""]), max_size=2),
    reasons=st.frozensets(st.sampled_from(Reason), max_size=2),
    keys=st.frozensets(st.sampled_from(["[1]", "[2]", ""]), max_size=2),
    states=SOME_STATES,
    failed_from=st.none() | st.integers(-2, 30).map(lambda seconds: Nanoseconds(FAILED + seconds * SECOND)),
    failed_until=st.none() | st.integers(-2, 31).map(lambda seconds: Nanoseconds(FAILED + seconds * SECOND)),
    sequence_from=st.none() | st.integers(0, 3).map(lambda number: str(four_sections(number))),
    sequence_until=st.none() | st.integers(0, 3).map(lambda number: str(four_sections(number, 1))),
)


class Stores(RuleBasedStateMachine):
    """What happens, happens to both."""

    copies = Bundle("copies")
    database: DeadLetterDatabase

    def __init__(self) -> None:
        super().__init__()
        self.stores = BothStores(self.database)
        self.both = self.stores.call
        self.now = NOW
        self.known = [DeadLetterId(one.identity) for one in DEAD_LETTERS] + [DeadLetterId("unknown")]

    @initialize(first=st.lists(arrivals, max_size=8))
    def some_are_there(self, first: list[Any]) -> None:
        self.both("keep", first, self.now)

    @rule(seconds=st.sampled_from([0.000000001, 1, 5, 20]))
    def time_passes(self, seconds: float) -> None:
        self.now = Nanoseconds(self.now + max(1, int(seconds * SECOND)))

    @rule(some=st.lists(arrivals, min_size=1, max_size=4))
    def dead_letters_arrive(self, some: list[Any]) -> None:
        self.both("keep", some, self.now)

    @rule(data=st.data(), replay=st.sampled_from(REPLAYS), seconds=st.sampled_from([1, 10]))
    def a_replay_claims(self, data: st.DataObject, replay: ReplayId, seconds: int) -> None:
        self.both("claim", self.some_of(data), replay, self.now, timedelta(seconds=seconds))

    @rule(data=st.data(), replay=st.sampled_from(REPLAYS))
    def a_replay_has_sent(self, data: st.DataObject, replay: ReplayId) -> None:
        self.both("sent", self.some_of(data), replay, "ann", self.now)

    @rule(replay=st.sampled_from(REPLAYS))
    def a_replay_lets_go(self, replay: ReplayId) -> None:
        self.both("release", replay)

    @rule(
        data=st.data(),
        state=st.sampled_from([State.OPEN, State.SUPERSEDED, State.DISCARDED]),
        only_from=st.frozensets(st.sampled_from(State), min_size=1),
    )
    def states_are_set(self, data: st.DataObject, state: State, only_from: frozenset[State]) -> None:
        self.both("set_state", self.some_of(data), state, only_from=only_from, who="bob", now=self.now, why="so")

    @rule(data=st.data())
    def values_are_shown(self, data: st.DataObject) -> None:
        self.both("note", self.some_of(data), Action.VALUES_SHOWN, "eve", self.now, "seen")

    @rule(target=copies, data=st.data())
    def one_is_edited(self, data: st.DataObject) -> Any:
        original = self.both("get", data.draw(st.sampled_from(self.known)))
        if original is None or not original.dead_letter.sequence:
            return multiple()
        copy = an_edit(original.dead_letter)
        self.both("add_edit", original.id, copy, diff="-1\n+2", why="typo", who="ann", now=self.now)
        if DeadLetterId(copy.identity) not in self.known:
            self.known.append(DeadLetterId(copy.identity))
        return copy

    @rule(copy=copies, message=st.integers(1, 6), seconds=st.integers(0, 30))
    def a_copy_fails(self, copy: DeadLetter, message: int, seconds: int) -> None:
        self.both("keep", [an_arrival(failing_again(copy, seconds=seconds), f"c{message}")], self.now)

    @rule(ago=st.sampled_from([0, 5, 25]), limit=st.integers(1, 3))
    def old_ones_are_forgotten(self, ago: int, limit: int) -> None:
        self.both("forget", before=Nanoseconds(self.now - ago * SECOND), limit=limit)

    @rule(selection=selections)
    def some_are_selected(self, selection: Selection) -> None:
        self.both("count", selection)
        self.both("groups", selection, limit=9)
        self.stores.in_replay_order(selection)
        lines = [list(store.find(selection, limit=99).dead_letters) for store in self.stores.all]
        assert lines[0] == lines[1]

    @invariant()
    def both_are_equal(self) -> None:
        self.both("stats")
        self.stores.in_replay_order(Selection())
        for dead_letter in self.known:
            self.both("trail", dead_letter)

    def some_of(self, data: st.DataObject) -> list[DeadLetterId]:
        """Return dead letters, some of them unknown."""
        return data.draw(st.lists(st.sampled_from(self.known), min_size=1, max_size=3))


def test_the_store_in_a_file_and_the_fake_say_the_same_whatever_happens(tmp_path: Path) -> None:
    Stores.database = open_database(f"sqlite:///{tmp_path}/letters.sqlite3")
    try:
        run_state_machine_as_test(Stores, settings=settings(max_examples=25, stateful_step_count=25))
    finally:
        Stores.database.close()
