"""The machine's clock, as a port: handed to what must know the time, so that a test can hand in another."""

import time
from typing import Protocol

from shared.contracts.timestamps import Nanoseconds


class Clock(Protocol):
    """What time it is."""

    def now(self) -> Nanoseconds:
        """Return the time now."""


class SystemClock:
    """The clock of this machine; for logs, metrics and waits, never for a sequence or a lease."""

    def now(self) -> Nanoseconds:
        """Return the time now."""
        return Nanoseconds(time.time_ns())
