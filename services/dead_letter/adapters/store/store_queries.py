"""What is asked of the dead letters that are kept: one, pages, an order to replay in, groups, numbers, trails."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, case, func, select, tuple_

from services.dead_letter.adapters.store.database import DeadLetterDatabase
from services.dead_letter.adapters.store.schema import BY_GROUP, REPLAY_ORDER, letters, payloads, trail
from services.dead_letter.adapters.store.store_rows import (
    AT_A_TIME,
    LINE,
    AnyRow,
    conditions,
    letter_of,
    line_of,
    reason_of,
)
from services.dead_letter.core.dead_letters import (
    Action,
    DeadLetterGroup,
    DeadLetterId,
    DeadLetterStats,
    GroupId,
    State,
    StoredDeadLetter,
    TimeSpans,
    TrailEntry,
)
from services.dead_letter.core.groups import normalised
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterPage
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

_FEWEST_CHARACTERS: Final = 8
_BYTES_AT_A_TIME: Final = 8_000_000
"""How many bytes of dead letters a walk through them holds, or one dead letter where that is larger."""
_ORDERED_AT_A_TIME: Final = 10_000
"""How many places a walk through dead letters is ahead of itself: two hundred bytes each."""
_LAST: Final = "\U0010ffff"
_PLACE: Final = re.compile(r"(-?[0-9]{1,19})\.([0-9]{1,19})", re.ASCII)
_c = letters.c
_WHOLE: Final = select(*LINE, payloads.c.attributes, payloads.c.data).join(payloads, payloads.c.n == _c.n)


def get(connection: Connection, letter: DeadLetterId) -> StoredDeadLetter | None:
    """See `DeadLetterStore.get`."""
    row = connection.execute(_WHOLE.where(_c.id == letter)).one_or_none()
    if row is None and len(letter) >= _FEWEST_CHARACTERS:
        begin_so = select(_c.id).where(_c.id >= letter, _c.id < letter + _LAST).limit(2)
        found = connection.execute(begin_so).scalars().all()
        if len(found) == 1:
            row = connection.execute(_WHOLE.where(_c.id == found[0])).one_or_none()
    return None if row is None else letter_of(row)


def find(connection: Connection, selection: Selection, limit: int, after: str | None) -> DeadLetterPage:
    """See `DeadLetterStore.find`."""
    if limit < 1:
        raise ValueError("a page has one dead letter or more")
    query = select(*LINE).where(*conditions(selection))
    if after is not None:
        failed_at, n = _place(after)
        query = query.where(tuple_(_c.last_failed_at, _c.n) < tuple_(failed_at, n))
    rows = connection.execute(query.order_by(_c.last_failed_at.desc(), _c.n.desc()).limit(limit + 1)).all()
    page = rows[:limit]
    more = f"{page[-1].last_failed_at}.{page[-1].n}" if len(rows) > limit else None
    return DeadLetterPage([line_of(row) for row in page], more)


def _place(after: str) -> tuple[int, int]:
    match = _PLACE.fullmatch(after)
    if match is None or not all(-(1 << 63) <= int(part) < 1 << 63 for part in match.groups()):
        raise ValueError(f"not what a page ended with: {after!r}")
    return int(match[1]), int(match[2])


def in_replay_order(database: DeadLetterDatabase, selection: Selection) -> Iterator[StoredDeadLetter]:
    """See `DeadLetterStore.in_replay_order`."""
    chosen = conditions(selection)
    places = select(*REPLAY_ORDER, _c.size).where(*chosen).order_by(*REPLAY_ORDER).limit(_ORDERED_AT_A_TIME)
    last: Sequence[Any] | None = None
    while True:
        with database.reading() as connection:
            behind = places if last is None else places.where(tuple_(*REPLAY_ORDER) > tuple_(*last))
            rows = connection.execute(behind).all()
        for numbers in _by_size(rows):
            with database.reading() as connection:
                found = connection.execute(_WHOLE.where(and_(_c.n.in_(numbers), *chosen))).all()
            held = {row.n: row for row in found}
            del found
            for n in numbers:
                row = held.pop(n, None)  # let go of as it is handed on
                if row is not None:
                    yield letter_of(row)
        if len(rows) < _ORDERED_AT_A_TIME:
            return
        last = rows[-1][: len(REPLAY_ORDER)]


def _by_size(rows: Sequence[AnyRow]) -> Iterator[Sequence[int]]:
    numbers: list[int] = []
    size = 0
    for row in rows:
        if numbers and (size + row.size > _BYTES_AT_A_TIME or len(numbers) == AT_A_TIME):
            yield numbers
            numbers, size = [], 0
        numbers.append(row.n)
        size += row.size
    if numbers:
        yield numbers


def count(connection: Connection, selection: Selection) -> int:
    """See `DeadLetterStore.count`."""
    return connection.execute(select(func.count()).select_from(letters).where(*conditions(selection))).scalar_one()


def groups(connection: Connection, selection: Selection, limit: int) -> Sequence[DeadLetterGroup]:
    """See `DeadLetterStore.groups`."""
    chosen = conditions(selection)
    in_states = [func.sum(case((_c.state == state.value, 1), else_=0)).label(state.value) for state in State]
    largest = (
        select(
            _c.group_id,
            func.count().label("dead_letters"),
            func.min(_c.first_failed_at).label("first_failed_at"),
            func.max(_c.last_failed_at).label("newest"),
            *in_states,
        )
        .where(*chosen)
        .group_by(_c.group_id)
        .order_by(func.count().desc(), func.max(_c.last_failed_at).desc(), _c.group_id)
        .limit(limit)
    )
    newest = select(_c.id, _c.reason, _c.table_name, _c.detail).order_by(_c.last_failed_at.desc(), _c.n.desc()).limit(1)
    if not (selection.ids or selection.keys or selection.sequence_from or selection.sequence_until):
        # SQLite would rather look up a row for each dead letter of a table or a state
        hint = f"INDEXED BY {BY_GROUP.name}"
        largest, newest = largest.with_hint(letters, hint, "sqlite"), newest.with_hint(letters, hint, "sqlite")
    found = []
    for row in connection.execute(largest).all():
        sample = connection.execute(newest.where(_c.group_id == row.group_id, *chosen)).one()
        counts = {state: int(row._mapping[state.value]) for state in State}
        found.append(
            DeadLetterGroup(
                id=GroupId(row.group_id),
                reason=reason_of(sample.reason),
                table=sample.table_name,
                detail=normalised(sample.detail),
                dead_letters=row.dead_letters,
                by_state={state: number for state, number in counts.items() if number},
                first_failed_at=Nanoseconds(row.first_failed_at),
                last_failed_at=Nanoseconds(row.newest),
                sample=DeadLetterId(sample.id),
            )
        )
    return found


def failures(connection: Connection, selection: Selection, spans: TimeSpans) -> Mapping[GroupId, Sequence[int]]:
    """See `DeadLetterStore.failures`."""
    span = ((_c.last_failed_at - spans.since) // spans.length).label("span")
    within = (_c.last_failed_at >= spans.since, _c.last_failed_at < spans.until)
    query = select(_c.group_id, span, func.count().label("dead_letters")).where(*conditions(selection), *within)
    found: dict[GroupId, list[int]] = {}
    for row in connection.execute(query.group_by(_c.group_id, span)).all():
        found.setdefault(GroupId(row.group_id), [0] * spans.count)[int(row.span)] = row.dead_letters
    return found


def stats(connection: Connection) -> DeadLetterStats:
    """See `DeadLetterStore.stats`."""
    by_state: dict[State, int] = {}
    by_reason: dict[Reason, int] = {}
    by_table: dict[str, int] = {}
    oldest: dict[Reason, Nanoseconds] = {}
    payload_bytes = 0
    rows = connection.execute(
        select(
            _c.state,
            _c.reason,
            _c.table_name,
            func.count().label("dead_letters"),
            func.min(_c.first_failed_at).label("oldest"),
            func.sum(_c.size).label("bytes"),
        ).group_by(_c.state, _c.reason, _c.table_name)
    )
    for row in rows:
        state = State(row.state)
        by_state[state] = by_state.get(state, 0) + row.dead_letters
        payload_bytes += int(row.bytes)
        if state is State.OPEN:
            reason = reason_of(row.reason)
            by_reason[reason] = by_reason.get(reason, 0) + row.dead_letters
            by_table[row.table_name] = by_table.get(row.table_name, 0) + row.dead_letters
            oldest[reason] = Nanoseconds(min(oldest.get(reason, row.oldest), row.oldest))
    return DeadLetterStats(
        by_state=by_state, by_reason=by_reason, by_table=by_table, oldest_by_reason=oldest, payload_bytes=payload_bytes
    )


def trail_of(connection: Connection, letter: DeadLetterId) -> Sequence[TrailEntry]:
    """See `DeadLetterStore.trail`."""
    rows = select(trail).join(letters, letters.c.n == trail.c.n).where(_c.id == letter).order_by(trail.c.k)
    return [
        TrailEntry(
            letter=letter,
            at=Nanoseconds(row.at),
            who=row.who,
            action=Action(row.action),
            result=row.result,
            more=json.loads(row.more),
        )
        for row in connection.execute(rows)
    ]
