"""Forms that act on dead letters: discard, restore, edit with a diff, replay with its progress."""

from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from services.dead_letter.app.decisions import (
    USUAL,
    NothingFoundError,
    dead_letter_of,
    decide,
    keep_edit,
    preview_edit,
    row_to_edit,
    with_usual_states,
)
from services.dead_letter.app.replay.replay import DEFAULT_RATE, ReplayOrder
from services.dead_letter.core.dead_letters import DeadLetterId, GroupId, State, StoredDeadLetter
from services.dead_letter.core.selection import Selection
from services.dead_letter.web.console.dead_letters import note_values
from services.dead_letter.web.console.formats import visible
from services.dead_letter.web.console.pages import ConsolePages, see_other
from services.dead_letter.web.console.replay_runs import ReplayRun
from services.dead_letter.web.parameters import MOST_CHANGED
from services.dead_letter.web.refusals import RefusedError
from services.dead_letter.web.replaying import run_replay
from services.dead_letter.web.tools import REPLAYS_AT_ONCE, WebTools

_SHORT_RUN: Final = 1.0  # seconds in which a replay may end before its progress is shown
_LONGEST_WHY: Final = 2_000
_LISTED: Final = 50


def add_actions(router: APIRouter, pages: ConsolePages, tools: WebTools) -> None:
    """Add the forms that decide about dead letters, and those that replay them."""
    store = tools.store

    @router.post("/dead-letters/discard")
    def discard(request: Request) -> Response:
        if not _why(request):
            raise RefusedError(422, "say why: the reason is kept in the audit trail; go back, and fill it in")
        return _decided(request, tools, State.DISCARDED, "discarded")

    @router.post("/dead-letters/restore")
    def restore(request: Request) -> Response:
        return _decided(request, tools, State.OPEN, "restored")

    @router.post("/dead-letters/{dead_letter}/edit")
    def edit(request: Request, dead_letter: str) -> Response:
        original, fields = dead_letter_of(store, dead_letter.lower()), request.state.fields
        if "row" not in fields:
            row = row_to_edit(original)
            note_values(request, tools, original)
            return _editing(request, pages, original, row, "", "")
        row, why = fields["row"].replace("\r\n", "\n"), _why(request)  # as browsers send the ends of lines
        if "save" not in fields or not why:
            diff = preview_edit(original, row).diff
            return _editing(request, pages, original, row, why, diff, lacks_why="save" in fields)
        copy, _change = keep_edit(store, original, lambda: row, why=why, who=_who(request), clock=tools.clock)
        return see_other(f"/dead-letters/{copy.id}?done=edited&count=1")

    @router.post("/dead-letters/replays")
    def replay(request: Request) -> Response:
        run = _start(tools, _order(request, tools))
        run.thread.join(_SHORT_RUN)
        return see_other(f"/dead-letters/replays/{run.id}")

    @router.get("/dead-letters/replays/{run}")
    def progress(request: Request, run: str) -> Response:
        found = _run(tools, run)
        running = found.thread.is_alive()  # before its document, which is there once it does not run
        return pages.page(
            request,
            "replay.html",
            run=found,
            document=found.document,
            listed=_LISTED,
            running=running,
            target=_target(found.order.selection),
            back=_back(found.order.selection),
        )

    @router.post("/dead-letters/replays/{run}/stop")
    def stop(run: str) -> Response:
        found = _run(tools, run)
        found.stop.request()
        return see_other(f"/dead-letters/replays/{found.id}")


def _decided(request: Request, tools: WebTools, state: State, done: str) -> Response:
    meant, why, who = _selection(request), _why(request), _who(request)
    selection = with_usual_states(tools.store, meant, *USUAL[state])
    result = decide(tools.store, selection, state, tools.clock, why=why, who=who, limit=MOST_CHANGED)
    return see_other(f"{_back(meant)}?done={done}&count={result.changed}")


def _editing(
    request: Request,
    pages: ConsolePages,
    original: StoredDeadLetter,
    row: str,
    why: str,
    diff: str,
    *,
    lacks_why: bool = False,
) -> Response:
    return pages.page(
        request,
        "edit.html",
        status=422 if lacks_why else 200,
        id=original.id,
        table=original.table,
        key=original.key,
        row=row,
        unseen=visible(row) != row,
        why=why,
        diff=diff,
        lacks_why=lacks_why,
    )


def _order(request: Request, tools: WebTools) -> ReplayOrder:
    fields = request.state.fields
    return ReplayOrder(
        selection=with_usual_states(tools.store, _selection(request), State.OPEN),
        who=_who(request),
        execute=fields.get("execute") == "yes",
        force=fields.get("force") == "yes",
        rate=DEFAULT_RATE,
    )


def _start(tools: WebTools, order: ReplayOrder) -> ReplayRun:
    if not tools.limits.replays.acquire(blocking=False):
        raise RefusedError(429, f"{REPLAYS_AT_ONCE} replays are under way here already: try again when one has ended")
    try:
        matched = tools.store.count(order.selection)
        return tools.console.runs.start(order, matched, partial(run_replay, tools), tools.limits.replays.release)
    except BaseException:
        tools.limits.replays.release()
        raise


def _run(tools: WebTools, run: str) -> ReplayRun:
    found = tools.console.runs.get(run)
    if found is None:
        raise NothingFoundError(
            "this replay is not known here: it was of a process that has ended, or of another replica. What it has "
            "sent is in the audit trail of each dead letter, and what is open can be replayed"
        )
    return found


def _selection(request: Request) -> Selection:
    """Return the dead letter or the group that a form names: never more than that."""
    fields = request.state.fields
    if dead_letter := fields.get("dead_letter"):
        return Selection(ids=frozenset({DeadLetterId(dead_letter.lower())}))
    if group := fields.get("group"):
        return Selection(groups=frozenset({GroupId(group)}))
    raise RefusedError(422, "the form names neither a dead letter nor a group: go back, and try again")


def _target(selection: Selection) -> tuple[str, str]:
    """Return the field of a form that means the same again, and its value."""
    if selection.ids:
        return "dead_letter", next(iter(selection.ids))
    return "group", next(iter(selection.groups))


def _back(selection: Selection) -> str:
    field, value = _target(selection)
    return f"/dead-letters/{value}" if field == "dead_letter" else f"/dead-letters/groups/{value}"


def _who(request: Request) -> str:
    who = request.state.visitor.who
    assert isinstance(who, str), "a change needs a name"
    return who


def _why(request: Request) -> str:
    return str(request.state.fields.get("why", "")).replace("\x00", "").strip()[:_LONGEST_WHY]
