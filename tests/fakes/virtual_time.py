"""An event loop whose clock only moves when nothing else is to be done: waits cost nothing."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Looks without waiting; what would have been waited for is added to the clock."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, now; RuntimeError where nothing could ever happen."""
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits for something that nobody will do")
            self.waited += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. Threads and sockets have no place in it."""

    def __init__(self) -> None:
        self._moved = _Selector()
        super().__init__(self._moved)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._moved.waited

    def leap(self, seconds: float) -> None:
        """Let time pass in which nothing is done: what was due meanwhile is done after it."""
        self._moved.waited += seconds


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
