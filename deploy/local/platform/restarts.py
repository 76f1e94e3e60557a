"""Services of the platform that stays: one that has died is restarted, until it is plain that this does not help."""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from deploy.local.platform.processes import Process, ProcessDiedError, Processes
from deploy.local.platform.services import Service
from shared.runtime.clock import Clock

WINDOW: Final = timedelta(minutes=5)
MOST: Final = 5
"""Restarts of one service within the window; it is given up after that."""
_MISCONFIGURED: Final = 2
"""The exit code of a service that needs a person: a restart would end in the same way."""


class Restarts:
    """Restarts services after 1, 2, 4, ... seconds. Not thread-safe."""

    def __init__(
        self, processes: Processes, services: Sequence[Service], clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._processes = processes
        self._services = services
        self._clock = clock
        self._say = say
        self._crashes: dict[str, deque[int]] = {service.process.name: deque() for service in services}
        self._due: dict[str, int] = {}

    def restart_ended(self) -> bool:
        """Restart what is due, and return whether anything was; ProcessDiedError where a restart does not help."""
        restarted = False
        for process in self._processes.dead:
            if process.name not in self._crashes:  # an emulator, whose data have died with it
                self._processes.check()
            if process.name not in self._due:
                self._due[process.name] = self._clock.now() + self._wait(process)
            elif self._clock.now() >= self._due[process.name]:
                del self._due[process.name]
                service = next(one for one in self._services if one.process is process)
                service.process = self._processes.restart(process)
                self._say(f"{process.name} is restarted")
                restarted = True
        return restarted

    def _wait(self, process: Process) -> int:
        """Return how long to wait, in nanoseconds."""
        now, crashes = self._clock.now(), self._crashes[process.name]
        window = WINDOW // timedelta(microseconds=1) * 1000
        while crashes and crashes[0] < now - window:
            crashes.popleft()
        crashes.append(now)
        if process.exit_code == _MISCONFIGURED:
            raise ProcessDiedError(f"a restart would not help: {process.obituary()}")
        if len(crashes) > MOST:
            raise ProcessDiedError(f"given up after {MOST} restarts within {WINDOW}: {process.obituary()}")
        seconds = 1 << (len(crashes) - 1)
        self._say(f"{process.name} ended with exit code {process.exit_code}; it is restarted in {seconds} s")
        return seconds * 1_000_000_000
