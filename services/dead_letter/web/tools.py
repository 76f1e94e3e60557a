"""What the API acts through: the service's store, and for a replay what is opened when it is needed."""

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from services.dead_letter.app.metrics import ApiMetrics
from services.dead_letter.app.replay.replay_tools import ReplayTools
from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.core.attention import Launcher
from services.dead_letter.ports import DeadLetterStore
from services.dead_letter.web.callers import Callers
from services.dead_letter.web.console.replay_runs import ReplayRuns
from shared.runtime.clock import Clock
from shared.runtime.stop import Stop

REPLAYS_AT_ONCE: Final = 4
EXPORTS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """How much is done at once, and for how long."""

    longest: timedelta = timedelta(seconds=60)
    """How long a replay may take before it ends where it is."""
    replays: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(REPLAYS_AT_ONCE))
    exports: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(EXPORTS_AT_ONCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleTools:
    """What the console's pages have beside the API."""

    poller: ServicePoller
    """The other services."""
    launcher: Launcher = field(default_factory=Launcher)
    """How the commands that pages show are started."""
    runs: ReplayRuns = field(default_factory=ReplayRuns)
    """The replays that pages have begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTools:
    """How requests reach the world."""

    store: DeadLetterStore
    replay: ReplayTools
    console: ConsoleTools
    callers: Callers
    clock: Clock
    stop: Stop
    """That the service is to stop: what takes long ends then."""
    metrics: ApiMetrics = field(default_factory=ApiMetrics)
    limits: WebLimits = field(default_factory=WebLimits)
