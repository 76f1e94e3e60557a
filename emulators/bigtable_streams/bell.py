"""A bell for tasks of one event loop: it wakes every waiting task when it rings."""

import asyncio


class Bell:
    """Wakes all who wait at the time it rings."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake those who wait."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def wait(self, seconds: float) -> None:
        """Return when the bell rings, or after some seconds."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait([waiting], timeout=max(seconds, 0.0))
        finally:
            self._waiting.discard(waiting)
