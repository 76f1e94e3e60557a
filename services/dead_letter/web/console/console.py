"""The console: pages for people at the API's port, over the same functions."""

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from services.dead_letter.web.console.actions import add_actions
from services.dead_letter.web.console.dead_letters import add_dead_letters
from services.dead_letter.web.console.pages import ASSETS, ConsolePages, see_other, set_cookie
from services.dead_letter.web.console.pipeline import add_pipeline
from services.dead_letter.web.console.routes import console_routes
from services.dead_letter.web.console.visitors import LASTS, SIGNED_IN, Visitors
from services.dead_letter.web.refusals import RefusedError
from services.dead_letter.web.tools import WebTools


def add_console(app: FastAPI, tools: WebTools) -> None:
    """Add every page."""
    pages, visitors = ConsolePages(tools.clock), Visitors(tools.callers, tools.clock)
    known, everybody = console_routes(pages, visitors), console_routes(pages, visitors, everybody=True)
    add_pipeline(known, pages, tools)
    add_actions(known, pages, tools)
    add_dead_letters(known, pages, tools)
    _add_signing_in(everybody, pages, visitors)
    app.include_router(everybody)
    app.include_router(known)


def _add_signing_in(router: APIRouter, pages: ConsolePages, visitors: Visitors) -> None:
    @router.get("/sign-in")
    def form(request: Request) -> Response:
        return pages.page(request, "sign_in.html", may_sign_in=visitors.may_sign_in(), error="")

    @router.post("/sign-in")
    def sign_in(request: Request) -> Response:
        try:
            cookie = visitors.sign_in(request.state.fields.get("token", ""))
        except RefusedError as error:
            return pages.page(request, "sign_in.html", status=401, may_sign_in=True, error=error.message)
        answer = see_other("/")
        set_cookie(answer, request, SIGNED_IN, cookie, LASTS)
        return answer

    @router.post("/sign-out")
    def sign_out() -> Response:
        answer = see_other("/sign-in")
        answer.delete_cookie(SIGNED_IN)
        return answer

    @router.get("/assets/{name}")
    def asset(name: str) -> Response:
        kind, data = ASSETS.get(name, ("", b""))
        if not kind:
            return Response(status_code=404)
        return Response(data, media_type=kind, headers={"Cache-Control": "max-age=300"})
