"""Dead letters on fakes, what replays of them reach, and the commands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from services.dead_letter.adapters.editor import edit_text
from services.dead_letter.app.replay.replay import Outcome, Replay, ReplayOrder
from services.dead_letter.app.replay.replay_tools import ReplayTools
from services.dead_letter.commands.app import WRONG, run_command
from services.dead_letter.commands.command_line import COMMAND_LINE, RunCommand
from services.dead_letter.commands.tools import CommandTools
from services.dead_letter.core.dead_letters import Action, Arrival, DeadLetterId, State, StoredDeadLetter
from services.dead_letter.core.pipeline import Pipeline
from services.dead_letter.core.rows import content_of
from services.dead_letter.core.selection import Selection
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError
from shared.runtime.commands import DoctorCommand
from shared.runtime.service import complain
from tests.fakes.dead_letter_store import FakeDeadLetterStore
from tests.fakes.effects import Effects
from tests.fakes.replaying import FakeMirrors, FakeReplayPublisher, WaitedClock
from tests.unit.dead_letter.dead_letters import NOW

OPEN = Selection(states=frozenset({State.OPEN}))


class Dying:
    """A store whose calls are effects, before one of which the process dies."""

    def __init__(self, store: FakeDeadLetterStore, effects: Effects) -> None:
        self._store = store
        self._effects = effects

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._effects.note(name)
            return method(*arguments, **options)

        return call if name in ("claim", "sent", "set_state", "release") else method


class World:
    """A store with dead letters, and what replays of them reach."""

    def __init__(self) -> None:
        self.store = FakeDeadLetterStore()
        self.publisher = FakeReplayPublisher()
        self.mirrors = FakeMirrors()
        self.clock = WaitedClock(NOW)
        self.arrivals = 0

    def keep(self, *dead_letters: DeadLetter) -> Sequence[DeadLetterId]:
        """Let dead letters arrive, for the first time or again."""
        for dead_letter in dead_letters:
            self.arrivals += 1
            self.store.keep([Arrival(dead_letter=dead_letter, message_id=str(self.arrivals))], self.clock.now())
        return [DeadLetterId(one.identity) for one in dead_letters]

    def keep_again(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Let dead letters fail again."""
        self.keep(*dead_letters)

    def stored(self, dead_letter: str) -> StoredDeadLetter:
        """Return a dead letter that is there, by its id."""
        stored = self.store.get(DeadLetterId(dead_letter))
        assert stored is not None
        return stored

    def apply(self, dead_letter: DeadLetter, sequence: int) -> None:
        """Let the mirror have this sequence of a dead letter's row."""
        row = content_of(dead_letter).row
        assert row is not None
        self.mirrors.applied[row] = str(four_sections(sequence))

    def replay(self, effects: Effects | None = None, **options: Any) -> Outcome:
        """Run one replay of what is open."""
        store: Any = self.store if effects is None else Dying(self.store, effects)
        self.publisher.effects = effects or Effects()
        order: dict[str, Any] = {"selection": OPEN, "who": "ada", "execute": True} | options
        return Replay(store, self.publisher, self.mirrors, self.clock, self.clock).run(ReplayOrder(**order))

    def states(self) -> Mapping[State, int]:
        return {state: count for state, count in self.store.stats().by_state.items() if count}


class Shell:
    """A person at the command line of a world."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.world = World()
        self.capsys = capsys
        self.out = self.err = ""
        self.editor: Any = None
        self.store_error: Exception | None = None
        self.mirrors: Any = self.world.mirrors
        self.poller: Any = None

    def run(self, *arguments: str) -> int:
        @contextmanager
        def store() -> Iterator[Any]:
            if self.store_error is not None:
                raise self.store_error
            yield self.world.store

        tools = CommandTools(
            store=store,
            replay=ReplayTools(
                publisher=lambda _stop: nullcontext(self.world.publisher), mirrors=lambda: nullcontext(self.mirrors)
            ),
            pipeline=lambda subscription, topic: Pipeline(subscription=subscription, topic=topic),
            who="ada",
            editor=lambda text: edit_text(self.editor, text),
            poller=self.poller,
            clock=self.world.clock,
            stopping=lambda: nullcontext(self.world.clock),
        )
        try:
            command = COMMAND_LINE.parse(arguments)
            assert not isinstance(command, RunCommand | DoctorCommand)
            code = run_command(command, tools)
        except SystemExit as end:  # a help
            code = int(end.code or 0)
        except MisconfiguredError as error:  # as `run_as` does
            complain(str(error))
            code = WRONG
        self.out, self.err = self.capsys.readouterr()
        return code

    def asked(self, *arguments: str) -> Any:
        """Run a command with --json that has to succeed; return its document."""
        assert self.run(*arguments, "--json") == 0, self.err
        return json.loads(self.out)

    def ids(self, *arguments: str) -> set[str]:
        code = self.run("list", *arguments, "--json")
        found = {one["id"] for one in json.loads(self.out)["dead_letters"]}
        assert code == (0 if found else 3)
        return found

    def actions(self, dead_letter: DeadLetter) -> Sequence[Action]:
        return [entry.action for entry in self.world.store.trail(DeadLetterId(dead_letter.identity))]
