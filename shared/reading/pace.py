"""So many a second, and no more."""

import asyncio


class Pace:
    """Lets so many rows pass a second, none at a time when more are due than a second's worth."""

    def __init__(self, rows_per_second: int | None) -> None:
        """None: as many as come."""
        self._rate = rows_per_second
        self._free_at = 0.0
        self._turn = asyncio.Lock()

    async def wait_for(self, rows: int) -> None:
        """Return when so many more may pass."""
        if self._rate is None:
            return
        async with self._turn:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._free_at - loop.time())
            self._free_at = max(self._free_at, loop.time()) + rows / self._rate
