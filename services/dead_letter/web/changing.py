"""Operations that decide: discard, restore, edit. Each is written into the trail, with who and why."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends, Request

from services.dead_letter.app.decisions import USUAL, dead_letter_of, decide, keep_edit
from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.editing import with_columns
from services.dead_letter.web import answers
from services.dead_letter.web.parameters import Discarding, Editing, Restoring
from services.dead_letter.web.reading import DeadLetterPath
from services.dead_letter.web.refusals import Answer, RefusedError, documented
from services.dead_letter.web.routes import Who
from services.dead_letter.web.tools import WebTools


class _Exact(msgspec.Struct):
    """The values of an edit, their texts as they came: no number goes through a float."""

    set: dict[str, msgspec.Raw] | None = None
    row: msgspec.Raw = msgspec.Raw()


_exact: Final = msgspec.json.Decoder(_Exact)


async def _body(request: Request) -> bytes:
    return await request.body()


def add_changing(router: APIRouter, tools: WebTools) -> None:
    """Add the operations that decide about dead letters."""
    store = tools.store

    @router.post("/discard", response_model=answers.Changed, responses=documented(404, 413), operation_id="discard")
    def discard(body: Discarding, who: Who) -> Answer:
        """Decide that dead letters are not to be applied: open ones. `restore` opens them again."""
        return _decided(tools, body, State.DISCARDED, _named(who))

    @router.post("/restore", response_model=answers.Changed, responses=documented(404, 413), operation_id="restore")
    def restore(body: Restoring, who: Who) -> Answer:
        """Open dead letters again: discarded and superseded ones, and by id or state also those that were replayed."""
        return _decided(tools, body, State.OPEN, _named(who))

    @router.post(
        "/dead-letters/{dead_letter}/edit",
        response_model=answers.Edited,
        responses=documented(404, 409, 413),
        operation_id="edit",
    )
    def edit(dead_letter: DeadLetterPath, body: Editing, raw: Annotated[bytes, Depends(_body)], who: Who) -> Answer:
        """Give the row of a dead letter other values: a copy that takes its place, to be replayed in its stead."""
        try:
            exact = _exact.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedError(422, f"the body is not JSON: {error}", at="body") from None
        original = dead_letter_of(store, dead_letter.lower())

        def row() -> str:
            if body.row is not None:
                return bytes(exact.row).decode()
            return with_columns(
                original.dead_letter, {name: bytes(value).decode() for name, value in (exact.set or {}).items()}
            )

        copy, change = keep_edit(store, original, row, why=body.why, who=_named(who), clock=tools.clock)
        return Answer({"id": copy.id, "edit_of": original.id, "sequence": copy.sequence, "diff": change.diff})


def _decided(tools: WebTools, body: Discarding, state: State, who: str) -> Answer:
    selection = body.dead_letters.chosen(tools.store, tools.clock.now(), *USUAL[state])
    matched = tools.store.count(selection)
    done = decide(tools.store, selection, state, tools.clock, why=body.why, who=who, limit=body.limit)
    more = done.checked == body.limit and matched > done.checked
    return Answer({"state": state.value, "changed": done.changed, "matched": matched, "more": more})


def _named(who: str | None) -> str:
    assert who is not None, "a change needs a name"
    return who
