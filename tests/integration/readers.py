"""Readers of a source as processes, and commands beside them: how they are started and waited for, and their output."""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import Process, Processes
from shared.pubsub.topology import PubsubTopology
from shared.runtime.service import MISCONFIGURED
from tests.integration.log_lines import events
from tests.worlds.commands import run_command

STARTS: Final = timedelta(seconds=60)
"""How long a start may take, on a busy machine."""
TIMEOUT: Final = timedelta(seconds=120)


class Readers(ABC):
    """The readers of one source; what is below this class names what they stand on."""

    module: ClassVar[str]
    pubsub: str
    topology: PubsubTopology
    processes: Processes
    readers: int = 0
    """How many were started, commands beside them too."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return the settings of a reader."""

    @abstractmethod
    def write(self) -> None:
        """Commit a change."""

    @abstractmethod
    def wait_for_all(self) -> None:
        """Wait until everything committed has arrived."""

    def start(self, **variables: str) -> Process:
        """Start a reader and wait until it reads."""
        reader = self.launch(**variables)
        self.processes.wait_until(lambda: ready(reader), "the reader", STARTS)
        return reader

    def launch(self, *command: str, **variables: str) -> Process:
        """Start a reader, or a command beside it."""
        self.readers += 1
        environment = {"PYTHONPATH": str(ROOT), "LOG_LEVEL": "DEBUG", **self.environment(), **variables}
        arguments = [sys.executable, "-m", self.module, *command]
        return self.processes.start(f"reader_{self.readers}", arguments, environment)

    def refused(self, **variables: str) -> str:
        """Start a reader that refuses; return its output."""
        return refusal(self.launch(**variables))

    def run_command(self, *words: str, **variables: str) -> tuple[int | None, str]:
        """Run a command beside the readers to its end; return its exit code and its output."""
        environment = {**self.processes.environment, "LOG_LEVEL": "DEBUG", **self.environment(), **variables}
        ended = run_command(self.module, words, environment)
        return ended.returncode, ended.stdout + ended.stderr

    def status(self) -> tuple[int | None, Mapping[str, Any]]:
        """Return the exit code and the document of `status`."""
        code, output = self.run_command("status", "--json")
        return code, json.loads(output)

    def wait(
        self,
        ready: Callable[[], bool],
        what: str,
        pull: Callable[[], object] = lambda: None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        """Wait for something to come true while no reader dies unasked; ``pull`` takes what came before a check."""

        def arrived() -> bool:
            pull()
            return ready()

        self.processes.wait_until(arrived, what, timeout)


def refusal(reader: Process, within: timedelta = STARTS) -> str:
    """Wait until a reader has refused to read on or to begin; return its output."""
    assert reader.wait(within) == MISCONFIGURED, reader.obituary()
    reader.end()
    return reader.output()


def stop(reader: Process) -> None:
    """Ask a reader to stop, which is quick and good."""
    reader.ask_to_end()
    assert reader.wait(timedelta(seconds=10)) == 0, reader.obituary()
    reader.end()


def ready(reader: Process) -> bool:
    """Return whether a reader has begun to read, or is there to take over."""
    if reader.exit_code is not None:
        raise AssertionError(reader.obituary())
    return bool(events(reader, "partition_claimed") or events(reader, "resumed"))
