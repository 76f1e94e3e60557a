"""Commands of `millrace`, run with the settings that a pipeline has."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import AnyPipeline
from shared.runtime.stop import Stop


class Launcher(Protocol):
    """Runs a command of `millrace`, with the settings of the consumer and of the reader of a pipeline."""

    def __call__(self, pipeline: AnyPipeline, *words: str) -> "subprocess.CompletedProcess[str]":
        """Return how the command ended, and its output."""


@dataclass(frozen=True)
class LocalLauncher:
    """Runs the commands on this machine; a stop ends the one that runs."""

    environment: Mapping[str, str]
    stop: Stop

    def __call__(self, pipeline: AnyPipeline, *words: str) -> "subprocess.CompletedProcess[str]":
        """Return how the command ended, and its output."""
        variables = {**pipeline.consumer_environment(Path()), **pipeline.reader_environment(), "PYTHONPATH": str(ROOT)}
        with (
            subprocess.Popen(
                [sys.executable, "-m", "services", *words],
                env={**self.environment, **variables, **source_rows(pipeline)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as command,
            self.stop.calling(command.terminate),
        ):
            output, complaint = command.communicate()
        return subprocess.CompletedProcess(command.args, command.returncode, output, complaint)


def source_rows(pipeline: AnyPipeline) -> Mapping[str, str]:
    """Return the setting that names the command of a reader that answers for its rows."""
    return {"SOURCE_ROWS": f"python -m {pipeline.module} rows"}
