"""Logs: one JSON object a line, in Cloud Logging's fields, an event's name and values beside it, never a row's values.

Source of the field names: Cloud Logging, "Structured logging" (severity, message, time).
"""

import logging
import sys
from typing import Final, TextIO

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, WrappedLogger

# Without local variables: they hold rows.
_tracebacks: Final = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
_SEVERITY: Final = {"warn": "WARNING", "exception": "ERROR"}


def configure_logs(service: str, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send structlog's events, and the standard library's warnings and errors, to ``stream`` (stderr) as JSON lines."""
    target = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _cloud_logging_fields,
        _tracebacks,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(serializer=_render)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=_render),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("google").propagate = True  # google.api_core turns it off, and its warnings would be bare text


def _cloud_logging_fields(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["severity"] = _SEVERITY.get(method, method.upper())
    event["message"] = event.pop("event", "")
    return event


def _render(event: EventDict, **_ignored: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
