"""How a visitor of the console is let in, and what is shown where something cannot be done: a page, with the fix."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.dead_letter.web.console.pages import ConsolePages
from services.dead_letter.web.console.visitors import Visitor, Visitors, check_form, check_site
from services.dead_letter.web.refusals import REFUSED, RefusedError, as_refused

_MOST_FIELDS: Final = 20
_BEFORE_SIGNING_IN: Final = 64 * 1024
"""How many bytes a form may have whose visitor has not signed in."""
_AT_A_TIME: Final = 64 * 1024
"""How many bytes are unquoted together: `unquote_to_bytes` makes an object for each character that is quoted."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def console_routes(pages: ConsolePages, visitors: Visitors, *, everybody: bool = False) -> APIRouter:
    """Return a router whose pages are for those who may read, and whose forms are for those who may write.

    ``everybody``: for those who are yet to sign in.
    """

    class ConsoleRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                try:
                    return await _guarded(request, handler, visitors, everybody=everybody)
                except REFUSED as error:
                    return _refused(request, pages, visitors, as_refused(error))

            return guarded

    return APIRouter(route_class=ConsoleRoute, include_in_schema=False)


async def _guarded(request: Request, handler: Handler, visitors: Visitors, *, everybody: bool) -> Response:
    request.state.visitor = Visitor(who=None, form_key="")  # until it is known
    request.state.visitor = visitor = await run_in_threadpool(visitors.visitor, request.headers, request.cookies)
    writes = request.method == "POST"
    if writes:
        check_site(request.headers)
    if not everybody:
        visitors.let_in(visitor, request.headers, only_reads=not writes)
    if writes:
        body = await _bounded(request, _BEFORE_SIGNING_IN) if everybody else await request.body()
        request.state.fields = fields = await run_in_threadpool(form_fields, body)
        check_form(visitor, fields)
    return await handler(request)


async def _bounded(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise RefusedError(413, f"this form may have {most} bytes")
    return bytes(body)


def form_fields(body: bytes) -> Mapping[str, str]:
    """Return the fields of a form; RefusedError where it is none."""
    try:
        parts = body.split(b"&", _MOST_FIELDS)
        if len(parts) > _MOST_FIELDS:
            raise ValueError("too many fields")
        pairs = [part.partition(b"=") for part in parts if part]
        return {_unquoted(name): _unquoted(value) for name, _is, value in pairs}
    except ValueError as error:  # of which UnicodeDecodeError is one
        raise RefusedError(400, f"this is no form: {type(error).__name__}") from None


def _unquoted(text: bytes) -> str:
    text = text.replace(b"+", b" ")
    parts, start = [], 0
    while start < len(text):
        end = min(start + _AT_A_TIME, len(text))
        if end < len(text) and (quoted := text.rfind(b"%", end - 2, end)) > start:
            end = quoted
        parts.append(unquote_to_bytes(text[start:end]))
        start = end
    return b"".join(parts).decode()


def _refused(request: Request, pages: ConsolePages, visitors: Visitors, error: RefusedError) -> Response:
    return pages.page(
        request,
        "refused.html",
        status=error.status,
        code=error.status,
        message=error.message,
        may_sign_in=error.status == 401 and visitors.may_sign_in(),
    )
