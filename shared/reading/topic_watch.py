"""Whether the topic still keeps what is published to it: checked again and again while changes are read."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol

import structlog

from shared.contracts.errors import MessagesLostError, MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp


class RetainingSubscriptions(Protocol):
    """The topic's subscriptions, which retain what is published."""

    async def check(self) -> None:
        """Raise MisconfiguredError if what is published now would be discarded, or kept for too short a time."""


class TopicWatch:
    """Checks the topic's subscriptions; once they lose messages, a confirmation by Pub/Sub no longer counts."""

    def __init__(
        self,
        check: Callable[[], Awaitable[None]],
        every: timedelta,
        reached: Callable[[], Nanoseconds | None],
        *,
        new_start: str,
        lost: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``check`` raises MisconfiguredError where messages may be lost, MessagesLostError where they are.

        ``reached`` returns the low watermark, and ``new_start`` is the setting whose value has to change for a new
        start. ``lost`` records durably that messages were lost, for the next start.
        """
        self.is_durable = True
        """Whether what Pub/Sub has confirmed is kept; False from the first check on that finds otherwise."""
        self._check = check
        self._every = every
        self._reached = reached
        self._new_start = new_start
        self._lost = lost
        self._sure_until: Nanoseconds | None = None
        self._log = structlog.get_logger()

    async def keep_checking(self) -> None:
        """Check until cancelled. MisconfiguredError when messages are lost, with what to do."""
        while True:
            await asyncio.sleep(self._every.total_seconds())
            reached = self._reached()
            try:
                await self._check()
            except TransientError as error:
                self._log.warning("subscriptions_not_checked", error=str(error))
            except MisconfiguredError as error:
                # From here on nothing that Pub/Sub confirms counts: it may have been discarded.
                self.is_durable = False
                self._log.error("topic_loses_messages", error=str(error))
                request_resync = self._lost if isinstance(error, MessagesLostError) else None
                if request_resync is not None:
                    await request_resync()
                sure = "the start" if self._sure_until is None else format_timestamp(self._sure_until)
                raise MisconfiguredError(
                    error.code,
                    f"{error.message}\nChanges committed up to {sure} were published while the topic was in order; "
                    "later ones may be lost, and so is what a deleted subscription still held. Fix the topic, "
                    f"{'and do what `status` says of resyncs; or ' if request_resync else ''}stop every reader, and "
                    f"start again with another {self._new_start} and a START_TIMESTAMP before the oldest change "
                    "that was not applied",
                ) from error
            else:
                self._sure_until = reached
