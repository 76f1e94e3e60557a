"""Stopping is a value handed down: only `__main__` touches signals, loops ask, waits are waits on it."""

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, Final, TypeVar

from shared.contracts.errors import TransientError

T = TypeVar("T")

_MOMENT: Final = timedelta(seconds=1)
"""In which what is under way at a stop may still end: a claim that is not remembered lasts until its lease ends."""


class Stop:
    """Whether the process has been asked to stop. Safe to use from any thread; asked once, it stays asked."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._requested_at = math.inf
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """Return whether to stop."""
        return self.event.is_set()

    def left_of(self, grace: timedelta) -> float:
        """Return how many seconds are left of a time that begins when it is asked to stop; none are negative."""
        return max(0.0, grace.total_seconds() - max(0.0, time.monotonic() - self._requested_at))

    def request(self) -> None:
        """Ask everything that holds this value to stop."""
        with self._lock:
            if self.event.is_set():
                return
            self._requested_at = time.monotonic()
            self.event.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def wait(self, timeout: timedelta) -> bool:
        """Wait until asked to stop, at most for ``timeout``; return whether to stop."""
        return self.event.wait(timeout.total_seconds())

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` when asked to stop, at once if that has been; forget it at the end of the block."""
        with self._lock:
            self._callbacks.append(callback)
            already = self.event.is_set()
        if already:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    async def wait_async(self) -> None:
        """Wait in an event loop until asked to stop."""
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()
        with self.calling(lambda: _wake(loop, asked)):
            await asked.wait()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Hand out a Stop that SIGTERM and SIGINT request; the handlers that were there are put back at the end.

    After a stop they are not: the process is on its way out, and a second signal is to change neither that nor its
    exit code.
    """
    stop = Stop()

    def request(_signal: int, _frame: FrameType | None) -> None:
        # From a thread: the handler runs inside the main thread, which may be holding the event's own lock.
        threading.Thread(target=stop.request, name="stop", daemon=True).start()

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stop.requested else handler)


async def until_stopped(stop: Stop, call: Coroutine[Any, Any, T]) -> T:
    """Return what a call returns, or raise what it raises; TransientError where it goes on after a stop.

    It is cancelled then, and over.
    """
    task, stopping = asyncio.create_task(call), asyncio.create_task(stop.wait_async())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([task], timeout=_MOMENT.total_seconds())
        if not task.done():
            raise TransientError("asked to stop before there was an answer")
        return task.result()
    finally:
        task.cancel()
        stopping.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)


async def in_thread(call: Callable[[Stop], T]) -> T:
    """Run a call in a thread and return its result; if the task is cancelled, the call's `Stop` is requested."""
    stop = Stop()
    try:
        return await asyncio.to_thread(call, stop)
    except asyncio.CancelledError:
        stop.request()  # the thread is not waited for by who cancelled, but by the end of the loop
        raise


@contextmanager
def unless_stopped(stop: Stop) -> Iterator[None]:
    """Let errors through, but no TransientError after a stop: that is a retry which the stop has ended, no failure."""
    try:
        yield
    except TransientError:
        if not stop.requested:
            raise


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
