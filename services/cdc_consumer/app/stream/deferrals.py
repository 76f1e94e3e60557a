"""By when messages that were deferred come again: until then a drain that finds nothing has not found everything.

Pub/Sub leases nothing that is deferred, and says nothing of it. So the time is kept, for this run's end and for the run
after it: by the worker that puts something off, and by the driver once it hears of it, for workers may be elsewhere.
"""

from datetime import timedelta
from typing import Final

from services.cdc_consumer.core.stream.counts import Counts
from services.cdc_consumer.ports import DurableBytes
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.clock import Clock

DEFERRALS_FILE: Final = "put-off"
"""What a file is called that says by when something comes again; its scope is that of the subscription."""
_MARGIN: Final = timedelta(seconds=10)
"""A drain pulls for the last time some seconds before it ends, and Pub/Sub need not deliver on the second."""

_NEVER_LONGER: Final = timedelta(minutes=20)
"""Nothing is deferred for so long: twice the longest deferral, for the clocks of workers may differ."""


class Deferrals:
    """The latest time by which something comes again, of this run and of those before it that have ``kept`` theirs."""

    def __init__(self, kept: DurableBytes, clock: Clock) -> None:
        self._kept = kept
        self._clock = clock
        self._until = self._read()

    def take(self, counts: Counts) -> None:
        """Take note of what a task has deferred."""
        if not counts.deferred_until:
            return
        self._until = max(self._until, counts.deferred_until)
        if self._until > self._read():  # another process may have kept a later time
            self._kept.write(str(self._until).encode())

    def until(self) -> Nanoseconds | None:
        """Return the time if it is still to come, or has just been; a run that begins after it finds everything."""
        again = Nanoseconds((max(self._until, self._read()) + _MARGIN // timedelta(microseconds=1)) * 1_000)
        return again if again > self._clock.now() else None

    def _read(self) -> int:
        text = (self._kept.read() or b"").decode(errors="replace")
        latest = self._clock.now() // 1_000 + _NEVER_LONGER // timedelta(microseconds=1)
        return int(text) if text.isdecimal() and int(text) <= latest else 0  # or a clock was ahead
