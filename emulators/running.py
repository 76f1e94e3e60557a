"""How a stand-in runs as a program of its own: logs on stderr, and an end on SIGTERM or SIGINT."""

import asyncio
import logging
import signal
import sys
from typing import Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set; needs a running event loop.

    A second signal changes neither the end nor the exit code.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def request() -> None:
        stop.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    for number in _SIGNALS:
        loop.add_signal_handler(number, request)
    return stop


def configure_logs(service: str, level: str) -> None:
    """Log to stderr: lines of text on a terminal, else JSON objects. Libraries log from WARNING on."""

    def with_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["severity"], event["service"] = event.pop("level").upper(), service
        return event

    fields: list[Processor] = [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", key="time")]
    text: list[Processor] = [
        # a traceback without local variables, for they hold rows
        structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=structlog.dev.plain_traceback)
    ]
    json: list[Processor] = [
        with_service,
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(default=str),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=fields,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(text if sys.stderr.isatty() else json),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("emulators").setLevel(level)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *fields, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
