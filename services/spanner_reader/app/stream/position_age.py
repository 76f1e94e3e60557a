"""How old the position is, of what the stream keeps: said at half of it, and as an error when little is left."""

from datetime import timedelta
from typing import Final

import structlog

from services.spanner_reader.ports import Metrics

_AGES: Final = (0.5, 0.8)
"""The parts of the retention behind which the low watermark is too old."""
_LONGER: Final = (
    "make the retention longer meanwhile (seven days at most): ALTER CHANGE STREAM ... SET OPTIONS "
    "(retention_period = '7d')"
)


class PositionAge:
    """Follows how far the low watermark is behind, and says once when it has passed each of the ages."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._passed = 0
        self._log = structlog.get_logger()

    def told(self, behind: timedelta, retention: timedelta | None, *, paused: bool) -> None:
        """Take how far it is behind, and for how long the stream keeps what is not read; None: not known yet."""
        if retention is None:
            return
        self._metrics.kept_for(retention)
        passed = sum(behind > retention * part for part in _AGES)
        if passed > self._passed:
            mend = f"find out what holds it up (`status`; call_retried in the log), start more readers, and {_LONGER}"
            say = self._log.warning if passed < len(_AGES) else self._log.error
            say(
                "position_is_ageing",
                behind=str(behind),
                retention=str(retention),
                paused=paused,
                why="what is further behind than the retention is lost, and the reader stops there",
                fix=f"`resume`, before {retention - behind} are over; or {_LONGER}" if paused else mend,
            )
        self._passed = passed
