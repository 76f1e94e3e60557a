"""A call that is made again until it succeeds."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop

T = TypeVar("T")


async def retried(stop: Stop, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again until it succeeds, or until asked to stop."""
    async for attempt in retrying_async(stop):
        with attempt:
            return await call()
    raise AssertionError("a retry ends with a value or an error")
