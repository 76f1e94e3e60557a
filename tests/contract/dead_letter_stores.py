"""Dead letters for the tests of their store, and the stores they are kept in: in memory, in a file, in PostgreSQL."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import delete, text

from services.dead_letter.adapters.store.database import DeadLetterDatabase, open_database
from services.dead_letter.adapters.store.schema import dead_letters, pipeline
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import Arrival, DeadLetterId, ReplayId, State, StoredDeadLetter
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterStore
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.fakes.dead_letter_store import FakeDeadLetterStore

FAILED: Final = parse_timestamp("2026-11-21T12:00:00.123456789Z")
NOW: Final = parse_timestamp("2026-11-21T12:00:05Z")
SECOND: Final = 1_000_000_000
LEASE: Final = timedelta(minutes=1)


def later(seconds: float) -> Nanoseconds:
    """Return an instant after `NOW`."""
    return Nanoseconds(NOW + int(seconds * SECOND))


def a_dead_letter(row: int = 1, number: int = 1, *, seconds: float = 0, **fields: Any) -> DeadLetter:
    """Return the dead letter of the change with this number of this row; it failed so many seconds after `FAILED`."""
    given: dict[str, Any] = {
        "data": json.dumps({"row": row, "number": number}).encode(),
        "attributes": {"table": "planes", "source": "//spanner"},
        "ordering_key": "planes/3",
        "reason": Reason.VALUE_DOES_NOT_FIT,
        "detail": "column seats of type INT64: not a whole number",
        "failed_at": Nanoseconds(FAILED + int(seconds * SECOND)),
        "failed_in": "cdc_consumer",
        "table": "planes",
        "key": f"[{row}]",
        "sequence": str(four_sections(number)),
        "commit_timestamp": "2026-11-21T11:59:59.5Z",
    }
    return DeadLetter(**given | fields)


def of_a_message(data: bytes = b"{garbage", *, seconds: float = 0, **fields: Any) -> DeadLetter:
    """Return the dead letter of a whole message, that nothing is known of but its bytes."""
    plain: dict[str, Any] = {"table": "", "key": "", "sequence": "", "commit_timestamp": ""}
    plain |= {"reason": Reason.UNDECODABLE, "detail": "not JSON (8 bytes)"}
    return a_dead_letter(seconds=seconds, data=data, **plain | fields)


def an_arrival(dead_letter: DeadLetter | None = None, message_id: str = "m1") -> Arrival:
    """Return a dead letter as a message brought it."""
    return Arrival(dead_letter=dead_letter or a_dead_letter(), message_id=message_id)


def failing_again(dead_letter: DeadLetter, *, seconds: float, **fields: Any) -> DeadLetter:
    """Return the same dead letter, failed again this many seconds after `FAILED`."""
    return replace(dead_letter, failed_at=Nanoseconds(FAILED + int(seconds * SECOND)), **fields)


def identity(dead_letter: DeadLetter) -> DeadLetterId:
    """Return the id that a store knows it by."""
    return DeadLetterId(dead_letter.identity)


def the(dead_letter: DeadLetterId, store: DeadLetterStore) -> StoredDeadLetter:
    """Return a dead letter that is there."""
    stored = store.get(dead_letter)
    assert stored is not None
    return stored


def kept(store: DeadLetterStore, dead_letter: DeadLetter, message_id: str = "m1") -> StoredDeadLetter:
    """Keep a dead letter that arrives at `NOW`; return it as it is there."""
    store.keep([an_arrival(dead_letter, message_id)], NOW)
    return the(identity(dead_letter), store)


def put(store: DeadLetterStore, dead_letter: DeadLetter, state: State) -> None:
    """Bring a dead letter that is kept, and open, into a state."""
    one = identity(dead_letter)
    if state is State.REPLAYED:
        assert store.claim([one], ReplayId("r"), NOW, LEASE) == [one]
        assert store.sent([one], ReplayId("r"), "ann", NOW) == [one]
    elif state is not State.OPEN:
        assert store.set_state([one], state, only_from=frozenset(State), who="ann", now=NOW, why="") == [one]


class BothStores:
    """The store in a file and the fake, both empty: what happens, happens to both."""

    def __init__(self, database: DeadLetterDatabase) -> None:
        with database.writing() as connection:
            connection.execute(delete(dead_letters))
        self.all: tuple[DeadLetterStore, DeadLetterStore] = (SqlDeadLetterStore(database), FakeDeadLetterStore())

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of both; they say the same, if only the same refusal."""
        answers = []
        for store in self.all:
            try:
                answers.append(getattr(store, method)(*arguments, **named))
            except ValueError as error:
                answers.append(str(error))
        assert answers[0] == answers[1], (method, arguments, named)
        return answers[0]

    def in_replay_order(self, selection: Selection) -> list[StoredDeadLetter]:
        """Return dead letters, which are the same in both."""
        in_sql, in_fake = (list(store.in_replay_order(selection)) for store in self.all)
        assert in_sql == in_fake
        return in_sql


@contextmanager
def sqlite_store(path: Path) -> Iterator[SqlDeadLetterStore]:
    """Give the store in a file."""
    database = open_database(f"sqlite:///{path}")
    try:
        yield SqlDeadLetterStore(database)
    finally:
        database.close()


@contextmanager
def postgresql_store(address: str) -> Iterator[SqlDeadLetterStore]:
    """Give the store in a database of PostgreSQL, emptied."""
    database = open_database(address)
    try:
        with database.writing() as connection:
            connection.execute(text(f"TRUNCATE {dead_letters.name}, {pipeline.name} RESTART IDENTITY CASCADE"))
        yield SqlDeadLetterStore(database)
    finally:
        database.close()


def an_edit(original: DeadLetter) -> DeadLetter:
    """Return a dead letter with the next revision of its sequence."""
    head, _, revision = original.sequence.rpartition("/")
    fields = {name: getattr(original, name) for name in ("attributes", "ordering_key", "reason", "detail", "failed_in")}
    return DeadLetter(
        data=original.data + b" ",
        sequence=f"{head}/{int(revision, 16) + 1:016X}",
        failed_at=original.failed_at,
        table=original.table,
        key=original.key,
        commit_timestamp=original.commit_timestamp,
        **fields,
    )


DEAD_LETTERS = [a_dead_letter(row) for row in range(400)]
