"""Dead letters that arrive: new ones, and known ones that failed again."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, insert, update
from sqlalchemy.dialects import postgresql, sqlite

from services.dead_letter.adapters.store.schema import dead_letters, deliveries, payloads
from services.dead_letter.adapters.store.store_rows import (
    entry,
    locked,
    new_row,
    payload_row,
    storable,
    write_trail,
)
from services.dead_letter.core.dead_letters import COLLECTOR, Action, Arrival, DeadLetterId, State
from services.dead_letter.core.groups import group_of
from services.dead_letter.ports import Kept
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds

_CHANGING = (
    *("state", "group_id", "reason", "detail", "failed_in", "attempts", "replays"),
    *("first_failed_at", "last_failed_at", "last_action_at", "claimed_by", "claimed_until", "lost_by", "replay_of"),
)


def keep(connection: Connection, arrivals: Sequence[Arrival], now: Nanoseconds) -> Kept:
    """Remember dead letters in one transaction; see `DeadLetterStore.keep`."""
    if not arrivals:
        return Kept(new=0, again=0, seen=0)
    firsts = {DeadLetterId(one.dead_letter.identity): one.dead_letter for one in reversed(arrivals)}
    rows, added = _rows(connection, firsts, now)
    fresh = _fresh(
        connection, [(rows[DeadLetterId(one.dead_letter.identity)]["n"], one.message_id) for one in arrivals]
    )
    changed: set[int] = set()
    entries: list[dict[str, Any]] = []
    new = again = seen = 0
    for arrival in arrivals:
        dead_letter = arrival.dead_letter
        identity = DeadLetterId(dead_letter.identity)
        row = rows[identity]
        delivery = (row["n"], arrival.message_id)
        if delivery not in fresh:
            seen += 1
            continue
        fresh.remove(delivery)
        changed.add(row["n"])
        more = {"message_id": arrival.message_id, "reason": dead_letter.reason.value}
        if identity in added:
            added.remove(identity)
            new += 1
            entries.append(entry(row["n"], Action.ARRIVED, COLLECTOR, now, State.OPEN.value, more))
        else:
            again += 1
            _fail_again(row, dead_letter)
            entries.append(entry(row["n"], Action.FAILED_AGAIN, COLLECTOR, now, row["state"], more))
        row["attempts"] += 1
        row["last_action_at"] = now
    _save(connection, [row for row in rows.values() if row["n"] in changed])
    write_trail(connection, entries)
    return Kept(new=new, again=again, seen=seen)


def _rows(
    connection: Connection, first: dict[DeadLetterId, DeadLetter], now: Nanoseconds
) -> tuple[dict[DeadLetterId, dict[str, Any]], set[DeadLetterId]]:
    """Return the rows of dead letters, locked, those that were not there added; and which these are."""
    found = locked(connection, list(first))
    missing = sorted(set(first) - set(found))
    added: set[DeadLetterId] = set()
    if missing:
        adding = _inserting(connection, dead_letters).returning(dead_letters.c.id)
        # a transaction that adds the same dead letters just now is waited for here
        added = set(connection.execute(adding, [new_row(first[one], now) for one in missing]).scalars())
        found |= locked(connection, missing)
        if not set(first) <= set(found):
            raise TransientError("a dead letter was added by another and deleted again, both just now")
        if added:
            connection.execute(insert(payloads), [payload_row(found[one].n, first[one]) for one in sorted(added)])
    return {one: dict(row._mapping) for one, row in found.items()}, added


def _fresh(connection: Connection, arrived: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Remember deliveries, and return those that have not come before. A dead letter may have come a million times."""
    adding = _inserting(connection, deliveries).returning(deliveries.c.n, deliveries.c.message_id)
    rows = connection.execute(adding, [{"n": n, "message_id": one} for n, one in dict.fromkeys(arrived)])
    return {(n, one) for n, one in rows}


def _inserting(connection: Connection, table: Table) -> Any:
    """Return an insert that leaves out what is there already."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


def _fail_again(row: dict[str, Any], dead_letter: DeadLetter) -> None:
    failed_at = storable(dead_letter.failed_at)
    row["first_failed_at"] = min(row["first_failed_at"], failed_at)
    if failed_at >= row["last_failed_at"]:
        row["last_failed_at"] = failed_at
        row["reason"] = dead_letter.reason.value
        row["detail"] = dead_letter.detail
        row["failed_in"] = dead_letter.failed_in
        row["replay_of"] = dead_letter.attributes.get(REPLAY_OF)
        row["group_id"] = group_of(dead_letter.reason, row["table_name"], dead_letter.detail)
    if row["state"] != State.DISCARDED.value:
        row["state"] = State.OPEN.value
    if row["claimed_by"] is not None:
        row["lost_by"] = row["claimed_by"]
        row["claimed_by"] = row["claimed_until"] = None


def _save(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        changing = update(dead_letters).where(dead_letters.c.n == bindparam("_n"))
        connection.execute(
            changing.values({name: bindparam(f"_{name}") for name in _CHANGING}),
            [{f"_{name}": row[name] for name in ("n", *_CHANGING)} for row in rows],
        )
