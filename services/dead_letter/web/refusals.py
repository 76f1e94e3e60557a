"""What a request is refused with: one JSON shape for every error, and a message that names the fix."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.dead_letter.app.decisions import NotDoneError, NothingFoundError
from shared.contracts.errors import MisconfiguredError, TransientError

_RETRY_AFTER: Final = "5"  # seconds


class Problem(BaseModel):
    """What is wrong with one part of a request."""

    at: str = Field(description="where: query.limit, body.dead_letters.since, path.dead_letter")
    message: str


class Refusal(BaseModel):
    """What went wrong, and what can be done."""

    status: int
    message: str
    problems: list[Problem] = Field(description="each part of the request that is wrong; empty where it is the whole")


class Refused(BaseModel):
    """The answer to a request that is not done."""

    error: Refusal


class RefusedError(Exception):
    """A request is not done."""

    def __init__(self, status: int, message: str, at: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.problems = [] if at is None else [{"at": at, "message": message}]
        self.headers = headers or {}


class Answer(Response):
    """A document as JSON. Values of rows that are passed on as they came keep every digit."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return its bytes."""
        return msgspec.json.encode(content).decode(errors="replace").encode()


DOCUMENTED: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": Refused, "description": description}
    for status, description in {
        400: "The request cannot be read.",
        401: "It takes a token, or the header of the identity-aware proxy, and there was none that is good.",
        403: "No caller may do this: no token is set, nor an audience of the identity-aware proxy.",
        404: "There is no such dead letter.",
        409: "A dead letter is in a state that does not allow this; the message says what can be done.",
        413: "The body is larger than any that is taken.",
        422: "A parameter or a part of the body is unknown or wrong; the message says which.",
        429: "As many of these are under way as this service does at once.",
        503: "The store, Pub/Sub or BigQuery is unavailable (try again), or a setting is missing: see the message.",
    }.items()
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return how an operation's document names the refusals that it may answer with."""
    return {status: DOCUMENTED[status] for status in statuses}


def refusal(
    status: int, message: str, problems: Sequence[Mapping[str, str]] = (), headers: Mapping[str, str] | None = None
) -> Answer:
    """Return the answer to a request that is not done."""
    document = {"error": {"status": status, "message": message, "problems": problems}}
    return Answer(document, status_code=status, headers=dict(headers or {}))


REFUSED: Final = (RefusedError, NothingFoundError, NotDoneError, TransientError, MisconfiguredError)
"""The errors by which a request is not done."""


def as_refused(error: Exception) -> RefusedError:
    """Return how a request is refused that has ended with one of these errors."""
    match error:
        case RefusedError():
            return error
        case NothingFoundError():
            return RefusedError(404, str(error))
        case NotDoneError():
            return RefusedError(409, str(error))
        case TransientError():
            return RefusedError(503, f"{error}; {error.fix or 'try again'}", headers={"Retry-After": _RETRY_AFTER})
        case _:
            structlog.get_logger().error("api_misconfigured", error=str(error))
            return RefusedError(503, str(error))


def add_refusals(app: FastAPI) -> None:
    """Let the application answer every error in the one shape."""

    def refused(_request: Request, error: Exception) -> Response:
        known = as_refused(error)
        return refusal(known.status, known.message, known.problems, known.headers)

    for kind in REFUSED:
        app.add_exception_handler(kind, refused)

    @app.exception_handler(RequestValidationError)
    def _wrong(_request: Request, error: RequestValidationError) -> Response:
        problems = [
            {"at": ".".join(map(str, one["loc"])), "message": one["msg"].removeprefix("Value error, ")}
            for one in error.errors()
        ]
        message = "; ".join(f"{one['at']}: {one['message']}" for one in problems[:5])
        return refusal(422, f"{message}; /v1/openapi.json says what is taken", problems)

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 404:
            return refusal(404, "there is nothing here: /v1/openapi.json names what there is", headers=headers)
        if error.status_code == 405:
            allowed = headers.get("Allow", "").replace("GET", "GET, HEAD")
            return refusal(
                405, f"{request.method} is not for this path: {allowed}", headers=headers | {"Allow": allowed}
            )
        return refusal(error.status_code, str(error.detail), headers=headers)
