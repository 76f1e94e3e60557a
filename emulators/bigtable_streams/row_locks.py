"""Locks of a table's rows, so that the stream has the changes of a row in the order the emulator applied them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


class RowLocks:
    """Rows one by one, or the table as a whole. For tasks of one event loop."""

    def __init__(self) -> None:
        self._locked: dict[bytes, deque[asyncio.Future[None]]] = {}
        self._writers = 0
        self._table = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def rows(self, keys: Iterable[bytes]) -> AsyncIterator[None]:
        """Hold some rows inside the block. Taken in key order, so two holders never wait for each other."""
        if self._table.locked():
            async with self._table:
                self._enter()
        else:
            self._enter()
        taken: list[bytes] = []
        try:
            for key in sorted(set(keys)):
                waiting = self._locked.get(key)
                if waiting is None:
                    self._locked[key] = deque()
                else:
                    turn = asyncio.get_running_loop().create_future()
                    waiting.append(turn)
                    try:
                        await turn
                    except asyncio.CancelledError:
                        if not turn.cancelled():  # it was this one's turn already
                            self._release(key)
                        raise
                taken.append(key)
            yield
        finally:
            for key in taken:
                self._release(key)
            self._writers -= 1
            if not self._writers:
                self._idle.set()

    @asynccontextmanager
    async def table(self) -> AsyncIterator[None]:
        """Lock the whole table inside the block: it waits for locks of rows, and they wait for it."""
        async with self._table:
            await self._idle.wait()
            yield

    def _enter(self) -> None:
        self._writers += 1
        self._idle.clear()

    def _release(self, key: bytes) -> None:
        waiting = self._locked[key]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():  # one that was given up is
                turn.set_result(None)  # the row passes on without ever being free
                return
        del self._locked[key]
