"""What is done to dead letters that are kept: states, claims, edits, notes, and forgetting."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select, update

from services.dead_letter.adapters.store.schema import letters, payloads
from services.dead_letter.adapters.store.store_rows import (
    AT_A_TIME,
    AnyRow,
    chunks,
    entry,
    locked,
    new_row,
    payload_row,
    write_trail,
)
from services.dead_letter.core.dead_letters import Action, DeadLetterId, ReplayId, State
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.timestamps import Nanoseconds

ACTIONS: Final = {
    State.OPEN: Action.RESTORED,
    State.SUPERSEDED: Action.SUPERSEDED,
    State.DISCARDED: Action.DISCARDED,
}
"""The states that a dead letter can be put into, and what that is called."""
_FREE: Final = {"claimed_by": None, "claimed_until": None, "lost_by": None}
_c = letters.c


def note(
    connection: Connection, ids: Sequence[DeadLetterId], action: Action, who: str, now: Nanoseconds, result: str
) -> None:
    """See `DeadLetterStore.note`."""
    rows = locked(connection, ids)
    _change(connection, list(rows.values()), now, {})
    write_trail(connection, [entry(row.n, action, who, now, result) for row in rows.values()])


def set_state(
    connection: Connection,
    ids: Sequence[DeadLetterId],
    state: State,
    only_from: frozenset[State],
    who: str,
    now: Nanoseconds,
    why: str,
) -> Sequence[DeadLetterId]:
    """See `DeadLetterStore.set_state`."""
    action = ACTIONS[state]
    chosen = {
        one: row
        for one, row in locked(connection, ids).items()
        if State(row.state) in only_from and not _is_held(row, now)
    }
    _change(connection, list(chosen.values()), now, _FREE | {"state": state.value})
    write_trail(
        connection, [entry(row.n, action, who, now, why, {"before": str(row.state)}) for row in chosen.values()]
    )
    return _in_order(ids, chosen)


def claim(
    connection: Connection, ids: Sequence[DeadLetterId], replay: ReplayId, now: Nanoseconds, lease: timedelta
) -> Sequence[DeadLetterId]:
    """See `DeadLetterStore.claim`."""
    chosen = {
        one: row
        for one, row in locked(connection, ids).items()
        if row.state == State.OPEN.value and (row.claimed_by == replay or not _is_held(row, now))
    }
    until = now + lease // timedelta(microseconds=1) * 1000
    _change(connection, list(chosen.values()), None, _FREE | {"claimed_by": replay, "claimed_until": until})
    return _in_order(ids, chosen)


def sent(
    connection: Connection, ids: Sequence[DeadLetterId], replay: ReplayId, who: str, now: Nanoseconds
) -> Sequence[DeadLetterId]:
    """See `DeadLetterStore.sent`."""
    rows = locked(connection, ids)
    ours = {one: row for one, row in rows.items() if row.claimed_by == replay}
    lost = [row for row in rows.values() if row.lost_by == replay]
    once_more = {"replays": _c.replays + 1}
    _change(connection, list(ours.values()), now, _FREE | once_more | {"state": State.REPLAYED.value})
    _change(connection, lost, now, once_more | {"lost_by": None})
    more = {"replay": replay}
    write_trail(
        connection,
        [entry(row.n, Action.REPLAYED, who, now, "confirmed by Pub/Sub", more) for row in ours.values()]
        + [entry(row.n, Action.REPLAYED, who, now, "failed again before this was written", more) for row in lost],
    )
    return _in_order(ids, ours)


def release(connection: Connection, replay: ReplayId) -> None:
    """See `DeadLetterStore.release`."""
    connection.execute(update(letters).where(_c.claimed_by == replay).values(claimed_by=None, claimed_until=None))
    connection.execute(update(letters).where(_c.lost_by == replay).values(lost_by=None))


def claiming(connection: Connection) -> Sequence[ReplayId]:
    """Return the replays that hold dead letters, or have held them when they were killed."""
    holders = select(_c.claimed_by).where(_c.claimed_by.is_not(None)).distinct()
    return [ReplayId(one) for one in connection.execute(holders).scalars()]


def add_edit(
    connection: Connection, original: DeadLetterId, copy: DeadLetter, diff: str, why: str, who: str, now: Nanoseconds
) -> DeadLetterId:
    """See `DeadLetterStore.add_edit`; return the copy's identity."""
    identity = DeadLetterId(copy.identity)
    rows = locked(connection, [original, identity])
    if original not in rows:
        raise ValueError(f"there is no letter {original}")
    row = rows[original]
    if row.edited_as is not None:
        raise ValueError(f"letter {original} has an edited copy already: {row.edited_as}")
    if _is_held(row, now):
        raise ValueError(f"letter {original} is held by the replay {row.claimed_by} just now")
    if identity in rows:
        raise ValueError(f"the edited copy is the same as letter {identity}")
    n = connection.execute(insert(letters).returning(_c.n), new_row(copy, now) | {"edit_of": original}).scalar_one()
    connection.execute(insert(payloads), payload_row(n, copy))
    _change(connection, [row], now, _FREE | {"state": State.SUPERSEDED.value, "edited_as": identity})
    more = {"why": why, "diff": diff}
    write_trail(
        connection,
        [
            entry(row.n, Action.EDITED, who, now, "superseded by its copy", {"edited_as": identity} | more),
            entry(n, Action.EDITED, who, now, "an edited copy", {"edit_of": original} | more),
        ],
    )
    return identity


def forget(connection: Connection, before: Nanoseconds, limit: int) -> int:
    """See `DeadLetterStore.forget`."""
    old = (_c.state != State.OPEN.value, _c.last_failed_at < before, _c.last_action_at < before)
    chosen = select(_c.n).where(*old).order_by(_c.last_action_at, _c.n).limit(limit).with_for_update(skip_locked=True)
    forgotten = 0
    for some in chunks(connection.execute(chosen).scalars().all()):
        forgotten += connection.execute(delete(letters).where(_c.n.in_(some))).rowcount
    return forgotten


def _is_held(row: AnyRow, now: Nanoseconds) -> bool:
    return row.claimed_by is not None and bool(row.claimed_until > now)


def _change(connection: Connection, rows: Sequence[AnyRow], now: Nanoseconds | None, values: dict[str, Any]) -> None:
    """Change dead letters that are locked; with ``now``, as an action that keeps them from being forgotten."""
    if now is not None:
        values = values | {"last_action_at": now}
    for some in chunks(rows, AT_A_TIME):
        connection.execute(update(letters).where(_c.n.in_([row.n for row in some])).values(values))


def _in_order(ids: Sequence[DeadLetterId], chosen: dict[DeadLetterId, AnyRow]) -> Sequence[DeadLetterId]:
    return [one for one in dict.fromkeys(ids) if one in chosen]
