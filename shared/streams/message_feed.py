"""The messages of one streaming call, taken in a thread of its own and handed to the event loop many at a time.

gRPC for Python takes two to four times as much CPU for a message where an event loop waits for each. Here a thread
waits, in the single-threaded way that gRPC has for such calls, and the loop is woken once for all that has come.
Back-pressure is kept: where a call has used up its share of the bytes of all calls, its thread takes no more, and gRPC
lets the server wait. A portion counts until the next one is asked for, because only then is it handed over.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from shared.reading.byte_budget import ByteBudget, ByteShare

_REST: Final = 0.005
"""Seconds between one portion and the next: what comes meanwhile comes together. What comes after a pause, at once."""
_MANY: Final = 16
_LONGER: Final = 5
"""Times that is rested behind a portion of so many messages: each portion wakes everybody that works on it."""


async def portions(begin: Callable[[], Any], name: str, budget: ByteBudget) -> AsyncGenerator[Sequence[bytes], None]:
    """Yield the messages of the call that ``begin`` makes, as bytes, never none; raise what ends it (grpc.RpcError).

    Closing the generator ends the call, and returns when its thread is over.
    """
    feed = _Feed(begin(), name, budget.share())
    try:
        while taken := await feed.take():
            yield taken
            feed.handed_over()
            await asyncio.sleep(_REST * (_LONGER if len(taken) >= _MANY else 1))
    finally:
        feed.end()


class _Feed:
    """What the thread has put in and the loop has not taken out. Each field is written on one side only, but for three:
    the box, whose ends are each one side's, the share, which has a lock, and the flag, which the loop takes back before
    it looks into the box.
    """

    def __init__(self, call: Any, name: str, share: ByteShare) -> None:
        self._call = call
        self._share = share
        self._taken = 0
        """Bytes of the portion that the loop has."""
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._box: deque[bytes] = deque()
        self._is_signalled = False
        self._filled = asyncio.Event()
        self._room = threading.Event()
        self._error: Exception | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def take(self) -> Sequence[bytes]:
        """Return what has come, once anything has; nothing at the end of the call, or raise what ended it."""
        while True:
            await self._filled.wait()
            is_over = self._is_over  # whatever came before that is in the box
            self._filled.clear()
            self._is_signalled = False
            if taken := [self._box.popleft() for _ in range(len(self._box))]:
                self._taken = sum(map(len, taken))
                if is_over:
                    self._filled.set()
                return taken
            if is_over:
                if self._error is not None:
                    raise self._error
                return ()

    def handed_over(self) -> None:
        """Count what was taken last no more.

        Only this makes room that the thread waits for: where it waits, it has something, which is taken next.
        """
        self._share.add(-self._taken)
        self._taken = 0
        self._room.set()

    def end(self) -> None:
        """Cancel the call unless the server has ended it, and wait for the thread."""
        if not self._is_over:
            self._call.cancel()
        self._ended = True
        self._room.set()
        self._thread.join()
        self._share.add(-self._share.used)

    def _run(self) -> None:
        try:
            for message in self._call:
                self._share.add(len(message))  # before the loop can give it back
                self._box.append(message)
                if not self._is_signalled:
                    self._signal()
                while not self._share.has_room and not self._ended:
                    self._room.clear()
                    if not self._share.has_room and not self._ended:
                        self._room.wait()
        except Exception as error:  # noqa: BLE001  whatever it is, the one who takes must learn of it
            self._error = error
        with suppress(AttributeError):  # of another version: then it leaks, and goes on
            _drain(self._call)
        self._is_over = True
        self._signal()

    def _signal(self) -> None:
        self._is_signalled = True
        with suppress(RuntimeError):  # the loop is closed: nothing takes from the feed
            self._loop.call_soon_threadsafe(self._filled.set)


def _drain(call: Any) -> None:
    """Take what gRPC has still to say of a call that was cancelled: until then it keeps the call, some 20 kB, for ever.

    No public method does it. Source: grpcio 1.85, `_SingleThreadedRendezvous._next_response`, which ends at the first
    event behind a cancellation, and `SegregatedCall`, whose call is released with the last.
    """
    while call._state.due:
        call._consume_next_event()
