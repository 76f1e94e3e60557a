"""Pages of dead letters: groups by cause, one group, one dead letter with its payload masked until it is asked for."""

from datetime import timedelta
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from services.dead_letter.app.decisions import RESTORABLE, NothingFoundError, dead_letter_of
from services.dead_letter.core.dead_letters import Action, GroupId, State, StoredDeadLetter, TimeSpans
from services.dead_letter.core.documents import dead_letter_document, group_document, line_document
from services.dead_letter.core.guidance import GUIDANCE, explained_in
from services.dead_letter.core.selection import Selection
from services.dead_letter.web.console.pages import ConsolePages
from services.dead_letter.web.tools import WebTools
from shared.contracts.timestamps import Nanoseconds, nanoseconds

GROUPS: Final = 200
_PAGE: Final = 50
_SPAN: Final = timedelta(minutes=30)
_SPANS: Final = 48
DONE: Final = {
    "discarded": "discarded: restore opens them again",
    "restored": "open again",
    "edited": "edited: this copy takes its place, and is to be replayed",
}
"""What a page says of the action that has led to it."""


def add_dead_letters(router: APIRouter, pages: ConsolePages, tools: WebTools) -> None:
    """Add the pages that show dead letters."""
    store = tools.store

    @router.get("/dead-letters")
    def groups(request: Request) -> Response:
        every_state = request.query_params.get("state") == "any"
        selection = Selection() if every_state else Selection(states=frozenset({State.OPEN}))
        found = store.groups(selection, limit=GROUPS)
        return pages.page(
            request,
            "groups.html",
            groups=[group_document(one) for one in found],
            failures=store.failures(selection, last_day(tools.clock.now())),
            none=[0] * _SPANS,
            every_state=every_state,
            most=GROUPS,
            command=tools.console.launcher.command("dead-letters", "groups"),
            guidance={reason.value: text for reason, text in GUIDANCE.items()},
        )

    @router.get("/dead-letters/groups/{group}")
    def group(request: Request, group: str) -> Response:
        selection = Selection(groups=frozenset({GroupId(group)}))
        found = store.groups(selection, limit=1)
        if not found:
            raise NothingFoundError("there is no such group: its dead letters are deleted, or fail for another cause")
        after = request.query_params.get("after")
        try:
            page = store.find(selection, limit=_PAGE, after=after)
        except ValueError:
            raise NothingFoundError("no page ends so: go back to the beginning of the group") from None
        by_state = found[0].by_state
        return pages.page(
            request,
            "group.html",
            group=group_document(found[0]),
            failures=store.failures(selection, last_day(tools.clock.now())).get(found[0].id, [0] * _SPANS),
            dead_letters=[line_document(line) for line in page.dead_letters],
            after=page.after,
            begun=after is None,
            open=by_state.get(State.OPEN, 0),
            restorable=sum(by_state.get(state, 0) for state in RESTORABLE[:2]),
            guidance=GUIDANCE[found[0].reason],
            explained_in=explained_in(found[0].reason),
            done=_done(request),
        )

    @router.get("/dead-letters/{dead_letter}")
    def dead_letter(request: Request, dead_letter: str) -> Response:
        stored = dead_letter_of(store, dead_letter.lower())
        return shown(request, pages, tools, stored, values=False, done=_done(request))

    @router.post("/dead-letters/{dead_letter}/values")
    def values(request: Request, dead_letter: str) -> Response:
        stored = dead_letter_of(store, dead_letter.lower())
        note_values(request, tools, stored)
        return shown(request, pages, tools, stored, values=True)


def shown(
    request: Request, pages: ConsolePages, tools: WebTools, stored: StoredDeadLetter, *, values: bool, done: str = ""
) -> Response:
    """Return the page of a dead letter."""
    document = dead_letter_document(stored, tools.store.trail(stored.id), values=values)
    return pages.page(
        request,
        "dead_letter.html",
        dead_letter=document,
        is_open=stored.state is State.OPEN,
        editable=stored.state is State.OPEN and stored.edited_as is None and not stored.without_payload,
        restorable=stored.state in RESTORABLE,
        guidance=GUIDANCE[stored.reason],
        explained_in=explained_in(stored.reason),
        done=done,
    )


def note_values(request: Request, tools: WebTools, stored: StoredDeadLetter) -> None:
    """Write into the trail who sees the values of a dead letter, before they are shown."""
    who = request.state.visitor.who
    assert who is not None, "values need a name"
    tools.store.note([stored.id], Action.VALUES_SHOWN, who, tools.clock.now())


def last_day(now: Nanoseconds) -> TimeSpans:
    """Return the half hours of the last day, the last of which ends now."""
    length = nanoseconds(_SPAN)
    return TimeSpans(since=Nanoseconds(now + 1 - length * _SPANS), length=length, count=_SPANS)


def _done(request: Request) -> str:
    what, count = request.query_params.get("done", ""), request.query_params.get("count", "")
    if what not in DONE or not count.isascii() or not count.isdecimal() or len(count) > 9:
        return ""
    return f"{int(count)} dead letter{'' if count == '1' else 's'} {DONE[what]}"
