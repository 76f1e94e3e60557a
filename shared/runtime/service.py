"""How a service begins and ends: what its logs say first and last, and the exit code."""

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict
from typing import Any, ClassVar, Final, Protocol

import structlog

from shared.contracts.errors import MisconfiguredError
from shared.runtime.logs import configure_logs

MISCONFIGURED: Final = 2
"""The exit code where nothing will work until someone acts."""

_PROJECT: Final = "millrace"


class AnySettings(Protocol):
    """The settings of some service: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def run_as(service: str, run: Callable[[], int]) -> int:
    """Run a service, or a command beside it, whose name its logs bear; return the exit code.

    MISCONFIGURED where MisconfiguredError is raised: the log says what to do.
    """
    configure_logs(service=service)
    try:
        return run()
    except MisconfiguredError as error:
        misconfigured(error)
        return MISCONFIGURED


def misconfigured(error: MisconfiguredError) -> None:
    """Log what only a person can mend."""
    structlog.get_logger().error("service_misconfigured", error=str(error))


def started(service: str, level: str, settings: Mapping[str, object]) -> None:
    """Log from this level on, and first of all that a service was started, and how it was set."""
    configure_logs(service=service, level=level)
    structlog.get_logger().info("service_started", version=_version(), **settings)


def stopped() -> None:
    """Log that a service has ended, as it should."""
    structlog.get_logger().info("service_stopped")


def settings_shown(settings: AnySettings) -> Mapping[str, object]:
    """Return settings as they are logged. Those that hold secrets have to do that by themselves."""
    return {name: value if isinstance(value, int | None) else str(value) for name, value in asdict(settings).items()}


def _version() -> str:
    try:
        return importlib.metadata.version(_PROJECT)
    except importlib.metadata.PackageNotFoundError:  # run from the source tree
        return "source"
