"""What every request passes through: the size of bodies, HEAD, headers against caches, metrics, unforeseen errors."""

import time
from pathlib import Path
from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.dead_letter.app.metrics import ApiMetrics
from services.dead_letter.web.refusals import refusal

LARGEST_BODY: Final = 10_000_000
"""Bytes: an edited row may be as large as a message."""
_TOO_LARGE: Final = f"a body may have {LARGEST_BODY} bytes"
_ALWAYS: Final = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


NO_ROUTE: Final = "none"
"""What requests are counted under that are for nothing there is: their paths are without end."""
_HEAD: Final = "millrace.head"


def is_head(scope: Scope) -> bool:
    """Return whether only the head of an answer is wanted, though the request looks like a GET by now."""
    return bool(scope.get(_HEAD))


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, metrics: ApiMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head, size, status, began = scope["method"] == "HEAD", 0, 0, time.monotonic()
        passed = {**scope, "method": "GET", _HEAD: True} if head else scope

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST_BODY:
                raise HTTPException(413, _TOO_LARGE)
            return message

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _value in message["headers"]}
                always = [header for header in _ALWAYS if header[0] not in own]
                message = {**message, "headers": [*message["headers"], *always]}
            elif head:
                message = {**message, "body": b""}
            await send(message)

        try:
            if int(dict(scope["headers"]).get(b"content-length", b"0")) > LARGEST_BODY:
                await refusal(413, _TOO_LARGE)(passed, receive, answered)
            else:
                await self._app(passed, bounded, answered)
        except Exception as error:
            _log(passed, error)
            if status:
                raise
            await refusal(500, "this was not foreseen; the service's log says where it happened")(
                passed, receive, answered
            )
        finally:
            if status:
                self._metrics.answered(_route(passed) or NO_ROUTE, status, time.monotonic() - began)


def _route(scope: Scope) -> str | None:
    """Return the template of the route that a request was for; None where there is no such route."""
    found: str | None = getattr(scope.get("route"), "path", None)
    return found


def _log(scope: Scope, error: Exception) -> None:
    """Say what happened and where, without the error's words and the request's: they may hold values."""
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error  # what came too late for an answer
    at = error.__traceback__
    places = []
    while at is not None:
        places.append(f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}")
        at = at.tb_next
    structlog.get_logger().error(
        "request_failed", method=scope["method"], route=_route(scope), error=type(error).__name__, at=places[-6:]
    )
