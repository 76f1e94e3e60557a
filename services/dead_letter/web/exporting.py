"""An export over HTTP: dead letters as JSON lines, as many as there are, in the memory of a few."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from services.dead_letter.app.export import exported
from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.selection import Selection
from services.dead_letter.web.gate import is_head
from services.dead_letter.web.parameters import Exporting
from services.dead_letter.web.refusals import Refused, RefusedError, documented
from services.dead_letter.web.routes import Who
from services.dead_letter.web.tools import EXPORTS_AT_ONCE, WebTools

LINES: Final = "application/x-ndjson"
_DESCRIBED: Final = (
    "A dead letter a line, by table, key, then sequence: an object as in a list of dead letters, with `attributes`, "
    "`masked` and its `payload`, or with values=true `data` instead, its very bytes as base64. What goes wrong on the "
    "way cuts the transfer short, which every client of HTTP tells from its end."
)


class JsonLines(StreamingResponse):
    """Documents, a line each."""

    media_type = LINES


def add_export(router: APIRouter, tools: WebTools) -> None:
    """Add the operation that hands dead letters out."""
    described = _refusals_in_json() | {
        200: {"description": _DESCRIBED, "content": {LINES: {"schema": {"type": "string"}}}}
    }

    @router.get("/export", response_class=JsonLines, responses=described, operation_id="export")
    def export(request: Request, asked: Annotated[Exporting, Query()], who: Who) -> Response:
        """Hand out dead letters as JSON lines; open ones unless state or id says otherwise.

        With values=true it takes a token, or the identity-aware proxy, and is written into each dead letter's trail.
        """
        if asked.values and who is None:
            raise tools.callers.refused()
        selection = asked.chosen(tools.store, tools.clock.now(), State.OPEN)
        if is_head(request.scope):
            return JsonLines(())
        lines = _lines(tools, selection, asked, who)
        first = next(lines, b"")  # what is refused or unavailable is said before anything is handed out
        return JsonLines(chain((first,), lines))


def _refusals_in_json() -> dict[int | str, dict[str, Any]]:
    """Return how the document names refusals, which are JSON here too; it would take them for lines."""
    schema = {"$ref": f"#/components/schemas/{Refused.__name__}"}
    return {
        status: {"description": one["description"], "content": {"application/json": {"schema": schema}}}
        for status, one in documented(400, 401, 403, 404, 422, 429, 503).items()
    }


def _lines(tools: WebTools, selection: Selection, asked: Exporting, who: str | None) -> Iterator[bytes]:
    if not tools.limits.exports.acquire(blocking=False):
        message = f"{EXPORTS_AT_ONCE} exports are under way here already: try again when one has ended"
        raise RefusedError(429, message, headers={"Retry-After": "5"})
    try:
        for lines in exported(tools.store, selection, values=asked.values, who=who, clock=tools.clock):
            yield lines.text
    finally:
        tools.limits.exports.release()
