"""How much of what the stream keeps lies behind the position: a warning at half of it, an error when little is left."""

from datetime import timedelta
from typing import Final

import structlog

from shared.reading.metrics import ReaderMetrics

_AGES: Final = (0.5, 0.8)
"""The parts of the retention behind which the low watermark is too old."""


class PositionAge:
    """Follows how far the low watermark is behind, and reports once when it has passed each of the ages."""

    def __init__(self, metrics: ReaderMetrics, lengthen: str) -> None:
        """``lengthen`` is the statement or command that makes the retention longer."""
        self._metrics = metrics
        self._lengthen = f"make the retention longer meanwhile (seven days at most): {lengthen}"
        self._passed = 0
        self._log = structlog.get_logger()

    def report(self, behind: timedelta, retention: timedelta | None, *, paused: bool) -> None:
        """Take how far it is behind, and for how long the stream keeps what is not read; None: not known yet."""
        if retention is None:
            return
        self._metrics.kept_for(retention, retention - behind)
        passed = sum(behind > retention * part for part in _AGES)
        if passed > self._passed:
            log = self._log.warning if passed < len(_AGES) else self._log.error
            log(
                "position_is_ageing",
                behind=str(behind),
                retention=str(retention),
                paused=paused,
                why="what is further behind than the retention is lost, and the reader stops there",
                fix=f"`resume`, before {retention - behind} are over; or {self._lengthen}"
                if paused
                else "find out what holds it up (`status`, and call_retried in the log), start "
                f"more readers, and {self._lengthen}",
            )
        self._passed = passed
