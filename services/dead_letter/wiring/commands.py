"""The commands beside the service, joined to what the settings name."""

import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from services.dead_letter.adapters.editor import edit_text
from services.dead_letter.adapters.status_pages import HttpStatusPages
from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.commands.app import run_command
from services.dead_letter.commands.command_line import COMMAND_LINE, RunCommand
from services.dead_letter.commands.tools import CommandTools
from services.dead_letter.settings import CommandSettings, watched_services
from services.dead_letter.wiring.connections import (
    known_launcher,
    known_store,
    pipeline_named,
    replay_tools,
)
from services.dead_letter.wiring.doctor import doctor
from shared.contracts.errors import MisconfiguredError
from shared.runtime.clock import SystemClock
from shared.runtime.commands import DoctorCommand
from shared.runtime.logs import configure_logs
from shared.runtime.service import command_settings


def command(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command beside the service; return its exit code."""
    parsed = COMMAND_LINE.parse(arguments)
    if isinstance(parsed, RunCommand):
        raise MisconfiguredError("run-takes-no-arguments", f"run takes no arguments: {' '.join(arguments[1:])}")
    if isinstance(parsed, DoctorCommand):
        return doctor(environ, sys.stdout, as_json=parsed.json)
    settings = command_settings(CommandSettings, environ)
    level = settings.log_level if environ.get("LOG_LEVEL") else "WARNING"
    configure_logs(service="dead_letter", level=level, log_format=settings.log_format)
    services = watched_services(settings.console_services)
    tools = CommandTools(
        store=partial(known_store, settings),
        replay=replay_tools(settings),
        launcher=known_launcher(settings),
        pipeline=partial(pipeline_named, settings),
        who=_who(environ),
        editor=partial(edit_text, environ.get("VISUAL") or environ.get("EDITOR")),
        poller=ServicePoller(services, HttpStatusPages(), SystemClock()) if services else None,
    )
    return run_command(parsed, tools)


def _who(environ: Mapping[str, str]) -> str:
    """Return who acts; a container may run as a user without a name."""
    try:
        name = environ.get("MILLRACE_USER") or getpass.getuser()
        return name.encode(errors="replace").decode()  # a name that is not UTF-8 can be written nowhere
    except (KeyError, OSError):
        return f"user {os.getuid()}"
