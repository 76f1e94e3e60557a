"""How a service begins and ends: what its logs say first and last, and the exit code."""

import errno
import importlib.metadata
import os
import select
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TypeVar

import structlog

from shared.contracts.errors import MisconfiguredError
from shared.runtime.last_error import FAILED, keep_last_error, read_last_error
from shared.runtime.logs import configure_logs, log_whatever_happens
from shared.runtime.metrics import BUILD, LAST_FATAL_ERROR
from shared.runtime.retries import name_emulators
from shared.runtime.settings import misspelling, misspelt_variables, read_settings, settings_shown
from shared.runtime.stop import Stop, stop_on_signals

MISCONFIGURED: Final = 2
"""The exit code where nothing will work until someone acts."""

_PROJECT: Final = "millrace"

T = TypeVar("T")


def run_as(service: str, run: Callable[[], int], environ: MutableMapping[str, str], *, typed: bool = False) -> int:
    """Run a service, or a command beside it, whose name its logs bear; return the exit code.

    ``environ`` is this process's. LOG_FORMAT is taken from it: a start that is refused for its settings logs too.
    MISCONFIGURED where MisconfiguredError is raised: the log says what to do, or, of a command that was typed,
    plain words on stderr.
    """
    environ.setdefault("GRPC_VERBOSITY", "NONE")  # read at the first channel, also by processes that this one starts
    configure_logs(service=service, log_format=environ.get("LOG_FORMAT", "").strip())
    log_whatever_happens()
    name_emulators(environ)
    try:
        code = run()
        if typed and sys.stdout is not None:  # None where it was closed
            sys.stdout.flush()
    except MisconfiguredError as error:
        if typed:
            complain(str(error))
        else:
            misconfigured(error)
            keep_last_error(service, error.code, environ)
        return MISCONFIGURED
    except Exception as error:
        if typed and sys.stdout is not None and isinstance(error, OSError) and _is_explained(error):
            _discard_output()
            return 1
        if not typed:
            keep_last_error(service, FAILED, environ)
        raise
    if code == 1 and not typed:
        keep_last_error(service, FAILED, environ)
    return code


def _is_explained(error: OSError) -> bool:
    """Return whether a traceback would add nothing: the reader of the output (`head`) has ended, or a disk is full.

    A full disk is reported on stderr.
    """
    if error.errno == errno.ENOSPC:
        complain(
            f"{error}: there is no room where standard output goes, or on the disk of TMPDIR, or of a file that this "
            "command writes: make room, and run it again"
        )
        return True
    return error.errno == errno.EPIPE and _reader_has_ended()


def _discard_output() -> None:
    """Send standard output nowhere: Python flushes it once more when it ends."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  a device
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _reader_has_ended() -> bool:
    output = select.poll()
    output.register(sys.stdout, 0)  # an empty mask: only a pipe without a reader is reported
    return bool(output.poll(0))


def complain(error: str) -> None:
    """Say in plain words why a command ends."""
    sys.stderr.write(f"error: {error}\n")


def misconfigured(error: MisconfiguredError) -> None:
    """Log what only a person can fix."""
    structlog.get_logger().error("service_misconfigured", error=str(error))


def started(service: str, settings: Any, environ: Mapping[str, str]) -> None:
    """Log from the level of the settings on, and first of all that a service was started, and how it was set.

    A variable whose name is nearly that of a setting is warned of: the setting has its default.
    """
    configure_logs(service=service, level=settings.log_level, log_format=settings.log_format)
    log = structlog.get_logger()
    BUILD.labels(service, version(environ)).set(1)
    if (last := read_last_error(service, environ)) is not None:
        LAST_FATAL_ERROR.labels(service, last[1]).set(last[0])
    log.info("service_started", version=version(environ), **settings_shown(settings))
    for name, meant in misspelt_variables(type(settings), environ).items():
        log.warning("unknown_setting_found", variable=name, fix=misspelling(name, meant))


def command_settings(settings: type[T], environ: Mapping[str, str]) -> T:
    """Return the settings of a command that was typed; what is nearly one of them is warned of on stderr."""
    found = read_settings(settings, environ)
    for name, meant in misspelt_variables(settings, environ).items():
        sys.stderr.write(f"warning: {misspelling(name, meant)}\n")
    return found


def run_service(service: str, settings: type[T], environ: Mapping[str, str], serve: Callable[[T, Stop], None]) -> int:
    """Run a service as the environment says, until a signal stops it or ``serve`` returns; return the exit code."""
    with stop_on_signals() as stop:
        found = read_settings(settings, environ)
        started(service, found, environ)
        serve(found, stop)
    stopped()
    return 0


def stopped() -> None:
    """Log that a service has ended, as it should."""
    structlog.get_logger().info("service_stopped")


def version(environ: Mapping[str, str]) -> str:
    """Return which version runs: what MILLRACE_VERSION says, or the installed package, whose version its image has."""
    if version := environ.get("MILLRACE_VERSION", "").strip():
        return version
    try:
        return importlib.metadata.version(_PROJECT)
    except importlib.metadata.PackageNotFoundError:  # run from the source tree
        return "source"
