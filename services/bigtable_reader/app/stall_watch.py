"""The low watermark: how far all key ranges have come, and since when that stands still. A stall is said, no more."""

from datetime import timedelta
from typing import Final

import structlog

from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.ports import VersionClock
from shared.contracts.timestamps import Nanoseconds, format_timestamp

_MICROSECOND: Final = 1_000  # in nanoseconds


class StallWatch:
    """Follows the low watermark by the monotonic time at which it is reported."""

    def __init__(self, timeout: timedelta, clock: VersionClock) -> None:
        self._timeout = timeout
        self._clock = clock
        self._stalled = False
        self._moved_at: float | None = None
        self._log = structlog.get_logger()
        self.low_watermark: Microseconds | None = None
        """As it was reported last."""

    def reached(self) -> Nanoseconds | None:
        """Return the low watermark as it was reported last."""
        return None if self.low_watermark is None else Nanoseconds(self.low_watermark * _MICROSECOND)

    def behind(self) -> timedelta:
        """Return how far it is behind this machine's clock; nothing where it was not reported yet."""
        return timedelta(microseconds=max(0, self._clock.now() - (self.low_watermark or self._clock.now())))

    def observe(self, low_watermark: Microseconds, now: float, *, paused: bool = False) -> timedelta:
        """Take the low watermark as it is at ``now`` (seconds); return for how long it has stood still.

        While the stream is ``paused``, it does not count as standing still.
        """
        if low_watermark != self.low_watermark or self._moved_at is None or paused:
            if self._stalled and low_watermark != self.low_watermark:
                self._log.info("low_watermark_moved_again", low_watermark=shown(low_watermark))
            self.low_watermark, self._moved_at, self._stalled = low_watermark, now, False
        stood = timedelta(seconds=now - self._moved_at)
        if stood > self._timeout and not self._stalled:
            self._stalled = True
            self._log.warning(
                "low_watermark_stalled",
                low_watermark=shown(low_watermark),
                seconds=round(stood.total_seconds()),
                causes="an overloaded cluster, the network between clusters, a cluster that is unavailable, a "
                "partition that no reader reads; changes are published all the same",
            )
        return stood


def shown(time: Microseconds) -> str:
    """Return a time as it is shown."""
    return format_timestamp(Nanoseconds(time * _MICROSECOND))
