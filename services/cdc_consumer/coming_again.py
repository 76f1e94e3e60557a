"""By when messages that were put off come again: until then a drain that finds nothing has not found everything.

Pub/Sub leases nothing that is put off, and says nothing of it. So the time is kept for the run after this one.
"""

from datetime import timedelta
from typing import Final

from services.cdc_consumer.core.counts import Counts
from services.cdc_consumer.ports import Kept
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.clock import Clock

_MARGIN: Final = timedelta(seconds=10)
"""A drain pulls for the last time some seconds before it ends, and Pub/Sub need not deliver on the second."""


class ComingAgain:
    """The latest time by which something comes again, of this run and of those before it that have ``kept`` theirs."""

    def __init__(self, kept: Kept, clock: Clock) -> None:
        text = (kept.read() or b"").decode(errors="replace")
        self._until = int(text) if text.isdecimal() else 0
        self._kept = kept
        self._clock = clock

    def take(self, counts: Counts) -> None:
        """Take note of what a task has put off."""
        if counts.put_off_until > self._until:
            self._until = counts.put_off_until
            self._kept.write(str(self._until).encode())

    def until(self) -> Nanoseconds | None:
        """Return the time if it is still to come, or has just been; a run that begins after it finds everything."""
        again = Nanoseconds((self._until + _MARGIN // timedelta(microseconds=1)) * 1_000)
        return again if again > self._clock.now() else None
