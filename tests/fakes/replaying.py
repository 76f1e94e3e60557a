"""The ReplayPublisher and the Mirrors in memory, and a clock that stands still unless it is waited on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from services.dead_letter.core.dead_letters import DeadLetterId
from services.dead_letter.core.rows import RowOf
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.effects import Effects


@dataclass
class FakeReplayPublisher:
    """Keeps what is published. ``unavailable`` calls fail, but everything is published; ``then`` follows each."""

    topic: str = "projects/p/topics/millrace"
    effects: Effects = field(default_factory=Effects)
    published: list[DeadLetter] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    unavailable: int = 0
    then: Callable[[Sequence[DeadLetter]], None] | None = None

    def publish(self, dead_letters: Sequence[DeadLetter], forced: Collection[DeadLetterId]) -> None:
        self.effects.note("publish")
        self.published += dead_letters
        self.forced += [DeadLetterId(one.identity) in forced for one in dead_letters]
        if self.then is not None:
            self.then(dead_letters)
        if self.unavailable:
            self.unavailable -= 1
            raise TransientError("Pub/Sub is unavailable")
        self.effects.note("confirm")


@dataclass
class FakeMirrors:
    """Holds sequences by row."""

    applied: dict[RowOf, str] = field(default_factory=dict)

    def sequences(self, rows: Sequence[RowOf]) -> Mapping[RowOf, str]:
        return {row: self.applied[row] for row in rows if row in self.applied}


class WaitedClock(Stop):
    """A stop whose waits take no time but move a clock, which is itself."""

    def __init__(self, now: Nanoseconds) -> None:
        super().__init__()
        self._now = now

    def now(self) -> Nanoseconds:
        return self._now

    def move(self, by: timedelta) -> None:
        self._now = Nanoseconds(self._now + by // timedelta(microseconds=1) * 1_000)

    def wait(self, timeout: timedelta) -> bool:
        self.move(timeout)
        return self.requested
