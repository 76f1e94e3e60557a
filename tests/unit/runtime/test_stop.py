"""Stopping is asked once, and everyone who holds the value hears it."""

import asyncio
import os
import signal
import threading
from datetime import timedelta

from shared.runtime.stop import Stop, stop_on_signals


def test_a_wait_ends_when_the_process_is_asked_to_stop() -> None:
    stop = Stop()
    waiter = threading.Thread(target=stop.wait, args=(timedelta(hours=1),))
    waiter.start()

    stop.request()
    waiter.join(timeout=5)

    assert not waiter.is_alive()
    assert stop.requested


def test_a_wait_in_an_event_loop_ends_too_whichever_comes_first() -> None:
    async def waited(stop: Stop, before: bool) -> bool:
        if not before:
            asyncio.get_running_loop().call_soon(stop.request)
        await asyncio.wait_for(stop.wait_async(), timeout=5)
        return stop.requested

    already = Stop()
    already.request()
    assert asyncio.run(waited(already, before=True))
    assert asyncio.run(waited(Stop(), before=False))


def test_a_callback_hears_it_once_and_is_forgotten_after_its_block() -> None:
    stop, heard = Stop(), list[str]()
    with stop.calling(lambda: heard.append("gone")):
        pass
    with stop.calling(lambda: heard.append("here")):
        stop.request()
        stop.request()
    with stop.calling(lambda: heard.append("late")):
        pass

    assert heard == ["here", "late"]


def test_a_signal_is_a_request_and_so_is_another_even_when_all_is_over() -> None:
    with stop_on_signals() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            assert stop.wait(timedelta(seconds=5))
    os.kill(os.getpid(), signal.SIGTERM)  # would end this process


def test_without_a_request_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert signal.getsignal(signal.SIGTERM) is not before
    assert not stop.requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_grace_begins_when_the_process_is_asked_to_stop_whoever_asks_for_what_is_left() -> None:
    stop, grace = Stop(), timedelta(hours=1)
    assert stop.left_of(grace) == 3_600
    stop.request()
    assert 0 < stop.left_of(grace) < 3_600
    assert stop.left_of(timedelta(0)) == 0
