"""Operations that inspection. Who asks for values is written into the trail, before they are shown."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query

from services.dead_letter.app.decisions import dead_letter_of
from services.dead_letter.core.dead_letters import Action, State
from services.dead_letter.core.documents import (
    dead_letter_document,
    group_document,
    line_document,
    stats_document,
    trail_document,
)
from services.dead_letter.web import answers
from services.dead_letter.web.exporting import add_export
from services.dead_letter.web.parameters import DeadLetterList, DeadLetterName, GroupList, Showing
from services.dead_letter.web.refusals import Answer, RefusedError, documented
from services.dead_letter.web.routes import Who
from services.dead_letter.web.tools import WebTools

_LINKS: Final = {
    name: {"operationId": name, "parameters": {"dead_letter": "$response.body#/dead_letters/0/id"}}
    for name in ("showDeadLetter", "trail", "edit")
}
DeadLetterPath = Annotated[DeadLetterName, Path(description="its id, or the first eight characters or more of it")]


def add_reading(router: APIRouter, tools: WebTools) -> None:
    """Add the operations that change nothing."""
    store = tools.store

    @router.get(
        "/dead-letters",
        response_model=answers.ListedDeadLetters,
        responses={200: {"links": _LINKS}, **documented(404)},
        operation_id="listDeadLetters",
    )
    def dead_letters(asked: Annotated[DeadLetterList, Query()]) -> Answer:
        """List dead letters, those that failed last first; open ones unless state or id says otherwise."""
        selection = asked.chosen(store, tools.clock.now(), State.OPEN)
        try:
            page = store.find(selection, limit=asked.limit, after=asked.after)
        except ValueError:  # numbers beyond 64 bits, which no page ends with
            message = "no page has ended so: give `after` as the page before this one had it"
            raise RefusedError(404, message, at="query.after") from None
        shown = [line_document(line) for line in page.dead_letters]
        return Answer({"dead_letters": shown, "after": page.after, "matched": store.count(selection)})

    @router.get(
        "/dead-letters/{dead_letter}",
        response_model=answers.ShownDeadLetter,
        responses=documented(404),
        operation_id="showDeadLetter",
    )
    def dead_letter(dead_letter: DeadLetterPath, asked: Annotated[Showing, Query()], who: Who) -> Answer:
        """Show a dead letter whole: why it failed, what it holds, and what was done about it.

        With values=true it takes a token, or the identity-aware proxy, and is written into the trail.
        """
        if asked.values and who is None:
            raise tools.callers.refused()
        stored = dead_letter_of(store, dead_letter.lower())
        if asked.values and who is not None:  # first written down, then shown
            store.note([stored.id], Action.VALUES_SHOWN, who, tools.clock.now())
        return Answer(dead_letter_document(stored, store.trail(stored.id), values=asked.values))

    @router.get(
        "/dead-letters/{dead_letter}/trail",
        response_model=answers.Trail,
        responses=documented(404),
        operation_id="trail",
    )
    def trail(dead_letter: DeadLetterPath) -> Answer:
        """Show what was done to a dead letter, first things first, without the values that an edit has changed."""
        entries = store.trail(dead_letter_of(store, dead_letter.lower()).id)
        return Answer({"trail": [trail_document(entry, values=False) for entry in entries]})

    add_export(router, tools)

    @router.get("/groups", response_model=answers.Groups, responses=documented(404), operation_id="listGroups")
    def groups(asked: Annotated[GroupList, Query()]) -> Answer:
        """Show dead letters by their cause, the largest group first; open ones unless state or id says otherwise."""
        selection = asked.chosen(store, tools.clock.now(), State.OPEN)
        return Answer({"groups": [group_document(one) for one in store.groups(selection, limit=asked.limit)]})

    @router.get("/stats", response_model=answers.Stats, operation_id="stats")
    def stats() -> Answer:
        """Show what there is, in numbers."""
        return Answer(stats_document(store.stats()))
