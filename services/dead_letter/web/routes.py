"""How a request is let in: who asks is seen before its body is read; what is unknown in its URL is refused."""

import typing
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response

from services.dead_letter.web.callers import ASSERTION, Callers
from services.dead_letter.web.parameters import Strict, unknown_names
from services.dead_letter.web.refusals import RefusedError, documented

_BEARER: Final = HTTPBearer(auto_error=False, scheme_name="token", description="API_TOKEN, or one of API_TOKEN_FILE")
_ASSERTION: Final = APIKeyHeader(
    name=ASSERTION, auto_error=False, scheme_name="identity-aware proxy", description="as the proxy signs it"
)


def _caller(request: Request) -> str | None:
    who: str | None = request.state.who
    return who


Who = Annotated[str | None, Depends(_caller)]
"""Who asks; None where anybody may."""


def reading_routes(callers: Callers) -> APIRouter:
    """Return a router whose operations are for those who may read."""
    router = _routes(partial(callers.allowed, only_reads=True))
    return router if callers.open_reads else _described(router)


def writing_routes(callers: Callers) -> APIRouter:
    """Return a router whose operations are for those who may write."""
    return _described(_routes(partial(callers.allowed, only_reads=False)))


def open_routes() -> APIRouter:
    """Return a router whose operations are for everybody."""
    return _routes(lambda _headers: None)


def _routes(allowed: Callable[[Headers], str | None]) -> APIRouter:
    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()
            known = _parameters(self.endpoint)

            async def guarded(request: Request) -> Response:
                request.state.who = await run_in_threadpool(allowed, request.headers)
                unknown = sorted(request.query_params.keys() - set(known))
                if unknown:
                    raise RefusedError(422, unknown_names(unknown, dict.fromkeys(known)), at="query")
                return await handler(request)

            return guarded

    return APIRouter(prefix="/v1", route_class=Guarded, responses=documented(400, 401, 403, 422, 503))


def _described(router: APIRouter) -> APIRouter:
    """Let the document say what the operations of a router take: one of the two."""
    router.dependencies += [Security(_BEARER), Security(_ASSERTION)]
    return router


def _parameters(endpoint: Callable[..., Any]) -> Sequence[str]:
    """Return the names of an operation's parameters in the URL: those of its parameter ``asked``."""
    asked = typing.get_type_hints(endpoint).get("asked")
    return list(asked.model_fields) if isinstance(asked, type) and issubclass(asked, Strict) else []
