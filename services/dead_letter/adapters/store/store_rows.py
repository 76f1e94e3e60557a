"""Dead letters as rows of the store's tables and back, and the conditions of a selection as SQL."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, insert, select

from services.dead_letter.adapters.store.schema import dead_letters, trail
from services.dead_letter.core.dead_letters import (
    OF_MESSAGE,
    Action,
    DeadLetterId,
    DeadLetterLine,
    State,
    StoredDeadLetter,
)
from services.dead_letter.core.groups import group_of
from services.dead_letter.core.selection import Selection, sequence_order
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

T = TypeVar("T")
AnyRow: TypeAlias = Row[*tuple[Any, ...]]

AT_A_TIME: Final = 500
"""Dead letters in one statement."""
_c = dead_letters.c

_COLUMN_OF: Final = {field.name: field.name for field in fields(DeadLetterLine)} | {
    "group": "group_id",
    "table": "table_name",
    "key": "row_key",
}
LINE: Final = tuple(_c[column] for column in ("n", *_COLUMN_OF.values()))
"""The columns of a `DeadLetterLine`."""


def chunks(values: Sequence[T], size: int = AT_A_TIME) -> Iterator[Sequence[T]]:
    """Return values in chunks for one statement each."""
    return (values[start : start + size] for start in range(0, len(values), size))


def conditions(selection: Selection) -> list[ColumnElement[bool]]:
    """Return what has to hold of a row."""
    found: list[ColumnElement[bool]] = []
    for column, chosen in (
        (_c.id, selection.ids),
        (_c.group_id, selection.groups),
        (_c.table_name, selection.tables),
        (_c.reason, [reason.value for reason in selection.reasons]),
        (_c.row_key, selection.keys),
        (_c.state, [state.value for state in selection.states]),
    ):
        if chosen:
            found.append(column.in_(sorted(chosen)))
    if selection.failed_from is not None:
        found.append(_c.last_failed_at >= storable(selection.failed_from))
    if selection.failed_until is not None:
        found.append(_c.last_failed_at < storable(selection.failed_until))
    if selection.sequence_from is not None or selection.sequence_until is not None:
        found.append(_c.sequence_order != "")
    if selection.sequence_from is not None:
        found.append(_c.sequence_order >= selection.sequence_from)
    if selection.sequence_until is not None:
        found.append(_c.sequence_order < selection.sequence_until)
    return found


def storable(instant: int) -> Nanoseconds:
    """Return an instant, or the nearest that 64 bits hold (the years 1677 to 2262)."""
    return Nanoseconds(max(-(1 << 63), min(instant, (1 << 63) - 1)))


def new_row(dead_letter: DeadLetter, now: Nanoseconds) -> dict[str, Any]:
    """Return the row of a dead letter that has not failed yet."""
    failed_at = storable(dead_letter.failed_at)
    return {
        **{_COLUMN_OF[name]: getattr(dead_letter, name) for name in OF_MESSAGE},
        "id": dead_letter.identity,
        "state": State.OPEN.value,
        "group_id": group_of(dead_letter.reason, dead_letter.table, dead_letter.detail),
        "reason": dead_letter.reason.value,
        "sequence_order": sequence_order(dead_letter.sequence),
        "size": len(dead_letter.data),
        "payload_bytes": None if dead_letter.payload_bytes is None else storable(dead_letter.payload_bytes),
        "attempts": 0,
        "replays": 0,
        "first_failed_at": failed_at,
        "last_failed_at": failed_at,
        "arrived_at": now,
        "last_action_at": now,
        "replay_of": dead_letter.attributes.get(REPLAY_OF),
        **dict.fromkeys(("edit_of", "edited_as", "claimed_by", "claimed_until", "lost_by")),
    }


def payload_row(n: int, dead_letter: DeadLetter) -> dict[str, Any]:
    """Return the row with a dead letter's bytes and attributes."""
    return {"n": n, "attributes": as_json(dead_letter.attributes), "data": dead_letter.data}


def line_of(row: AnyRow) -> DeadLetterLine:
    """Return what lists show, from a row of `LINE`."""
    return DeadLetterLine(**_shown(row))


def stored_of(row: AnyRow) -> StoredDeadLetter:
    """Return a dead letter, from a row of `LINE` and its payload."""
    return StoredDeadLetter(**_shown(row), attributes=json.loads(row.attributes), data=bytes(row.data))


def _shown(row: AnyRow) -> dict[str, Any]:
    found = {name: getattr(row, column) for name, column in _COLUMN_OF.items()}
    return found | {"state": State(row.state), "reason": reason_of(row.reason)}


def reason_of(stored: str) -> Reason:
    """Return the reason that is stored; one of a newer version, as after a rollback, is `UNEXPLAINED` here."""
    try:
        return Reason(stored)
    except ValueError:
        return Reason.UNEXPLAINED


def locked(connection: Connection, ids: Sequence[DeadLetterId]) -> dict[DeadLetterId, AnyRow]:
    """Return the rows of dead letters, held against every other transaction until this one ends.

    They are taken in the order of their ids by everybody, so that no two wait for each other.
    """
    found: dict[DeadLetterId, AnyRow] = {}
    for some in chunks(sorted(set(ids))):
        rows = select(dead_letters).where(_c.id.in_(some)).order_by(_c.id).with_for_update()
        found |= {DeadLetterId(row.id): row for row in connection.execute(rows)}
    return found


def entry(
    n: int, action: Action, who: str, now: Nanoseconds, result: str = "", more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a line of a dead letter's trail as a row."""
    return {"n": n, "at": now, "who": who, "action": action.value, "result": result, "more": as_json(more or {})}


def write_trail(connection: Connection, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write lines of the trail."""
    if entries:
        connection.execute(insert(trail), entries)


def as_json(texts: Mapping[str, str]) -> str:
    """Return texts as a JSON object in ASCII: whatever is in them, both databases take it."""
    return json.dumps(dict(texts))
