"""What a replay of a command or of the API acts through. Nothing is opened before a replay needs it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from services.dead_letter.app.replay.replay import Replay
from services.dead_letter.core.plan import Terms
from services.dead_letter.ports import DeadLetterStore, Mirrors, ReplayPublisher
from shared.contracts.tables_file import TablesFile
from shared.runtime.clock import Clock
from shared.runtime.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTools:
    """How replays reach the world; each opens its thing for a block, or raises MisconfiguredError with the fix."""

    publisher: Callable[[Stop], AbstractContextManager[ReplayPublisher]]
    """The topic that replays go to; it waits for Pub/Sub no longer than until the stop."""
    mirrors: Callable[[], AbstractContextManager[Mirrors | None]]
    """None: it is not said where the mirrors are, so nothing is known to be superseded."""
    tables: Callable[[], TablesFile] = TablesFile
    """The consumer's tables file."""
    terms: Terms = field(default_factory=Terms)

    @contextmanager
    def opened(self, store: DeadLetterStore, clock: Clock, stop: Stop, *, execute: bool) -> Iterator[Replay]:
        """Yield what replays dead letters of a store; without ``execute`` it has no topic to send them to."""
        with (
            self.mirrors() as mirrors,
            self.publisher(stop) if execute else nullcontext() as publisher,
        ):
            yield Replay(store, publisher, mirrors, clock, stop, replace(self.terms, tables=self.tables()))
