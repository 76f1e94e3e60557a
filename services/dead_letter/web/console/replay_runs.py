"""Replays that the console has begun: each on a thread of its own, with its progress to be read."""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog

from services.dead_letter.app.replay.replay import Outcome, ReplayOrder, ReportProgress
from services.dead_letter.core.documents import Document
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.stop import Stop

_KEPT: Final = 50
RunReplay = Callable[[ReplayOrder, Stop, ReportProgress], Document]


@dataclass(slots=True)
class ReplayRun:
    """One replay: what was asked for, how far it is, and how it ended."""

    id: str
    order: ReplayOrder
    matched: int
    judged: int = 0
    sent: int = 0
    document: Document | None = None
    """How it went; None while it goes on, or where ``error`` says why it has ended."""
    error: str = ""
    stop: Stop = field(default_factory=Stop)
    thread: threading.Thread = field(init=False)
    """Alive until it has ended."""


class ReplayRuns:
    """The runs of this process; the last ones are kept to be read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, ReplayRun] = {}

    def get(self, run: str) -> ReplayRun | None:
        """Return a run by its id."""
        with self._lock:
            return self._runs.get(run)

    def start(self, order: ReplayOrder, matched: int, replay: RunReplay, then: Callable[[], None]) -> ReplayRun:
        """Begin a replay, after which ``then`` is called, and return at once."""
        run = ReplayRun(uuid.uuid4().hex[:12], order, matched)
        run.thread = threading.Thread(target=_run, args=(run, replay, then), name=f"replay-{run.id}", daemon=True)
        with self._lock:
            over = [name for name, one in self._runs.items() if not one.thread.is_alive()]
            for name in over[: max(0, len(self._runs) - _KEPT)]:
                del self._runs[name]
            run.thread.start()
            self._runs[run.id] = run
        return run

    @contextmanager
    def running(self, stop: Stop) -> Iterator[None]:
        """Let replays run for the block; what is under way is asked to stop with the service, and waited for."""
        try:
            with stop.calling(self._stop):
                yield
        finally:
            self._stop()
            for run in self._all():
                run.thread.join()

    def _stop(self) -> None:
        for run in self._all():
            run.stop.request()

    def _all(self) -> Sequence[ReplayRun]:
        with self._lock:
            return list(self._runs.values())


def _run(run: ReplayRun, replay: RunReplay, then: Callable[[], None]) -> None:
    def report(so_far: Outcome) -> None:
        run.judged, run.sent = so_far.verdicts.total(), so_far.sent

    try:
        run.document = replay(run.order, run.stop, report)
    except (TransientError, MisconfiguredError) as error:
        run.error = str(error)
    except Exception as error:  # noqa: BLE001  the page says so, and the log where; no words of the error: they may hold values
        structlog.get_logger().error("console_replay_failed", replay=run.id, error=type(error).__name__)
        run.error = f"this was not foreseen ({type(error).__name__}); the service's log says so"
    finally:
        then()
