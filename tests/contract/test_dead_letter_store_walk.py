"""The store in a file and the fake on long walks with few dead letters, where all that can happen to one meets itself.

A walk is drawn by a seed, so each run takes the same ones. What is chosen freely seldom meets (see the model's test):
here two dead letters, two replays and a clock that moves little let each claim be lost, run out and be won.
"""

import random
from datetime import timedelta
from pathlib import Path
from typing import Final

from services.dead_letter.adapters.store.database import DeadLetterDatabase, open_database
from services.dead_letter.core.dead_letters import Action, DeadLetterId, ReplayId, State
from services.dead_letter.core.selection import Selection
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from tests.contract.dead_letter_stores import NOW, SECOND, BothStores, a_dead_letter, an_arrival, an_edit, failing_again

WALKS: Final = 24
STEPS: Final = 60
REPLAYS: Final = (ReplayId("r1"), ReplayId("r2"))
DETAILS: Final = ("too long", "no number")
STATES: Final = (State.OPEN, State.SUPERSEDED, State.DISCARDED)
FROM: Final = (frozenset({State.OPEN}), frozenset(State), frozenset(State) - {State.OPEN})


class Walk:
    """Both stores, and what happens to both."""

    def __init__(self, database: DeadLetterDatabase, seed: int) -> None:
        self.stores = BothStores(database)
        self.both = self.stores.call
        self.chance = random.Random(seed)
        self.now = NOW
        self.dead_letters = [a_dead_letter(1), a_dead_letter(2, table="pilots")]
        self.messages = 0

    def step(self) -> None:
        """Let something happen."""
        chance, ids = self.chance, self.some()
        match chance.choice(["arrives", "arrives", "claim", "claim", "sent", "release", "decide", "edit", "forget"]):
            case "arrives":
                self.arrives()
            case "claim":
                lease = timedelta(seconds=chance.choice([1, 2, 5]))
                self.both("claim", ids, chance.choice(REPLAYS), self.now, lease)
            case "sent":
                self.both("sent", ids, chance.choice(REPLAYS), "ann", self.now)
            case "release":
                self.both("release", chance.choice(REPLAYS))
            case "decide":
                state, only_from = chance.choice(STATES), chance.choice(FROM)
                self.both("set_state", ids, state, only_from=only_from, who="bob", now=self.now, why="so")
            case "edit":
                self.edit()
            case _forget:
                before = Nanoseconds(self.now - chance.choice([0, 1, 3]) * SECOND)
                self.both("forget", before=before, limit=chance.choice([1, 5]))
        if chance.random() < 0.4:
            self.now = Nanoseconds(self.now + chance.choice([1, SECOND, SECOND, 2 * SECOND]))

    def arrives(self) -> None:
        """Let dead letters fail, mostly by a new message; at a time that some other may have failed at, or acted at."""
        some = []
        for dead_letter in self.chance.choices(self.dead_letters, k=self.chance.choice([1, 1, 2])):
            if self.chance.random() < 0.8:
                self.messages += 1
            seconds = self.chance.choice([-2, -1, 0, 0]) + (self.now - NOW) // SECOND
            reason = self.chance.choice([Reason.VALUE_DOES_NOT_FIT, Reason.REFUSED_BY_BIGQUERY])
            again = failing_again(dead_letter, seconds=seconds, reason=reason, detail=self.chance.choice(DETAILS))
            some.append(an_arrival(again, f"m{self.messages}"))
        self.both("keep", some, self.now)

    def edit(self) -> None:
        """Edit a dead letter, or try to."""
        original = self.chance.choice(self.dead_letters[:3])
        copy = an_edit(original)
        self.both("add_edit", DeadLetterId(original.identity), copy, diff="-1\n+2", why="typo", who="ann", now=self.now)
        if copy.identity not in {one.identity for one in self.dead_letters} and len(self.dead_letters) < 5:
            self.dead_letters.append(copy)

    def some(self) -> list[DeadLetterId]:
        """Return one dead letter or two, one of them unknown now and then."""
        known = [DeadLetterId(one.identity) for one in self.dead_letters] + [DeadLetterId("unknown")]
        return self.chance.choices(known, k=self.chance.choice([1, 2, 2]))

    def compare(self) -> None:
        """See that both hold the same."""
        self.stores.in_replay_order(Selection())
        for dead_letter in self.dead_letters:
            self.both("trail", DeadLetterId(dead_letter.identity))


def test_the_store_in_a_file_and_the_fake_say_the_same_on_long_walks(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/letters.sqlite3")
    done: set[Action] = set()
    try:
        for seed in range(WALKS):
            walk = Walk(database, seed)
            for _step in range(STEPS):
                walk.step()
                walk.compare()
            done |= {
                one.action for each in walk.dead_letters for one in walk.both("trail", DeadLetterId(each.identity))
            }
    finally:
        database.close()
    assert done == set(Action) - {Action.VALUES_SHOWN, Action.EXPORTED}, "everything has happened"
