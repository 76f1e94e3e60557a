"""Commands of `millrace`, run with the settings that a pipeline has."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import AnyPipeline


class Launcher(Protocol):
    """Runs a command of `millrace`, with the settings of the consumer and of the reader of a pipeline."""

    def __call__(self, pipeline: AnyPipeline, *words: str) -> "subprocess.CompletedProcess[str]":
        """Return how the command ended, and its output."""


@dataclass(frozen=True)
class LocalLauncher:
    """Runs the commands on this machine."""

    environment: Mapping[str, str]

    def __call__(self, pipeline: AnyPipeline, *words: str) -> "subprocess.CompletedProcess[str]":
        """Return how the command ended, and its output."""
        told = {**pipeline.consumer_environment(Path()), **pipeline.reader_environment(), "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-m", "services", *words],
            env={**self.environment, **told, **source_rows(pipeline)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def source_rows(pipeline: AnyPipeline) -> Mapping[str, str]:
    """Return the setting that names the command of a reader that answers for its rows."""
    return {"SOURCE_ROWS": f"python -m {pipeline.module} rows"}
