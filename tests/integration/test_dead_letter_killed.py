"""The collector and the commands as processes, killed before every step that leaves a mark outside, one after another.

Nothing is lost, and nothing is there twice but a message that was published before its dead letter could be said to be
replayed: that is harmless, for a change carries its own sequence.
"""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.commands.app import NOTHING
from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.selection import Selection
from services.dead_letter.wiring.commands import command
from tests.worlds.dead_letter_commands import TIMEOUT, Place, fresh

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

KILLED = -signal.SIGKILL
MOST_STEPS = 60
KEYS = 2


class Kills:
    """A store as it was, and what is run on a copy of it until it is dead."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.before = place.file.with_name("before.sqlite3")
        with closing(open_database(f"sqlite:///{place.file}")):
            pass  # no log of writes is left beside it
        shutil.copy(place.file, self.before)

    def each(self, *arguments: str) -> Iterator[Sequence[str]]:
        """Run a command on the store as it was, dead before each step in turn; yield the steps that it has done."""
        for step in count():
            assert step < MOST_STEPS
            for one in self.place.file.parent.glob(f"{self.place.file.name}*"):
                one.unlink()
            shutil.copy(self.before, self.place.file)
            file = self.before.with_name(f"steps-{step}")
            file.touch()
            done = subprocess.run(
                [sys.executable, "-m", "tests.integration.dying", str(step), str(file), *arguments],
                env=self.place.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT,
            )
            steps = file.read_text().splitlines()
            assert len(steps) <= step
            if done.returncode != KILLED:
                assert done.returncode == 0, done.stderr
                return
            yield steps

    def state(self) -> Any:
        """Return all that the store says."""
        with closing(open_database(f"sqlite:///{self.place.file}")) as database:
            store = SqlDeadLetterStore(database)
            dead_letters = list(store.in_replay_order(Selection()))
            return [(one, list(store.trail(one.id))) for one in dead_letters]


def test_a_replay_killed_before_each_step_is_finished_by_the_next_run(place: Place) -> None:
    sent = fresh(5, keys=KEYS)
    place.keep(sent)
    names = {one.identity for one in sent}
    done: set[str] = set()
    for steps in Kills(place).each("replay", "--all", "--execute"):
        done.update(steps)
        before = Counter(message.attributes["replay_of"] for message in place.published())
        published = steps.count("publish")  # one for each ordering key; one that was begun may have arrived
        assert before.keys() == names if published == KEYS else before.keys() < names
        assert published or not before
        replayed = {one.id for one in place.dead_letters(State.REPLAYED)}
        assert replayed <= before.keys(), "none is said to be replayed that was not published"

        assert command(["replay", "--all", "--execute"], place.environment) == (NOTHING if replayed else 0)
        again = Counter(message.attributes["replay_of"] for message in place.published())
        assert (before + again).keys() == names, "nothing is lost"
        assert again.keys() == names - replayed, "only what was not said to be replayed goes once more"
        assert set((before + again).values()) <= {1, 2}
        assert len(place.dead_letters(State.REPLAYED)) == 5
    assert done == {"insert letters_pipeline", "update letters", "commit", "publish", "insert letter_trail"}


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("discard", "--all", "--why", "not needed"), {"update letters", "insert letter_trail"}),
        (
            ("edit", "ID", "--set", 'seats="12"', "--why", "a typo"),
            {"insert letters", "insert letter_payloads", "update letters", "insert letter_trail"},
        ),
    ],
)
def test_a_decision_killed_before_each_step_has_happened_whole_or_not_at_all(
    place: Place, words: Sequence[str], steps: set[str]
) -> None:
    sent = fresh(3)
    place.keep(sent)
    words = [sent[0].identity if word == "ID" else word for word in words]
    kills = Kills(place)
    before = kills.state()
    done: set[str] = set()
    for reached in kills.each(*words):
        done.update(reached)
        after = kills.state()
        assert after == before, "its only commit is its last step"
        assert command(words, place.environment) == 0
        assert kills.state() != before
    assert done == steps
