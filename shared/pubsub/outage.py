"""Since when publishing to a topic fails: a reader is not ready while that lasts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from shared.contracts.errors import TransientError

NOT_READY_AFTER: Final = timedelta(seconds=30)
"""How long publishing fails until a reader is not ready: longer than Pub/Sub's usual errors last."""


class Outage:
    """The attempts to publish to one topic since the last that succeeded."""

    def __init__(self, topic: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._topic = topic
        self._monotonic = monotonic
        self._failing_since: float | None = None
        """When the first attempt began since the last that succeeded."""

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Record whether the attempt in the block succeeds; TransientError begins an outage."""
        began = self._monotonic()
        try:
            yield
        except TransientError:
            if self._failing_since is None:
                self._failing_since = began
            raise
        self._failing_since = None

    def why_not_ready(self) -> str:
        """Return that publishing has failed for `NOT_READY_AFTER`; empty where it has not. Any thread may ask."""
        since = self._failing_since
        if since is None or (seconds := self._monotonic() - since) < NOT_READY_AFTER.total_seconds():
            return ""
        return f"publishing to {self._topic} has failed for {seconds:.0f} s"
