"""Whether the stream is paused, as the last survey has shown it; said when that changes."""

import structlog

from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.core.times import Microseconds


class PauseWatch:
    """Follows what surveys say of it."""

    def __init__(self) -> None:
        self.paused = False
        self._log = structlog.get_logger()

    def told(self, since: Microseconds | None) -> None:
        """Take since when the stream is paused; None: it is not."""
        if since is not None and not self.paused:
            self._log.warning(
                "stream_paused",
                since=shown(since),
                why="nothing is read until `resume`, and nothing lost for as long as the stream keeps it",
            )
        if since is None and self.paused:
            self._log.info("stream_resumed")
        self.paused = since is not None
