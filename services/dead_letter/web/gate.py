"""What every request passes through: the size of bodies, HEAD, headers against caches, and errors not foreseen."""

from pathlib import Path
from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.dead_letter.web.refusals import refusal

LARGEST_BODY: Final = 10_000_000
"""Bytes: an edited row may be as large as a message."""
_TOO_LARGE: Final = f"a body may have {LARGEST_BODY} bytes"
_ALWAYS: Final = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head, began, size = scope["method"] == "HEAD", False, 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST_BODY:
                raise HTTPException(413, _TOO_LARGE)
            return message

        async def answered(message: Message) -> None:
            nonlocal began
            began = True
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_ALWAYS]}
            elif head:
                message = {**message, "body": b""}
            await send(message)

        if int(dict(scope["headers"]).get(b"content-length", b"0")) > LARGEST_BODY:
            await refusal(413, _TOO_LARGE)(scope, receive, answered)
            return
        try:
            await self._app({**scope, "method": "GET"} if head else scope, bounded, answered)
        except Exception as error:
            _log(scope, error)
            if began:
                raise
            await refusal(500, "this was not foreseen; the service's log says where it happened")(
                scope, receive, answered
            )


def _log(scope: Scope, error: Exception) -> None:
    """Say what happened and where, without the error's words and the request's: they may hold values."""
    at = error.__traceback__
    places = []
    while at is not None:
        places.append(f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}")
        at = at.tb_next
    structlog.get_logger().error(
        "request_failed",
        method=scope["method"],
        route=getattr(scope.get("route"), "path", None),
        error=type(error).__name__,
        at=places[-6:],
    )
