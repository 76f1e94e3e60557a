"""What people decide about dead letters, over HTTP and on the command line: which are meant, and their new state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from services.dead_letter.core.dead_letters import DeadLetterId, State, StoredDeadLetter
from services.dead_letter.core.editing import Edit, edited, row_text
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterStore
from shared.runtime.clock import Clock

RESTORABLE: Final = (State.DISCARDED, State.SUPERSEDED, State.REPLAYED)
ONLY_FROM: Final[Mapping[State, Sequence[State]]] = {State.DISCARDED: (State.OPEN,), State.OPEN: RESTORABLE}
"""The states that people bring dead letters into, and out of which."""
USUAL: Final[Mapping[State, Sequence[State]]] = {State.DISCARDED: (State.OPEN,), State.OPEN: RESTORABLE[:2]}
"""The same where they name neither states nor ids: what was replayed stays so."""
_AT_ONCE: Final = 500


class NothingFoundError(Exception):
    """No dead letter is as it was asked for."""


class NotDoneError(Exception):
    """Something that was asked for could not be done."""


class FailingError(Exception):
    """What was replayed comes back failing, so that more of it would come back too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a decision has come to: dead letters that it was about, and those that it has changed."""

    changed: int
    checked: int


def dead_letter_of(store: DeadLetterStore, given: str) -> StoredDeadLetter:
    """Return the dead letter whose id begins so; NothingFoundError where it is none, or several."""
    found = store.get(DeadLetterId(given))
    if found is None:
        raise NothingFoundError(
            f"no dead letter has the id {given}; its first eight characters are enough, where no other begins so: a "
            "list with the state `any` shows them (`python -m services.dead_letter list --state any`)"
        )
    return found


def with_usual_states(store: DeadLetterStore, selection: Selection, *usual: State) -> Selection:
    """Return a selection with the usual states where neither states nor ids are given, and its ids in full.

    NothingFoundError naming an id that is none, or the beginning of several.
    """
    states = selection.states
    if not states and not selection.ids:
        states = frozenset(usual)
    return replace(selection, states=states, ids=frozenset(dead_letter_of(store, one).id for one in selection.ids))


def decide(
    store: DeadLetterStore,
    selection: Selection,
    state: State,
    clock: Clock,
    *,
    why: str,
    who: str,
    report: Callable[[int], object] = lambda _count: None,
    limit: int | None = None,
) -> Decided:
    """Bring dead letters into a state, a few at a time; ``report`` is called with the number of each few."""
    changed, checked, only_from = 0, 0, frozenset(ONLY_FROM[state])
    if limit is not None:  # what is changed leaves the selection then, so that the next request goes on behind it
        states = (selection.states or only_from) & only_from
        if not states:
            return Decided(changed=0, checked=0)
        selection = replace(selection, states=states)
    for ids in _pages(store, selection, limit):
        done = store.set_state(ids, state, only_from=only_from, who=who, now=clock.now(), why=why)
        changed, checked = changed + len(done), checked + len(ids)
        report(len(ids))
    return Decided(changed=changed, checked=checked)


def keep_edit(
    store: DeadLetterStore, original: StoredDeadLetter, row: Callable[[], str], *, why: str, who: str, clock: Clock
) -> tuple[StoredDeadLetter, Edit]:
    """Keep a copy of a dead letter with another row, a JSON object, in its place; NotDoneError names the fix."""
    with _edit_of(original):
        change = edited(original.dead_letter, row())
        copy = store.add_edit(original.id, change.copy, diff=change.diff, why=why, who=who, now=clock.now())
    return copy, change


def row_to_edit(original: StoredDeadLetter) -> str:
    """Return the row of a dead letter, a column a line; NotDoneError where it cannot be edited."""
    with _edit_of(original):
        return row_text(original.dead_letter)


def preview_edit(original: StoredDeadLetter, row: str) -> Edit:
    """Return what `keep_edit` would keep, and keep nothing; NotDoneError names the fix."""
    with _edit_of(original):
        return edited(original.dead_letter, row)


@contextmanager
def _edit_of(original: StoredDeadLetter) -> Iterator[None]:
    """Refuse a dead letter that is not open, or has an edited copy, and what the block refuses."""
    if original.edited_as is not None:
        raise NotDoneError(f"dead letter {original.id} has an edited copy already: edit that, {original.edited_as}")
    if original.state is not State.OPEN:
        raise NotDoneError(f"dead letter {original.id} is {original.state.value}: restore it first")
    try:
        yield
    except ValueError as error:
        raise NotDoneError(f"dead letter {original.id} cannot be edited so: {error}") from None


def _pages(store: DeadLetterStore, selection: Selection, limit: int | None) -> Sequence[Sequence[DeadLetterId]]:
    """Return the ids of a selection a page each; all of them first, for what is changed leaves the selection."""
    pages: list[Sequence[DeadLetterId]] = []
    after, left = None, limit
    while left is None or left > 0:
        page = store.find(selection, limit=_AT_ONCE if left is None else min(left, _AT_ONCE), after=after)
        pages.append([line.id for line in page.dead_letters])
        left = None if left is None else left - len(page.dead_letters)
        after = page.after
        if after is None:
            break
    return [ids for ids in pages if ids]
