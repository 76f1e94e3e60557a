"""Whether the whole stream is paused, as the last survey has shown it."""

import structlog


class StreamPause:
    """Logs when a pause of the stream begins and ends."""

    def __init__(self) -> None:
        self.paused = False

    def observe(self, since: str | None) -> None:
        """Take since when the stream is paused, as text; None: it is not."""
        if since is not None and not self.paused:
            structlog.get_logger().warning(
                "stream_paused",
                since=since,
                why="nothing is read until `resume`, and nothing lost for as long as the stream keeps it",
            )
        if since is None and self.paused:
            structlog.get_logger().info("stream_resumed")
        self.paused = since is not None
