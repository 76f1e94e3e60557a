"""Heartbeats of a reader in the topic: how far it is, so that the consumer notices one that stopped.

A heartbeat is a change batch without changes, as an announcement is, and says up to when everything is published. So it
takes the way that changes take, and a consumer that does not know heartbeats takes it as an announcement.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import msgspec

from shared.contracts.change_batch import Header
from shared.contracts.timestamps import Nanoseconds, microseconds
from shared.reading.publishing import ConfirmedPublishing


class TopicHeartbeats:
    """Publishes how far all readers of a source are, again and again: also while it is paused or stands still."""

    def __init__(
        self,
        publishing: ConfirmedPublishing,
        every: timedelta,
        header: Callable[[], Header | None],
        reached: Callable[[], Nanoseconds | None],
    ) -> None:
        """``header`` returns one of a table that is read, ``reached`` the low watermark; None: not known yet."""
        self._publishing = publishing
        self._every = every
        self._header = header
        self._reached = reached

    async def keep_publishing(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(self._every.total_seconds())
            header, reached = self._header(), self._reached()
            if header is not None and reached is not None:
                heartbeat = msgspec.structs.replace(header, published_until=microseconds(reached))
                await self._publishing.announce(heartbeat)
