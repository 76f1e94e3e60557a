"""A call that is made again until it succeeds, and one that a stop ends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

from shared.contracts.errors import TransientError
from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop

T = TypeVar("T")

_MOMENT: Final = timedelta(seconds=1)
"""In which what is under way at a stop may still end: a claim that nobody remembers lasts until its lease ends."""


async def retried(stop: Stop, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again until it succeeds, or until asked to stop."""
    async for attempt in retrying_async(stop):
        with attempt:
            return await call()
    raise AssertionError("a retry ends with a value or an error")


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
