"""Processes of the local platform: each guarded, with a log of its own, noticed and named when it dies.

Ending is the same whether it is requested or this process is killed: a guard (see guard.py) holds each command and
ends its whole session when our end of a pipe is closed.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, Self, TypeVar

import psutil

from deploy.local.platform import guard
from shared.runtime.stop import Stop

T = TypeVar("T")

GRACE: Final = timedelta(seconds=12)
"""How long a process may take to end: the ten seconds that a service has to finish what is in flight, and some."""
TAIL: Final = 15
_PAUSE: Final = timedelta(milliseconds=20)
_numbers: Final = itertools.count()


class ProcessDiedError(Exception):
    """A process ended that should be running, or never became ready; the message names it and ends with its log."""


class StopRequestedError(Exception):
    """A wait was given up because the owner has been asked to stop."""


class Process:
    """One guarded command. Made by `Processes.start`."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.command = (arguments, environment)
        self.log = directory / f"{name}.log"
        self._pid_file = directory / f"{name}.{next(_numbers)}.pid"  # another of this name may run
        self._pid_file.unlink(missing_ok=True)
        self._ending = threading.Lock()
        self.expected_to_end = False
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        reading, self._pipe = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._guard = subprocess.Popen(
                    [
                        *(sys.executable, "-P", guard.__file__),
                        *(str(reading), str(self._pid_file), str(GRACE.total_seconds())),
                        *arguments,
                    ],
                    env=dict(environment),
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[reading],
                    start_new_session=True,  # Ctrl-C reaches the owner alone, which ends the rest in its order
                )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)

    @property
    def session(self) -> int:
        """Return the session (and first process group) that holds the command and whatever it starts."""
        return self._guard.pid

    @property
    def pid(self) -> int:
        """Return the pid of the command itself; ProcessDiedError where it could not be started."""
        return wait_until(self._read_pid, f"{self.name} to start", [self], timeout=timedelta(seconds=20))

    @property
    def exit_code(self) -> int | None:
        """Return how the command ended (128 + n: by signal n), or None while it runs."""
        return self._guard.poll()

    def wait(self, timeout: timedelta) -> int | None:
        """Wait for the command to end by itself; return its exit code, or None where it still runs."""
        try:
            return self._guard.wait(timeout.total_seconds())
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Ask the command to end, wait for it and for all of its session; kill what outlives the grace."""
        self.ask_to_end()
        if self.wait(GRACE + timedelta(seconds=5)) is None:
            self._guard.kill()
            self._guard.wait()
        guard.kill_session(self.session)

    def ask_to_end(self) -> None:
        """Send the command SIGTERM, through its guard, without waiting."""
        with self._ending:
            self.expected_to_end = True
            if self._pipe >= 0:
                os.close(self._pipe)
                self._pipe = -1

    def kill(self) -> None:
        """Kill the command and all of its session (SIGKILL), as a crash of its machine would."""
        self.expected_to_end = True
        guard.kill_session(self.session, but=self.session)
        self.end()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of the command's session, such as SIGSTOP and SIGCONT."""
        for process in guard.session_members(self.session):
            if process.pid != self.session:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def output(self) -> str:
        """Return what this start of the command has written so far."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    def obituary(self) -> str:
        """Say how the command ended, with the last lines of its log."""
        lines = [f"  | {line}" for line in self.output().splitlines()[-TAIL:]]
        ending = "still runs" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        return "\n".join([f"{self.name} {ending}; the end of {self.log}:", *(lines or ["  | (nothing)"])])

    def _read_pid(self) -> int | None:
        with suppress(FileNotFoundError, ValueError):
            return int(self._pid_file.read_text())
        return None


class Processes:
    """The processes of one owner, with their logs in one directory; all of them end when the block does.

    ``environment`` is what every process gets, each adding its own. A process that ends unasked is reported to
    ``on_unexpected_end`` at once, from a thread, and to the owner by `check`.
    """

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        stop: Stop | None = None,
        on_unexpected_end: Callable[[Process], None] | None = None,
    ) -> None:
        self.directory = directory
        self.stop = stop or Stop()
        self.environment = environment
        self._on_unexpected_end = on_unexpected_end
        self._running: list[tuple[Process, threading.Thread]] = []
        self._dead: list[Process] = []
        directory.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        """Start a command; its output is appended to ``name.log``."""
        process = Process(name, arguments, {**self.environment, **(environment or {})}, self.directory)
        # a daemon, so that an owner that ends without leaving the block ends at all, and the pipes close
        watcher = threading.Thread(target=self._watch, args=(process,), name=f"watch {name}", daemon=True)
        self._running.append((process, watcher))
        watcher.start()
        return process

    @property
    def dead(self) -> Sequence[Process]:
        """Return the processes that have ended by themselves and were not restarted."""
        return list(self._dead)

    def restart(self, dead: Process, changed: Mapping[str, str]) -> Process:
        """Start the command of a process that has died again, with the same log, in its place.

        ``changed`` is added to its environment, and wins.
        """
        arguments, environment = dead.command
        dead.end()
        process = self.start(dead.name, arguments, {**environment, **changed})
        self._dead.remove(dead)
        started = self._running.pop()
        place = self.running.index(dead)
        self._running[place] = started
        return process

    def check(self) -> None:
        """Raise ProcessDiedError where a process has ended by itself."""
        if self._dead:
            raise ProcessDiedError("\n".join(process.obituary() for process in list(self._dead)))

    @property
    def running(self) -> Sequence[Process]:
        """Return the processes started here and not ended here, the first started first."""
        return [process for process, _ in self._running]

    def sessions(self) -> list[int]:
        """Return the sessions of the processes started here."""
        return [process.session for process in self.running]

    def end_all(self) -> None:
        """End every process, the last started first, each before those that it stands on."""
        while self._running:
            process, watcher = self._running[-1]
            process.end()
            watcher.join()
            self._running.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end_all()

    def wait_until(self, ready: Callable[[], T | None], what: str, timeout: timedelta) -> T:
        """Wait for something to come true while all the processes live; see `wait_until`."""
        return wait_until(ready, what, self.running, timeout, self.stop)

    def _watch(self, process: Process) -> None:
        while process.wait(timedelta(seconds=60)) is None:
            pass
        if not process.expected_to_end:
            self._dead.append(process)
            guard.kill_session(process.session)
            if self._on_unexpected_end is not None:
                self._on_unexpected_end(process)


def wait_until(
    ready: Callable[[], T | None],
    what: str,
    processes: Sequence[Process] = (),
    timeout: timedelta = timedelta(seconds=30),
    stop: Stop | None = None,
    pause: timedelta = _PAUSE,
) -> T:
    """Return what ``ready`` returns once that is neither None nor False.

    ProcessDiedError when one of the processes ends unasked or the time is over, with the log of the first of them;
    StopRequestedError when asked to stop.
    """
    stop = stop or Stop()
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        answer = ready()
        if answer is not None and answer is not False:
            return answer
        for process in processes:
            if process.exit_code is not None and not process.expected_to_end:
                raise ProcessDiedError(f"waited for {what}, but {process.obituary()}")
        if time.monotonic() > deadline:
            ends = "\n".join(process.obituary() for process in processes[-1:])
            raise ProcessDiedError(f"waited {timeout.total_seconds():.0f} s for {what}, in vain. {ends}")
        if stop.wait(pause):
            raise StopRequestedError(f"asked to stop while waiting for {what}")
