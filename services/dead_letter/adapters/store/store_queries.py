"""What is asked of the dead letters that are kept: one, pages, an order to replay in, groups, numbers, trails."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import and_, case, func, select, text, tuple_

from services.dead_letter.adapters.store.database import DeadLetterDatabase
from services.dead_letter.adapters.store.schema import BY_GROUP, DECIDED, REPLAY_ORDER, dead_letters, payloads, trail
from services.dead_letter.adapters.store.store_rows import (
    AT_A_TIME,
    LINE,
    chunks,
    conditions,
    line_of,
    reason_of,
    stored_of,
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
from services.dead_letter.ports import TRAIL_SHOWN, DeadLetterPage
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.portions import cut

_FEWEST_CHARACTERS: Final = 8
_BYTES_AT_A_TIME: Final = 8_000_000
"""How many bytes of dead letters a walk through them holds, or one dead letter where that is larger."""
_ORDERED_AT_A_TIME: Final = 10_000
"""How many places a walk through dead letters is ahead of itself: two hundred bytes each."""
_LAST: Final = "\U0010ffff"
_PLACE: Final = re.compile(r"(-?[0-9]{1,19})\.([0-9]{1,19})", re.ASCII)
_c = dead_letters.c
_ORDER_TYPES: Final = [column.type for column in REPLAY_ORDER]
WHOLE: Final = select(*LINE, payloads.c.attributes, payloads.c.data).join(payloads, payloads.c.n == _c.n)


class DeadLetterQueries:
    """What a `DeadLetterStore` answers of the dead letters in a database."""

    def __init__(self, database: DeadLetterDatabase) -> None:
        self._database = database

    def get(self, dead_letter: DeadLetterId) -> StoredDeadLetter | None:
        """Return a dead letter by its id, or by how only its id begins."""
        with self._database.reading() as connection:
            row = connection.execute(WHOLE.where(_c.id == dead_letter)).one_or_none()
            if row is None and len(dead_letter) >= _FEWEST_CHARACTERS:
                begin_so = select(_c.id).where(_c.id >= dead_letter, _c.id < dead_letter + _LAST).limit(2)
                found = connection.execute(begin_so).scalars().all()
                if len(found) == 1:
                    row = connection.execute(WHOLE.where(_c.id == found[0])).one_or_none()
        return None if row is None else stored_of(row)

    def find(self, selection: Selection, *, limit: int, after: str | None = None) -> DeadLetterPage:
        """Return a page of dead letters, without their bytes."""
        if limit < 1:
            raise ValueError("a page has one dead letter or more")
        query = select(*LINE).where(*conditions(selection))
        if after is not None:
            failed_at, n = _place(after)
            query = query.where(tuple_(_c.last_failed_at, _c.n) < tuple_(failed_at, n))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(_c.last_failed_at.desc(), _c.n.desc()).limit(limit + 1)).all()
        page = rows[:limit]
        more = f"{page[-1].last_failed_at}.{page[-1].n}" if len(rows) > limit else None
        return DeadLetterPage([line_of(row) for row in page], more)

    def in_replay_order(self, selection: Selection) -> Iterator[StoredDeadLetter]:
        """Return dead letters by table, key, sequence; a transaction for each few of them."""
        chosen = conditions(selection)
        places = select(*REPLAY_ORDER, _c.size).where(*chosen).order_by(*REPLAY_ORDER).limit(_ORDERED_AT_A_TIME)
        last: Sequence[Any] | None = None
        while True:
            with self._database.reading() as connection:
                behind = places
                if last is not None:  # by the columns' types: PostgreSQL keeps some names in another form
                    behind = places.where(tuple_(*REPLAY_ORDER) > tuple_(*last, types=_ORDER_TYPES))
                rows = connection.execute(behind).all()
            for some in cut(rows, lambda row: int(row.size), _BYTES_AT_A_TIME, AT_A_TIME):
                numbers = [row.n for row in some]
                with self._database.reading() as connection:
                    found = connection.execute(WHOLE.where(and_(_c.n.in_(numbers), *chosen))).all()
                kept = {row.n: row for row in found}
                del found
                for n in numbers:
                    row = kept.pop(n, None)  # let go of as it is handed on
                    if row is not None:
                        yield stored_of(row)
            if len(rows) < _ORDERED_AT_A_TIME:
                return
            last = rows[-1][: len(REPLAY_ORDER)]

    def count(self, selection: Selection) -> int:
        """Return how many dead letters a selection holds."""
        query = select(func.count()).select_from(dead_letters).where(*conditions(selection))
        with self._database.reading() as connection:
            return connection.execute(query).scalar_one()

    def groups(self, selection: Selection, *, limit: int) -> Sequence[DeadLetterGroup]:
        """Return groups, the largest first."""
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
        newest = select(_c.id, _c.reason, _c.table_name, _c.detail)
        newest = newest.order_by(_c.last_failed_at.desc(), _c.n.desc()).limit(1)
        if not (selection.ids or selection.keys or selection.sequence_from or selection.sequence_until):
            # SQLite would rather look up a row for each dead letter of a table or a state
            hint = f"INDEXED BY {BY_GROUP.name}"
            largest = largest.with_hint(dead_letters, hint, "sqlite")
            newest = newest.with_hint(dead_letters, hint, "sqlite")
        found = []
        with self._database.reading() as connection:
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

    def failures(self, selection: Selection, spans: TimeSpans) -> Mapping[GroupId, Sequence[int]]:
        """Return of each group when its dead letters failed last."""
        span = ((_c.last_failed_at - spans.since) // spans.length).label("span")
        within = (_c.last_failed_at >= spans.since, _c.last_failed_at < spans.until)
        query = select(_c.group_id, span, func.count().label("dead_letters")).where(*conditions(selection), *within)
        found: dict[GroupId, list[int]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(query.group_by(_c.group_id, span)).all():
                found.setdefault(GroupId(row.group_id), [0] * spans.count)[int(row.span)] = row.dead_letters
        return found

    def brought_back(self, ids: Collection[DeadLetterId], since: Nanoseconds) -> Collection[DeadLetterId]:
        """Return those whose replay has made dead letters."""
        found: set[DeadLetterId] = set()
        with self._database.reading() as connection:
            for some in chunks(sorted(ids)):
                rows = select(_c.replay_of).where(_c.replay_of.in_(some), _c.last_failed_at >= since).distinct()
                found |= {DeadLetterId(one) for one in connection.execute(rows).scalars()}
        return found

    def stats(self) -> DeadLetterStats:
        """Return what there is, in numbers."""
        by_state, by_reason, by_table = Counter[State](), Counter[Reason](), Counter[str]()
        oldest: dict[Reason, Nanoseconds] = {}
        payload_bytes = 0
        query = select(
            _c.state,
            _c.reason,
            _c.table_name,
            func.count().label("dead_letters"),
            func.min(_c.first_failed_at).label("oldest"),
            func.sum(_c.size).label("bytes"),
        ).group_by(_c.state, _c.reason, _c.table_name)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            state = State(row.state)
            by_state[state] += row.dead_letters
            payload_bytes += int(row.bytes)
            if state is State.OPEN:
                reason = reason_of(row.reason)
                by_reason[reason] += row.dead_letters
                by_table[row.table_name] += row.dead_letters
                oldest[reason] = Nanoseconds(min(oldest.get(reason, row.oldest), row.oldest))
        return DeadLetterStats(
            by_state=by_state,
            by_reason=by_reason,
            by_table=by_table,
            oldest_by_reason=oldest,
            payload_bytes=payload_bytes,
        )

    def trail(self, dead_letter: DeadLetterId) -> Sequence[TrailEntry]:
        """Return what was done to a dead letter."""
        of_it = (
            select(trail).join(dead_letters, _c.n == trail.c.n).where(_c.id == dead_letter).order_by(trail.c.k.desc())
        )
        kinds = text(DECIDED), text(f"NOT ({DECIDED})")  # as the index has it
        with self._database.reading() as connection:
            newest = [connection.execute(of_it.where(kind).limit(TRAIL_SHOWN)).all() for kind in kinds]
            return [
                TrailEntry(
                    dead_letter=dead_letter,
                    at=Nanoseconds(row.at),
                    who=row.who,
                    action=Action(row.action),
                    result=row.result,
                    more=json.loads(row.more),
                )
                for row in sorted(chain(*newest), key=lambda row: int(row.k))
            ]


def _place(after: str) -> tuple[int, int]:
    match = _PLACE.fullmatch(after)
    if match is None or not all(-(1 << 63) <= int(part) < 1 << 63 for part in match.groups()):
        raise ValueError(f"not what a page ended with: {after!r}")
    return int(match[1]), int(match[2])
