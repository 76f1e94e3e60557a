"""A call's messages from its thread to the event loop: all, in their order, and never more than there is room for."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from queue import Empty, Queue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.reading.byte_budget import ByteBudget
from shared.streams.message_feed import portions
from tests.seeds import examples

NAME = "a call of a test"
_END = object()


class EndedError(Exception):
    """What a call ends with."""


class Call:
    """A call whose messages are said by hand, from any thread; it is over when it is cancelled, as gRPC's is."""

    def __init__(self, *messages: bytes, ends: bool = True, error: Exception | None = None) -> None:
        self._messages: Queue[object] = Queue()
        self._error = error
        self.taken = 0
        self.cancelled = threading.Event()
        for message in messages:
            self.add(message)
        if ends:
            self._messages.put(_END)

    def add(self, message: bytes) -> None:
        """Let one more message come."""
        self._messages.put(message)

    def cancel(self) -> None:
        """End the call."""
        self.cancelled.set()
        self._messages.put(_END)

    def __iter__(self) -> Iterator[bytes]:
        while not self.cancelled.is_set():
            message = self._messages.get()
            if not isinstance(message, bytes):
                break
            self.taken += 1
            yield message
        if self._error is not None:
            raise self._error

    def left(self) -> int:
        """Return how many messages nobody has asked for."""
        left = 0
        try:
            while self._messages.get_nowait() is not _END:
                left += 1
        except Empty:
            pass
        return left


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


async def all_of(found: AsyncGenerator[Sequence[bytes], None]) -> list[bytes]:
    async with aclosing(found):
        return [message async for portion in found for message in portion]


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=60), st.integers(1, 50), st.booleans())
def test_every_message_comes_once_and_in_its_order_however_little_room_there_is(
    messages: list[bytes], most_bytes: int, fails: bool
) -> None:
    error = EndedError() if fails else None
    budget = ByteBudget(most_bytes)
    got: list[bytes] = []

    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            aclosing(portions(lambda: Call(*messages, error=error), NAME, budget)) as found,
        ):
            async for portion in found:
                assert portion
                got.extend(portion)

    if fails:
        with pytest.raises(EndedError):
            asyncio.run(scenario())
    else:
        asyncio.run(scenario())
    assert got == messages  # also of a call that failed: what came before
    assert budget.used == 0
    assert threads() == 0


def test_who_does_not_take_lets_the_call_wait() -> None:
    call = Call(*[b"0123456789"] * 1_000, ends=False)

    async def scenario() -> None:
        async with aclosing(portions(lambda: call, NAME, ByteBudget(200))) as found:
            first = await anext(found)
            taken = -1
            while taken != call.taken:  # until the thread stands still
                taken = call.taken
                await asyncio.sleep(0.05)
            assert first
            assert taken == 10  # as many bytes as are left, with what was taken and is not handed over: half of all

    asyncio.run(scenario())
    assert call.left() >= 900  # nobody has asked for these, also at the end
    assert threads() == 0


def test_what_comes_after_a_pause_comes_at_once_and_closing_ends_a_call_that_reports_nothing() -> None:
    call = Call(b"1", ends=False)

    async def scenario() -> None:
        async with asyncio.timeout(30), aclosing(portions(lambda: call, NAME, ByteBudget())) as found:
            assert await anext(found) == [b"1"]
            asking = asyncio.ensure_future(anext(found))
            await asyncio.sleep(0.05)
            assert not asking.done()
            call.add(b"2")
            assert await asking == [b"2"]
            silent = asyncio.ensure_future(anext(found))
            await asyncio.sleep(0.02)
            silent.cancel()
            await asyncio.gather(silent, return_exceptions=True)
            assert call.cancelled.is_set()
            assert threads() == 0

    asyncio.run(scenario())


def test_a_call_that_cannot_be_made_reports_why() -> None:
    def begin() -> Call:
        raise EndedError

    with pytest.raises(EndedError):
        asyncio.run(all_of(portions(begin, NAME, ByteBudget())))
    assert threads() == 0


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=15), min_size=1, max_size=20),
    st.integers(100, 2_000),
)
def test_calls_share_one_budget_and_one_that_is_not_taken_from_holds_up_no_other(
    sizes: list[list[int]], most: int
) -> None:
    budget = ByteBudget(most)
    calls = [Call(*(bytes(size) for size in each)) for each in sizes]
    stuck = Call(*[bytes(100)] * 50, ends=False)
    bound = most + sum(max(each) for each in sizes) + 100

    async def read(call: Call) -> list[int]:
        got = []
        async with aclosing(portions(lambda: call, NAME, budget)) as found:
            async for portion in found:
                got += [len(message) for message in portion]
                assert budget.used <= bound
                await asyncio.sleep(0)
        return got

    async def scenario() -> None:
        async with asyncio.timeout(30), aclosing(portions(lambda: stuck, NAME, budget)) as untaken:
            first = await anext(untaken)
            assert first
            assert await asyncio.gather(*map(read, calls)) == sizes
            await asyncio.to_thread(until_still, stuck)
            assert budget.used <= most / 2 + 100, "alone, it has half"
        assert budget.used == 0

    asyncio.run(scenario())
    assert threads() == 0


def until_still(call: Call) -> None:
    """Return when a call's thread takes no more."""
    taken = -1
    while taken != call.taken:
        taken = call.taken
        time.sleep(0.02)
