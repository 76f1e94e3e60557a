"""The HTTP API of dead letters, under /v1: the same core as the commands, and documents of the same shape.

The console is beside it, at `/`.
"""

from typing import Any, Final

from fastapi import APIRouter, FastAPI

from services.dead_letter.web import answers
from services.dead_letter.web.changing import add_changing
from services.dead_letter.web.console.console import add_console
from services.dead_letter.web.gate import Gate
from services.dead_letter.web.reading import add_reading
from services.dead_letter.web.refusals import Answer, add_refusals, documented
from services.dead_letter.web.replaying import add_replaying
from services.dead_letter.web.routes import open_routes, reading_routes, writing_routes
from services.dead_letter.web.tools import WebTools

_ABOUT: Final = """What could not be applied, why, and what to do about it.

Values of rows are masked unless `values=true` asks for them; primary keys are shown. Every error has one shape:
`{"error": {"status", "message", "problems": [{"at", "message"}]}}`, and its message names the fix. HEAD goes where GET
goes. Times are RFC 3339; fields are added in time, and none is renamed or taken away under /v1.
"""


def application(tools: WebTools) -> FastAPI:
    """Return the API over a store."""
    app = FastAPI(
        title="Dead letters",
        version="1",
        description=_ABOUT,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    reads = reading_routes(tools.callers)
    writes = writing_routes(tools.callers)
    add_reading(reads, tools)
    add_changing(writes, tools)
    add_replaying(writes, tools)
    app.include_router(reads)
    app.include_router(writes)
    app.include_router(_document(app))
    add_console(app, tools)
    add_refusals(app)
    app.add_middleware(Gate, metrics=tools.metrics)
    return app


def _document(app: FastAPI) -> APIRouter:
    router = open_routes()

    @router.get("/openapi.json", response_model=answers.Document, responses=documented(422), operation_id="document")
    def document() -> Answer:
        """Return this document, which is open to everybody."""
        described: dict[str, Any] = app.openapi()
        return Answer(described)

    return router
