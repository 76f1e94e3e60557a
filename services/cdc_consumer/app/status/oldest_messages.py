"""Which messages are outstanding at the processes, or were lately, and when the oldest was published."""

import threading
from collections import deque
from datetime import timedelta
from typing import Final

import structlog

from services.cdc_consumer.core.stream.counts import Report
from shared.contracts.timestamps import nanoseconds
from shared.runtime.clock import Monotonic, SteadyClock

_SILENT_AFTER: Final = timedelta(minutes=15)
_LATELY: Final = timedelta(minutes=10)


class OldestMessages:
    """The oldest message of each process; safe to use from any thread.

    A process that has said nothing for as long as ``silent_after`` is gone: it was lost in mid-task, and the process
    that has its messages now reports them. A task that waits reports every few seconds; `LIVENESS` is how long one may
    work without a report.

    Between two tasks nothing is outstanding, however much waits in the subscription: ``lately`` is how long what was
    outstanding is remembered.
    """

    def __init__(
        self, clock: SteadyClock, silent_after: timedelta = _SILENT_AFTER, lately: timedelta = _LATELY
    ) -> None:
        self._clock = clock
        self._silent_after = nanoseconds(silent_after)
        self._lately = nanoseconds(lately)
        self._lock = threading.Lock()
        self._oldest: dict[str, tuple[int, Monotonic]] = {}
        self._released: deque[tuple[int, Monotonic]] = deque()
        """What was outstanding until when. Both rise: what is younger than one that stays longer is of no interest."""

    def take(self, report: Report) -> None:
        """Remember what a process says that it holds, in place of what it said before."""
        if not report.process:
            return
        with self._lock:
            now = self._clock.monotonic()
            before, _at = self._oldest.pop(report.process, (None, now))
            if before is not None and before != report.oldest_outstanding:
                self._remember(before, now)
            if report.oldest_outstanding is not None:
                self._oldest[report.process] = report.oldest_outstanding, now

    def oldest(self) -> int | None:
        """Return when the oldest message was published that is outstanding, in microseconds; None: none is."""
        with self._lock:
            self._forget_the_silent()
            return min((oldest for oldest, _at in self._oldest.values()), default=None)

    def oldest_lately(self) -> int | None:
        """Return the same of what any process holds or has let go of lately."""
        with self._lock:
            self._forget_the_silent()
            self._forget_the_past()
            outstanding = [oldest for oldest, _at in self._oldest.values()]
            return min([*outstanding, *(oldest for oldest, _until in self._released)], default=None)

    def processes(self) -> int:
        """Return how many processes hold any."""
        with self._lock:
            self._forget_the_silent()
            return len(self._oldest)

    def _remember(self, oldest: int, now: Monotonic) -> None:
        self._forget_the_past()
        while self._released and self._released[-1][0] >= oldest:
            self._released.pop()
        self._released.append((oldest, now))

    def _forget_the_past(self) -> None:
        now = self._clock.monotonic()
        while self._released and now - self._released[0][1] > self._lately:
            self._released.popleft()

    def _forget_the_silent(self) -> None:
        now = self._clock.monotonic()
        for process, (_oldest, at) in list(self._oldest.items()):
            if now - at > self._silent_after:
                del self._oldest[process]
                structlog.get_logger().warning("process_lost", process=process, silent_for=(now - at) / 1e9)
