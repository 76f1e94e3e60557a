"""The DeadLetters port in memory."""

from collections.abc import Sequence

from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import TransientError
from tests.fakes.effects import Effects


class FakeDeadLetters:
    """Keeps dead letters by identity. ``unavailable`` calls fail first."""

    def __init__(self, effects: Effects | None = None) -> None:
        self.effects = effects or Effects()
        self.kept: dict[str, DeadLetter] = {}
        self.unavailable = 0

    def keep(self, dead_letters: Sequence[DeadLetter]) -> None:
        if self.unavailable:
            self.unavailable -= 1
            raise TransientError("Pub/Sub is unavailable")
        self.effects.note(f"keep {len(dead_letters)} dead letters")
        self.kept |= {one.identity: one for one in dead_letters}
