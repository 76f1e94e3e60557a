"""Whether the topic still keeps what is published to it, looked at again and again while changes are read."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import structlog

from services.bigtable_reader.core.records import Microseconds
from services.bigtable_reader.ports import Metrics, Subscriptions
from services.bigtable_reader.stall_watch import shown
from shared.contracts.errors import MisconfiguredError, TransientError


class TopicWatch:
    """Looks at the topic's subscriptions; once they lose messages, nothing that Pub/Sub confirms counts any more."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        metrics: Metrics,
        every: timedelta,
        reached: Callable[[], Microseconds | None],
    ) -> None:
        """``reached`` tells the low watermark."""
        self.trusted = True
        """Whether what was confirmed is kept."""
        self._subscriptions = subscriptions
        self._metrics = metrics
        self._every = every
        self._reached = reached
        self._sure_until: Microseconds | None = None
        self._log = structlog.get_logger()

    async def keep_looking(self) -> None:
        """Look until cancelled. MisconfiguredError when messages are lost, with what to do."""
        while True:
            await asyncio.sleep(self._every.total_seconds())
            reached = self._reached()
            try:
                await self._subscriptions.check()
            except TransientError as error:
                self._log.warning("subscriptions_not_checked", error=str(error))
            except MisconfiguredError as error:
                # From here on nothing that Pub/Sub confirms counts: it may have been discarded.
                self.trusted = False
                self._metrics.topic_loses()
                self._log.error("topic_loses_messages", error=str(error))
                sure = "the start" if self._sure_until is None else shown(self._sure_until)
                raise MisconfiguredError(
                    f"{error}\nChanges committed up to {sure} were published while the topic was in order; later ones "
                    "may be lost, and so is what a deleted subscription still held. Mend the topic, stop every reader, "
                    "and start anew under another CHANGE_STREAM_NAME, with a START_TIMESTAMP before the oldest change "
                    "that was not applied"
                ) from error
            else:
                self._sure_until = reached
