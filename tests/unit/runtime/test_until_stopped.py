"""A call that a stop ends, after a moment in which it may end by itself."""

import asyncio

import pytest

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.stop import Stop, until_stopped


async def never(cancelled: asyncio.Event) -> None:
    """Wait for an answer that does not come."""
    try:
        await asyncio.sleep(1_000_000)
    finally:
        cancelled.set()


async def test_a_call_that_is_never_answered_is_cancelled_soon_after_the_stop() -> None:
    stop = Stop()
    cancelled = asyncio.Event()
    asyncio.get_running_loop().call_later(100, stop.request)
    with pytest.raises(TransientError):
        await until_stopped(stop, never(cancelled))
    assert cancelled.is_set()
    assert 100 <= asyncio.get_running_loop().time() <= 102


async def test_what_ends_by_itself_in_time_keeps_its_answer_or_its_error() -> None:
    stop = Stop()

    async def answer() -> int:
        await asyncio.sleep(0.5)
        return 7

    async def failure() -> int:
        await asyncio.sleep(0.5)
        raise MisconfiguredError("made-up", "NOT_FOUND")

    assert await until_stopped(stop, answer()) == 7
    stop.request()
    assert await until_stopped(stop, answer()) == 7
    with pytest.raises(MisconfiguredError):
        await until_stopped(stop, failure())


async def test_who_is_cancelled_cancels_the_call() -> None:
    cancelled = asyncio.Event()
    waiting = asyncio.create_task(until_stopped(Stop(), never(cancelled)))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert cancelled.is_set()
