"""Services of the platform that stays: one that has died is restarted, after pauses that grow.

It gets the settings that its settings file holds at that time: so a setting can be corrected.
"""

import shlex
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from deploy.local.platform.processes import Process, Processes
from deploy.local.platform.services import Service
from shared.runtime.clock import Clock

_WINDOW: Final = timedelta(minutes=5)
"""For how long a death makes the next pause longer."""
LONGEST: Final = 60
"""The longest pause, in seconds."""
_MISCONFIGURED: Final = 2
"""The exit code of a service that needs a person."""


class Restarts:
    """Restarts services after 1, 2, 4, ... seconds. Not thread-safe."""

    def __init__(
        self, processes: Processes, services: Sequence[Service], clock: Clock, print_line: Callable[[str], None]
    ) -> None:
        self._processes = processes
        self._services = services
        self._clock = clock
        self._print_line = print_line
        self._crashes: dict[str, deque[int]] = {service.process.name: deque() for service in services}
        self._due: dict[str, int] = {}

    def restart_ended(self) -> bool:
        """Restart what is due, and return whether anything was; ProcessDiedError where an emulator has died."""
        restarted = False
        for process in self._processes.dead:
            if process.name not in self._crashes:  # an emulator, whose data have died with it
                self._processes.check()
            if process.name not in self._due:
                self._due[process.name] = self._clock.now() + self._wait(process)
            elif self._clock.now() >= self._due[process.name]:
                del self._due[process.name]
                service = next(one for one in self._services if one.process is process)
                service.process = self._processes.restart(process, _settings_in(self._settings_file(process)))
                self._print_line(f"{process.name} is restarted")
                restarted = True
        return restarted

    def _wait(self, process: Process) -> int:
        """Return how long to wait, in nanoseconds."""
        now, crashes = self._clock.now(), self._crashes[process.name]
        window = _WINDOW // timedelta(microseconds=1) * 1000
        while crashes and crashes[0] < now - window:
            crashes.popleft()
        crashes.append(now)
        seconds = min(1 << (len(crashes) - 1), LONGEST)
        self._print_line(f"{process.name} ended with exit code {process.exit_code}; it is restarted in {seconds} s")
        if process.exit_code == _MISCONFIGURED:
            settings = self._settings_file(process)
            self._print_line(f"it needs you: the end of {process.log} says what; settings: {settings}")
        return seconds * 1_000_000_000

    def _settings_file(self, process: Process) -> Path:
        return self._processes.directory / f"{process.name}.env"


def _settings_in(file: Path) -> dict[str, str]:
    """Return what a file of `export NAME=value` lines sets."""
    words = shlex.split(file.read_text(), comments=True) if file.exists() else []
    return dict(word.split("=", 1) for word in words if "=" in word)
