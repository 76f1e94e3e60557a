"""Logs: one JSON object a line, in Cloud Logging's fields; never a row's values.

An event is a sentence (`SENTENCES`) in the field ``message``, its name in ``event``, and its values beside them.

On a terminal, and where LOG_FORMAT is ``text``, an event is a line of text instead; LOG_FORMAT=json forces JSON.

Whatever a process says comes out like that: our events, warnings and errors of libraries, Python's own warnings, and
the exceptions that were not caught, in any thread. Libraries are heard from WARNING on whatever our level is: what
they say below that may hold requests, and so rows.

Sources: Cloud Logging, "Structured logging" (severity, message, time, logging.googleapis.com/sourceLocation); Error
Reporting, "Format errors in logs" (the traceback as text, in the field ``exception``).
"""

import json
import logging
import os
import socketserver
import sys
import textwrap
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

import msgspec
import structlog
from structlog.processors import CallsiteParameter, CallsiteParameterAdder
from structlog.typing import EventDict, WrappedLogger

from shared.contracts.errors import code_of
from shared.runtime.log_events import SENTENCES

_SEVERITY: Final = {"warn": "WARNING", "exception": "ERROR"}
_SOURCE: Final = "logging.googleapis.com/sourceLocation"
_HEAD: Final = ("time", "severity", "message", "service", "error_code")
"""Fields that a line of text begins with, or leaves out: a code is in the error that it is of."""
_LONGEST_IN_LINE: Final = 100
"""Characters of a value that is read at the end of a line of text."""
_ROOT: Final = f"{Path(__file__).resolve().parents[2]}{os.sep}"


def configure_logs(
    service: str, level: str = "INFO", stream: TextIO | None = None, *, log_format: str = "auto"
) -> None:
    """Send structlog's events, and the standard library's warnings and errors, to ``stream`` (stderr).

    Of ``log_format``, anything but ``text`` and ``json`` means ``auto``.
    """
    target = stream or sys.stderr
    render = _render_text if log_format == "text" or (log_format != "json" and target.isatty()) else _render_json
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        CallsiteParameterAdder({CallsiteParameter.PATHNAME, CallsiteParameter.LINENO, CallsiteParameter.FUNC_NAME}),
        _with_service(service),
        _cloud_logging_fields,
        structlog.processors.format_exc_info,  # a traceback as Python prints it: no local variables, for they hold rows
    ]
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("google").propagate = True  # google.api_core turns it off, and its warnings would be bare text


def logs_are_text() -> bool:
    """Return whether this process logs as text, and not as JSON."""
    return structlog.get_config()["processors"][-1] is _render_text


def text_of(line: bytes) -> bytes:
    """Return a line of JSON that another process has logged as text; what is none is left as it is."""
    try:
        event = json.loads(line)
        return f"{_render_text(None, '', event)}\n".encode()
    except (ValueError, LookupError, AttributeError):
        return line


def log_whatever_happens() -> None:
    """Log what Python would print by itself: warnings, and exceptions that were not caught, in any thread.

    For processes of our own. What gRPC's core prints, which is bare text, GRPC_VERBOSITY switches off (`run_as`).
    """
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_a_thread
    sys.unraisablehook = _unraisable
    setattr(socketserver.BaseServer, "handle_error", _unanswered)  # noqa: B010  Spark has servers in our driver


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):  # Python ends the process by the signal: a shell sees 130
        return
    structlog.get_logger().critical("process_failed", exc_info=(kind, error, trace), **_raised_at(trace))


def _uncaught_in_a_thread(about: threading.ExceptHookArgs) -> None:
    if about.exc_type is SystemExit:
        return
    name = about.thread.name if about.thread is not None else ""
    exc_info = (about.exc_type, about.exc_value, about.exc_traceback)
    structlog.get_logger().error("thread_failed", thread=name, exc_info=exc_info, **_raised_at(about.exc_traceback))


def _unraisable(about: "sys.UnraisableHookArgs") -> None:
    exc_info = (about.exc_type, about.exc_value, about.exc_traceback)
    where = getattr(about.object, "__qualname__", type(about.object).__name__)  # its text may hold anything
    structlog.get_logger().error("exception_ignored", where=where, exc_info=exc_info, **_raised_at(about.exc_traceback))


def _unanswered(server: socketserver.BaseServer, _request: object, _client_address: object) -> None:
    structlog.get_logger().error("request_failed", server=type(server).__qualname__, exc_info=True)


def _raised_at(trace: TracebackType | None) -> dict[str, object]:
    frames = traceback.extract_tb(trace)
    return {} if not frames else _location(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)


def _location(path: str, line: int, function: str) -> dict[str, object]:
    return {_SOURCE: {"file": path.removeprefix(_ROOT), "line": str(line), "function": function}}


def _cloud_logging_fields(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["severity"] = _SEVERITY.get(method, method.upper())
    for name in ("error", "why"):
        if (code := code_of(str(event.get(name, "")))) is not None:
            event.setdefault("error_code", code)
    if event.get("fix") == "":  # the error says all that there is to say
        del event["fix"]
    text = event.pop("event", "")
    if text in SENTENCES:
        event["message"], event["event"] = SENTENCES[text], text
    else:  # a library's words
        event["message"] = text
    called_at = _location(event.pop("pathname", ""), event.pop("lineno", 0), event.pop("func_name", ""))
    event.setdefault(_SOURCE, called_at[_SOURCE])
    return event


def _with_service(service: str) -> structlog.typing.Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    return add


def _render_text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Return an event as people read it: values of several lines, and tracebacks, on lines of their own."""
    named = {"event": event["event"]} if "event" in event else {}
    fields = named | {name: value for name, value in event.items() if name not in (*_HEAD, _SOURCE, "exception")}
    line = f"{str(event.get('time', ''))[11:19]} {event['severity']:<7} {event['message']}"
    below = []
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
        if "\n" in text or len(text) > _LONGEST_IN_LINE:
            below.append(textwrap.indent(f"{name}: {text}", "    "))
        else:
            line += f"  {name}={text}"
    if event.get("exception"):
        below.append(textwrap.indent(str(event["exception"]), "    "))
    return "\n".join([line, *below])


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError):  # a lone surrogate, say: what is to be logged is no reason to fail
        return json.dumps({str(name): value if isinstance(value, int) else str(value) for name, value in event.items()})
