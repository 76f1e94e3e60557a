"""What the commands act through. Nothing is opened before a command needs it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from services.dead_letter.app.replay.replay_tools import ReplayTools
from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.core.attention import Launcher
from services.dead_letter.core.pipeline import Pipeline
from services.dead_letter.ports import DeadLetterStore
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.stop import Stop, stop_on_signals


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTools:
    """How the commands reach the world; each opens its thing for a block, or raises MisconfiguredError with the fix."""

    store: Callable[[], AbstractContextManager[DeadLetterStore]]
    replay: ReplayTools
    pipeline: Callable[[str | None, str | None], Pipeline]
    """The pipeline of a subscription and a topic, by their full names or short ones."""
    who: str
    """Who acts, for the trail."""
    editor: Callable[[str], str]
    """Let a person edit a text, and return it; ValueError where there is no editor."""
    poller: ServicePoller | None = None
    """The other services; None: none is named."""
    launcher: Launcher = field(default_factory=Launcher)
    """How the commands that are printed are started."""
    clock: Clock = field(default_factory=SystemClock)
    stopping: Callable[[], AbstractContextManager[Stop]] = stop_on_signals
