"""The dead letter store in a database: each method one transaction. Arrivals and queries have modules of their own."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from services.dead_letter.adapters.store import store_arrivals
from services.dead_letter.adapters.store.database import DeadLetterDatabase
from services.dead_letter.adapters.store.replay_locks import ReplayLocks
from services.dead_letter.adapters.store.schema import dead_letters as table
from services.dead_letter.adapters.store.schema import payloads
from services.dead_letter.adapters.store.schema import pipeline as pipeline_table
from services.dead_letter.adapters.store.store_queries import WHOLE, DeadLetterQueries
from services.dead_letter.adapters.store.store_rows import (
    AT_A_TIME,
    AnyRow,
    chunks,
    entry,
    locked,
    new_row,
    payload_row,
    stored_of,
    write_trail,
)
from services.dead_letter.core.dead_letters import (
    Action,
    Arrival,
    DeadLetterId,
    ReplayId,
    State,
    StoredDeadLetter,
)
from services.dead_letter.core.pipeline import Pipeline, joined, refuse_while_replayed
from services.dead_letter.ports import Kept
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.timestamps import Nanoseconds, nanoseconds

_ACTIONS: Final = {State.OPEN: Action.RESTORED, State.SUPERSEDED: Action.SUPERSEDED, State.DISCARDED: Action.DISCARDED}
"""The states that a dead letter can be put into, and what that is called."""
_FREE: Final = {"claimed_by": None, "claimed_until": None, "lost_by": None}
_c = table.c


class SqlDeadLetterStore(DeadLetterQueries):
    """A `DeadLetterStore` on SQLite or PostgreSQL."""

    def __init__(self, database: DeadLetterDatabase) -> None:
        super().__init__(database)
        self._locks = ReplayLocks(database.file)

    def pipeline(self) -> Pipeline:
        """Return of which pipeline the dead letters are."""
        with self._database.reading() as connection:
            return _known(connection)

    def join(self, mine: Pipeline) -> Pipeline:
        """Remember of which pipeline the dead letters are. A process that joins just now is waited for, and wins."""
        known = self.pipeline()
        if joined(known, mine) == known:
            return known
        with self._database.writing() as connection:
            for row in _parts(mine):
                connection.execute(_upsert(connection).values(row).on_conflict_do_nothing(index_elements=["part"]))
            return joined(_known(connection), mine)

    def change_pipeline(self, new: Pipeline, now: Nanoseconds) -> Pipeline:
        """Remember another subscription or topic from now on."""
        self.release_dead()
        claims = select(func.count()).where(_c.claimed_by.is_not(None), _c.claimed_until > now)
        with self._database.writing() as connection:
            connection.execute(select(pipeline_table.c.name).with_for_update())
            before = _known(connection)
            for row in _parts(new):
                upsert = _upsert(connection).values(row)
                connection.execute(upsert.on_conflict_do_update(index_elements=["part"], set_={"name": row["name"]}))
            if new.topic not in (None, before.topic):  # the lock lets no claim be made until this ends
                refuse_while_replayed(connection.execute(claims).scalar_one())
            return _known(connection)

    def keep(self, arrivals: Sequence[Arrival], now: Nanoseconds) -> Kept:
        """Remember dead letters; return when they are durable."""
        with self._database.writing() as connection:
            return store_arrivals.keep(connection, arrivals, now)

    def note(self, ids: Sequence[DeadLetterId], action: Action, who: str, now: Nanoseconds, result: str = "") -> None:
        """Write a line into the trail of dead letters."""
        with self._database.writing() as connection:
            rows = locked(connection, ids).values()
            _change(connection, rows, now, {})
            write_trail(connection, [entry(row.n, action, who, now, result) for row in rows])

    def set_state(
        self,
        ids: Sequence[DeadLetterId],
        state: State,
        *,
        only_from: frozenset[State],
        who: str,
        now: Nanoseconds,
        why: str,
    ) -> Sequence[DeadLetterId]:
        """Discard dead letters, say they are superseded, or open them."""
        if state not in _ACTIONS:
            raise ValueError(f"only `sent` makes a dead letter {state.value}")
        with self._database.writing() as connection:
            chosen = {
                one: row
                for one, row in locked(connection, ids).items()
                if State(row.state) in only_from and not _is_claimed(row, now)
            }
            rows = chosen.values()
            _change(connection, rows, now, _FREE | {"state": state.value})
            action = _ACTIONS[state]
            write_trail(connection, [entry(row.n, action, who, now, why, {"before": str(row.state)}) for row in rows])
        return _in_order(ids, chosen)

    def claim(
        self, ids: Sequence[DeadLetterId], replay: ReplayId, now: Nanoseconds, lease: timedelta
    ) -> Sequence[DeadLetterId]:
        """Take dead letters for a replay."""
        until = now + nanoseconds(lease)
        with self._database.writing() as connection:
            connection.execute(select(pipeline_table.c.name).with_for_update(read=True))  # see `change_pipeline`
            chosen = {
                one: row
                for one, row in locked(connection, ids).items()
                if row.state == State.OPEN.value and (row.claimed_by == replay or not _is_claimed(row, now))
            }
            _change(connection, chosen.values(), None, _FREE | {"claimed_by": replay, "claimed_until": until})
        return _in_order(ids, chosen)

    def sent(self, ids: Sequence[DeadLetterId], replay: ReplayId, who: str, now: Nanoseconds) -> Sequence[DeadLetterId]:
        """Say that dead letters of a claim are published."""
        once_more, more = {"replays": _c.replays + 1}, {"replay": replay}
        with self._database.writing() as connection:
            rows = locked(connection, ids)
            ours = {one: row for one, row in rows.items() if row.claimed_by == replay}
            lost = [row for row in rows.values() if row.lost_by == replay]
            _change(connection, ours.values(), now, _FREE | once_more | {"state": State.REPLAYED.value})
            _change(connection, lost, now, once_more | {"lost_by": None})
            results = [(row, "confirmed by Pub/Sub") for row in ours.values()]
            results += [(row, "failed again before this was written") for row in lost]
            write_trail(connection, [entry(row.n, Action.REPLAYED, who, now, result, more) for row, result in results])
        return _in_order(ids, ours)

    def release(self, replay: ReplayId) -> None:
        """Let go of everything that a replay holds."""
        free = update(table)
        with self._database.writing() as connection:
            connection.execute(free.where(_c.claimed_by == replay).values(claimed_by=None, claimed_until=None))
            connection.execute(free.where(_c.lost_by == replay).values(lost_by=None))
        self._locks.bury(replay)

    def living(self, replay: ReplayId) -> AbstractContextManager[None]:
        """Let everyone see that a replay lives while a block runs."""
        return self._locks.locked(replay)

    def release_dead(self) -> Sequence[ReplayId]:
        """Let go of what dead replays hold."""
        claiming = select(_c.claimed_by).where(_c.claimed_by.is_not(None)).distinct()
        with self._database.reading() as connection:
            replays = [ReplayId(one) for one in connection.execute(claiming).scalars()]
        dead = self._locks.dead(replays)
        for one in dead:
            self.release(one)
        return dead

    def add_edit(
        self, original: DeadLetterId, copy: DeadLetter, *, diff: str, why: str, who: str, now: Nanoseconds
    ) -> StoredDeadLetter:
        """Keep an edited copy."""
        identity, more = DeadLetterId(copy.identity), {"why": why, "diff": diff}
        with self._database.writing() as connection:
            rows = locked(connection, [original, identity])
            if original not in rows:
                raise ValueError(f"there is no dead letter {original}")
            row = rows[original]
            if row.edited_as is not None:
                raise ValueError(f"dead letter {original} has an edited copy already: {row.edited_as}")
            if row.state != State.OPEN.value:
                raise ValueError(f"dead letter {original} is {row.state} by now: restore it first")
            if _is_claimed(row, now):
                raise ValueError(f"dead letter {original} is claimed by the replay {row.claimed_by} just now")
            if identity in rows:
                raise ValueError(f"the edited copy is the same as dead letter {identity}")
            made = new_row(copy, now) | {"edit_of": original}
            n = connection.execute(insert(table).returning(_c.n), made).scalar_one()
            connection.execute(insert(payloads), payload_row(n, copy))
            _change(connection, [row], now, _FREE | {"state": State.SUPERSEDED.value, "edited_as": identity})
            write_trail(
                connection,
                [
                    entry(row.n, Action.EDITED, who, now, "superseded by its copy", {"edited_as": identity} | more),
                    entry(n, Action.EDITED, who, now, "an edited copy", {"edit_of": original} | more),
                ],
            )
            return stored_of(connection.execute(WHOLE.where(_c.n == n)).one())

    def forget(self, *, before: Nanoseconds, limit: int) -> int:
        """Delete some dead letters that are no longer needed."""
        old = (_c.state != State.OPEN.value, _c.last_failed_at < before, _c.last_action_at < before)
        chosen = select(_c.n, _c.edit_of).where(*old).order_by(_c.last_action_at, _c.n).limit(limit)
        with self._database.writing() as connection:
            gone = connection.execute(chosen.with_for_update(skip_locked=True)).all()
            for some in chunks([row.edit_of for row in gone if row.edit_of is not None]):  # these may be edited again
                connection.execute(update(table).where(_c.id.in_(some)).values(edited_as=None))
            numbers = [row.n for row in gone]
            return sum(connection.execute(delete(table).where(_c.n.in_(some))).rowcount for some in chunks(numbers))


def _is_claimed(row: AnyRow, now: Nanoseconds) -> bool:
    return row.claimed_by is not None and bool(row.claimed_until > now)


def _change(connection: Connection, rows: Collection[AnyRow], now: Nanoseconds | None, values: dict[str, Any]) -> None:
    """Change dead letters that are locked; with ``now``, as an action that keeps them from being forgotten."""
    if now is not None:
        values = values | {"last_action_at": now}
    for some in chunks(list(rows), AT_A_TIME):
        connection.execute(update(table).where(_c.n.in_([row.n for row in some])).values(values))


def _in_order(ids: Sequence[DeadLetterId], chosen: Mapping[DeadLetterId, AnyRow]) -> Sequence[DeadLetterId]:
    return [one for one in dict.fromkeys(ids) if one in chosen]


def _known(connection: Connection) -> Pipeline:
    found = connection.execute(select(pipeline_table.c.part, pipeline_table.c.name))
    names = {row.part: row.name for row in found}
    return Pipeline(subscription=names.get("subscription"), topic=names.get("topic"))


def _parts(one: Pipeline) -> list[dict[str, str]]:
    parts = (("subscription", one.subscription), ("topic", one.topic))
    return [{"part": part, "name": name} for part, name in parts if name is not None]


def _upsert(connection: Connection) -> postgresql.Insert | sqlite.Insert:
    name = connection.dialect.name
    return postgresql.insert(pipeline_table) if name == "postgresql" else sqlite.insert(pipeline_table)
