"""How a visitor of the console is let in, and what is shown where something cannot be done: a page, with the fix."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.dead_letter.web.console.pages import ConsolePages
from services.dead_letter.web.console.visitors import Visitor, Visitors, check_form
from services.dead_letter.web.refusals import REFUSED, RefusedError, as_refused

_MOST_FIELDS: Final = 20
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
        request.state.fields = fields = form_fields(await request.body())
        check_form(visitor, request.headers, fields)
    if not everybody:
        visitors.let_in(visitor, request.headers, only_reads=not writes)
    return await handler(request)


def form_fields(body: bytes) -> Mapping[str, str]:
    """Return the fields of a form; RefusedError where it is none."""
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"))
    except ValueError as error:  # of which UnicodeDecodeError is one
        raise RefusedError(400, f"this is no form: {type(error).__name__}") from None


def _refused(request: Request, pages: ConsolePages, visitors: Visitors, error: RefusedError) -> Response:
    return pages.page(
        request,
        "refused.html",
        status=error.status,
        code=error.status,
        message=error.message,
        may_sign_in=error.status == 401 and visitors.may_sign_in(),
    )
