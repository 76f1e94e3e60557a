"""What the API acts through: the service's store, and for a replay what is opened when it is needed."""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from services.dead_letter.app.replay.replay import MAX_REPLAYS
from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.core.attention import Launcher
from services.dead_letter.ports import DeadLetterStore, Mirrors, ReplayPublisher
from services.dead_letter.web.callers import Callers
from services.dead_letter.web.console.replay_runs import ReplayRuns
from services.dead_letter.web.gate import Answered
from shared.contracts.tables_file import TablesFile
from shared.runtime.clock import Clock
from shared.runtime.stop import Stop

REPLAYS_AT_ONCE: Final = 4
EXPORTS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTools:
    """How requests reach the world; what is opened raises MisconfiguredError with the fix where it cannot be."""

    store: DeadLetterStore
    publisher: Callable[[Stop], AbstractContextManager[ReplayPublisher]]
    mirrors: Callable[[], AbstractContextManager[Mirrors | None]]
    """None: it is not said where the mirrors are, so nothing is known to be superseded."""
    callers: Callers
    clock: Clock
    stop: Stop
    """That the service is to stop: what takes long ends then."""
    answered: Answered = lambda _route, _status, _seconds: None
    """Is called for each answer, for the metrics."""
    replayed: Callable[[Mapping[str, int]], None] = lambda _results: None
    """Is called as a replay goes on, for the metrics, with how many more dead letters have come to which result."""
    launcher: Launcher = field(default_factory=Launcher)
    """How the commands that pages show are started."""
    tables: Callable[[], TablesFile] = TablesFile
    """The consumer's tables file."""
    poller: ServicePoller
    """The other services, for the console."""
    runs: ReplayRuns = field(default_factory=ReplayRuns)
    """The console's replays."""
    max_replays: int = MAX_REPLAYS
    longest: timedelta = timedelta(seconds=60)
    """How long a replay may take before it ends where it is."""
    replays: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(REPLAYS_AT_ONCE))
    exports: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(EXPORTS_AT_ONCE))
