"""The service's clock: the machine's, and what a test has put it forward by."""

import time


class AdvancingClock:
    """Time in microseconds since the epoch; it never stands still or goes back."""

    def __init__(self) -> None:
        self._ahead = 0
        self._last = 0

    def now(self) -> int:
        """Return the time; a later call returns a later one."""
        self._last = max(time.time_ns() // 1_000 + self._ahead, self._last + 1)
        return self._last

    def advance(self, seconds: float) -> None:
        """Put the clock forward."""
        if seconds < 0:
            raise ValueError("a clock does not go back")
        self._ahead += round(seconds * 1_000_000)
