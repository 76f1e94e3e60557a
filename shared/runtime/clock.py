"""The machine's clock, as a port: handed to what must know the time, so that a test can hand in another."""

import time
from typing import NewType, Protocol

from shared.contracts.timestamps import Nanoseconds

Monotonic = NewType("Monotonic", int)
"""Nanoseconds of a clock that is never set: only the time between two of one process means anything."""


class Clock(Protocol):
    """What time it is."""

    def now(self) -> Nanoseconds:
        """Return the time now."""


class SteadyClock(Clock, Protocol):
    """What time it is, and how much time has passed, whatever the clock is set to meanwhile."""

    def monotonic(self) -> Monotonic:
        """Return the time now, to be compared with another one of this process."""


class SystemClock:
    """The clock of this machine; for logs, metrics and waits, never for a sequence or a lease."""

    def now(self) -> Nanoseconds:
        """Return the time now."""
        return Nanoseconds(time.time_ns())

    def monotonic(self) -> Monotonic:
        """Return the time now, to be compared with another one of this process."""
        return Monotonic(time.monotonic_ns())
