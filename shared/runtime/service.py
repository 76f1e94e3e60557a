"""How a service begins and ends: what its logs say first and last, and the exit code."""

import importlib.metadata
import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from shared.contracts.errors import MisconfiguredError
from shared.runtime.logs import configure_logs, log_whatever_happens

MISCONFIGURED: Final = 2
"""The exit code where nothing will work until someone acts."""

_PROJECT: Final = "millrace"


def run_as(service: str, run: Callable[[], int], *, typed: bool = False) -> int:
    """Run a service, or a command beside it, whose name its logs bear; return the exit code.

    MISCONFIGURED where MisconfiguredError is raised: the log says what to do, or, of a command that somebody typed,
    plain words on stderr.
    """
    configure_logs(service=service)
    log_whatever_happens()
    try:
        return run()
    except MisconfiguredError as error:
        if typed:
            complain(str(error))
        else:
            misconfigured(error)
        return MISCONFIGURED


def complain(error: str) -> None:
    """Say in plain words why a command ends."""
    sys.stderr.write(f"error: {error}\n")


def misconfigured(error: MisconfiguredError) -> None:
    """Log what only a person can mend."""
    structlog.get_logger().error("service_misconfigured", error=str(error))


def started(service: str, level: str, settings: Mapping[str, object]) -> None:
    """Log from this level on, and first of all that a service was started, and how it was set."""
    configure_logs(service=service, level=level)
    structlog.get_logger().info("service_started", version=version(), **settings)


def stopped() -> None:
    """Log that a service has ended, as it should."""
    structlog.get_logger().info("service_stopped")


def version() -> str:
    """Return which version runs: what MILLRACE_VERSION says, or the installed package, whose version its image has."""
    if told := os.environ.get("MILLRACE_VERSION", "").strip():
        return told
    try:
        return importlib.metadata.version(_PROJECT)
    except importlib.metadata.PackageNotFoundError:  # run from the source tree
        return "source"
