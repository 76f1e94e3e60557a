"""One life of a service in a test, which may be killed between any two effects, and its way to the world."""

import asyncio
from dataclasses import dataclass, field
from random import Random

from shared.contracts.errors import TransientError


class CrashError(Exception):
    """The process was killed here."""


class Life:
    """One life of a reader. Every effect is a step before and a step after; at one of them it may be killed."""

    def __init__(self, killed_at: int | None = None) -> None:
        self.killed_at = killed_at
        self.steps = 0
        self.over = False

    def step(self) -> None:
        """Go on living, or be killed here; the dead have no effects."""
        if not self.over:
            self.steps += 1
            self.over = self.steps == self.killed_at
        if self.over:
            raise CrashError(f"killed at step {self.steps}")


@dataclass
class Way:
    """How a reader reaches the world: how slow and how broken, and whether it is held up like a paused process."""

    chance: Random = field(default_factory=lambda: Random(0))
    life: Life = field(default_factory=Life)
    slowest: float = 0.0
    """Seconds that a call takes at most."""
    breaks: float = 0.0
    """Which part of the calls fail with a TransientError."""
    _free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._free.set()

    def hold_up(self) -> None:
        """Let nothing get through that this reader asks for, as a machine that stands still."""
        self._free.clear()

    def let_go(self) -> None:
        """Let it go on."""
        self._free.set()

    async def passable(self) -> None:
        """Wait while it is held up."""
        await self._free.wait()

    async def step(self, what: str = "UNAVAILABLE") -> None:
        """Take the time of a call; die, or fail, where that is due."""
        await asyncio.sleep(self.chance.random() * self.slowest)
        await self.passable()
        self.life.step()
        if self.chance.random() < self.breaks:
            raise TransientError(what)
