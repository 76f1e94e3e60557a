"""The first page: what needs attention, and how each service, source and table is."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from services.dead_letter.core.attention import headline, needs_attention
from services.dead_letter.core.documents import stats_document
from services.dead_letter.core.statuses import MOST_TABLES_SHOWN, ReaderStatus, tables_of
from services.dead_letter.web.console.pages import ConsolePages
from services.dead_letter.web.tools import WebTools
from shared.contracts.errors import TransientError


def add_pipeline(router: APIRouter, pages: ConsolePages, tools: WebTools) -> None:
    """Add the page of the pipeline, which is shown whatever is unavailable."""

    @router.get("/")
    def pipeline(request: Request) -> Response:
        services, stats, error = tools.console.poller.services(), None, ""
        try:
            stats = tools.store.stats()
        except TransientError as unavailable:
            error = str(unavailable)
        items = needs_attention(services, stats, tools.console.launcher)
        return pages.page(
            request,
            "pipeline.html",
            services=services,
            readers=[one for one in services if isinstance(one.status, ReaderStatus)],
            tables=tables_of(services),
            most_tables=MOST_TABLES_SHOWN,
            items=items,
            headline=headline(items).capitalize(),
            where=tools.console.launcher.where,
            stats=None if stats is None else stats_document(stats),
            store_error=error,
        )
