"""What waits for the consumer, shown by the readers: they run while it does not. No error of it stops a reader."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, Protocol

import structlog

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.backlog import BacklogMetrics, SubscriptionBacklog

_STALE: Final = timedelta(minutes=10)
"""How long the last values are shown while no new ones can be read."""


class Backlogs(Protocol):
    """What knows the backlogs of subscriptions."""

    async def read(self) -> Sequence[SubscriptionBacklog]:
        """Return them; TransientError or MisconfiguredError where they cannot be had."""


class BacklogWatch:
    """Reads the backlogs again and again, and shows them."""

    def __init__(self, backlogs: Backlogs | None, metrics: BacklogMetrics, every: timedelta) -> None:
        """``backlogs``: None where nothing knows them, as beside an emulator of Pub/Sub."""
        self._backlogs = backlogs
        self._metrics = metrics
        self._every = every
        self._read_at: float | None = None
        self._error = ""
        self._log = structlog.get_logger()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Read them while the block runs."""
        task = asyncio.create_task(self._keep_reading(), name="backlogs")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_reading(self) -> None:
        if self._backlogs is None:
            self._log.info("backlog_not_shown", why="an emulator of Pub/Sub has no Cloud Monitoring that counts it")
            return
        while True:
            await self._read(self._backlogs)
            await asyncio.sleep(self._every.total_seconds())

    async def _read(self, backlogs: Backlogs) -> None:
        now = asyncio.get_running_loop().time()
        try:
            self._metrics.show(await backlogs.read())
        except (TransientError, MisconfiguredError) as error:
            self._metrics.failed()
            if self._read_at is None or now - self._read_at > _STALE.total_seconds():
                self._metrics.show(())
            if not self._error:
                self._log.warning("backlog_not_read", error=str(error))
            self._error = str(error)
        else:
            if self._error:
                self._log.info("backlog_read_again")
            self._error, self._read_at = "", now
