"""Polls the other services every few seconds, so that no page waits for one."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import structlog

from services.dead_letter.core.statuses import Silence, WatchedService, polled, unanswered
from services.dead_letter.ports import ANSWERS_WITHIN, SilentError, StatusPages
from shared.runtime.clock import Clock
from shared.runtime.stop import Stop

EVERY: Final = timedelta(seconds=5)
_FIRST: Final = ANSWERS_WITHIN + timedelta(seconds=1)
"""The first poll waits so long for answers: for longer than it takes to give one up."""


class ServicePoller:
    """The services of a setting, by name; each is polled on a thread of its own."""

    def __init__(
        self, services: Mapping[str, str], pages: StatusPages, clock: Clock, first: timedelta = _FIRST
    ) -> None:
        self._pages = pages
        self._clock = clock
        self._first = first.total_seconds()
        self._condition = threading.Condition()
        self._seen = {name: WatchedService(name=name, address=address) for name, address in services.items()}
        self._ended = False

    def services(self) -> Sequence[WatchedService]:
        """Return each service as it was polled last; wait, for a bounded time, for one that never was."""
        with self._condition:
            self._condition.wait_for(lambda: self._ended or self._all_polled(), self._first)
            return list(self._seen.values())

    @contextmanager
    def polling(self, stop: Stop) -> Iterator[None]:
        """Poll while the block runs."""
        threads = [
            threading.Thread(target=self._run, args=(name,), name=f"poll-{name}", daemon=True) for name in self._seen
        ]
        for thread in threads:
            thread.start()
        try:
            with stop.calling(self._end):
                yield
        finally:
            self._end()
            for thread in threads:
                thread.join()

    def poll(self, name: str) -> None:
        """Ask one service now."""
        before = self._seen[name]
        try:
            after = polled(before, self._pages.ask(before.address), self._clock.now())
        except SilentError as error:
            after = unanswered(before, error.silence, str(error), self._clock.now())
        except ValueError as error:
            after = unanswered(before, Silence.NO_STATUS, str(error), self._clock.now())
        if after.silence is not before.silence:
            structlog.get_logger().info("service_polled", polled=name, error=after.error)
        with self._condition:
            self._seen[name] = after
            self._condition.notify_all()

    def _run(self, name: str) -> None:
        while not self._ended:
            self.poll(name)
            with self._condition:
                self._condition.wait_for(lambda: self._ended, EVERY.total_seconds())

    def _end(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def _all_polled(self) -> bool:
        return all(one.polled_at is not None for one in self._seen.values())
