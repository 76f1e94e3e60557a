"""Which messages the processes hold, as they say themselves, and since when the oldest of these is published."""

import threading
from datetime import timedelta
from typing import Final

import structlog

from services.cdc_consumer.core.counts import Report
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.clock import Clock

_SILENT_AFTER: Final = timedelta(minutes=15)


class Held:
    """The oldest message of each process; safe to use from any thread.

    A process that has said nothing for as long as ``silent_after`` is gone: it was lost in mid-task, and whoever has
    its messages now says so himself. A task that waits says something every few seconds; for how long one may work
    without a word is `LIVENESS`.
    """

    def __init__(self, clock: Clock, silent_after: timedelta = _SILENT_AFTER) -> None:
        self._clock = clock
        self._silent_after = silent_after // timedelta(microseconds=1) * 1000
        self._lock = threading.Lock()
        self._oldest: dict[str, tuple[int, Nanoseconds]] = {}

    def take(self, report: Report) -> None:
        """Remember what a process says that it holds, in place of what it said before."""
        if not report.process:
            return
        with self._lock:
            if report.oldest_held is None:
                self._oldest.pop(report.process, None)
            else:
                self._oldest[report.process] = report.oldest_held, self._clock.now()

    def oldest(self) -> int | None:
        """Return when the oldest message was published that any process holds, in microseconds; None: none is held."""
        with self._lock:
            self._forget_the_silent()
            return min((oldest for oldest, _at in self._oldest.values()), default=None)

    def processes(self) -> int:
        """Return how many processes hold any."""
        with self._lock:
            self._forget_the_silent()
            return len(self._oldest)

    def _forget_the_silent(self) -> None:
        now = self._clock.now()
        for process, (_oldest, at) in list(self._oldest.items()):
            if now - at > self._silent_after:
                del self._oldest[process]
                structlog.get_logger().warning("process_lost", process=process, silent_for=(now - at) / 1e9)
