"""The dead letter store in a database: each method one transaction. The statements are in the modules beside it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

from services.dead_letter.adapters.store import store_arrivals, store_changes, store_pipeline, store_queries
from services.dead_letter.adapters.store.database import DeadLetterDatabase
from services.dead_letter.adapters.store.replay_locks import ReplayLocks
from services.dead_letter.core.dead_letters import (
    Action,
    Arrival,
    DeadLetterGroup,
    DeadLetterId,
    DeadLetterStats,
    GroupId,
    ReplayId,
    State,
    StoredDeadLetter,
    TimeSpans,
    TrailEntry,
)
from services.dead_letter.core.pipeline import Pipeline, joined
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterPage, Kept
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.timestamps import Nanoseconds


class SqlDeadLetterStore:
    """A `LetterStore` on SQLite or PostgreSQL."""

    def __init__(self, database: DeadLetterDatabase) -> None:
        self._database = database
        self._locks = ReplayLocks(database.file)

    def pipeline(self) -> Pipeline:
        """Return of which pipeline the dead letters are."""
        with self._database.reading() as connection:
            return store_pipeline.known(connection)

    def join(self, mine: Pipeline) -> Pipeline:
        """Remember of which pipeline the dead letters are, where that is not known."""
        known = self.pipeline()
        if joined(known, mine) == known:
            return known
        with self._database.writing() as connection:
            return store_pipeline.join(connection, mine)

    def change_pipeline(self, new: Pipeline) -> Pipeline:
        """Remember another subscription or topic from now on."""
        with self._database.writing() as connection:
            return store_pipeline.change(connection, new)

    def keep(self, arrivals: Sequence[Arrival], now: Nanoseconds) -> Kept:
        """Remember dead letters; return when they are durable."""
        with self._database.writing() as connection:
            return store_arrivals.keep(connection, arrivals, now)

    def get(self, letter: DeadLetterId) -> StoredDeadLetter | None:
        """Return a dead letter by its id, or by how only its id begins."""
        with self._database.reading() as connection:
            return store_queries.get(connection, letter)

    def find(self, selection: Selection, *, limit: int, after: str | None = None) -> DeadLetterPage:
        """Return a page of dead letters, without their bytes."""
        with self._database.reading() as connection:
            return store_queries.find(connection, selection, limit, after)

    def in_replay_order(self, selection: Selection) -> Iterator[StoredDeadLetter]:
        """Return dead letters by table, key, sequence; a transaction for each few of them."""
        return store_queries.in_replay_order(self._database, selection)

    def count(self, selection: Selection) -> int:
        """Return how many dead letters a selection holds."""
        with self._database.reading() as connection:
            return store_queries.count(connection, selection)

    def groups(self, selection: Selection, *, limit: int) -> Sequence[DeadLetterGroup]:
        """Return groups, the largest first."""
        with self._database.reading() as connection:
            return store_queries.groups(connection, selection, limit)

    def failures(self, selection: Selection, spans: TimeSpans) -> Mapping[GroupId, Sequence[int]]:
        """Return of each group when its dead letters failed last."""
        with self._database.reading() as connection:
            return store_queries.failures(connection, selection, spans)

    def stats(self) -> DeadLetterStats:
        """Return what there is, in numbers."""
        with self._database.reading() as connection:
            return store_queries.stats(connection)

    def trail(self, letter: DeadLetterId) -> Sequence[TrailEntry]:
        """Return what was done to a dead letter."""
        with self._database.reading() as connection:
            return store_queries.trail_of(connection, letter)

    def note(
        self, letters: Sequence[DeadLetterId], action: Action, who: str, now: Nanoseconds, result: str = ""
    ) -> None:
        """Write a line into the trail of dead letters."""
        with self._database.writing() as connection:
            store_changes.note(connection, letters, action, who, now, result)

    def set_state(
        self,
        letters: Sequence[DeadLetterId],
        state: State,
        *,
        only_from: frozenset[State],
        who: str,
        now: Nanoseconds,
        why: str,
    ) -> Sequence[DeadLetterId]:
        """Discard dead letters, say they are superseded, or open them."""
        if state not in store_changes.ACTIONS:
            raise ValueError(f"only `sent` makes a letter {state.value}")
        with self._database.writing() as connection:
            return store_changes.set_state(connection, letters, state, only_from, who, now, why)

    def claim(
        self, letters: Sequence[DeadLetterId], replay: ReplayId, now: Nanoseconds, lease: timedelta
    ) -> Sequence[DeadLetterId]:
        """Take dead letters for a replay."""
        with self._database.writing() as connection:
            return store_changes.claim(connection, letters, replay, now, lease)

    def sent(
        self, letters: Sequence[DeadLetterId], replay: ReplayId, who: str, now: Nanoseconds
    ) -> Sequence[DeadLetterId]:
        """Say that dead letters of a claim are published."""
        with self._database.writing() as connection:
            return store_changes.sent(connection, letters, replay, who, now)

    def release(self, replay: ReplayId) -> None:
        """Let go of everything that a replay holds."""
        with self._database.writing() as connection:
            store_changes.release(connection, replay)

    def living(self, replay: ReplayId) -> AbstractContextManager[None]:
        """Let everyone see that a replay lives while a block runs."""
        return self._locks.held(replay)

    def release_dead(self) -> Sequence[ReplayId]:
        """Let go of what dead replays hold."""
        with self._database.reading() as connection:
            claiming = store_changes.claiming(connection)
        dead = self._locks.dead(claiming)
        for one in dead:
            self.release(one)
            self._locks.bury(one)
        return dead

    def add_edit(
        self, original: DeadLetterId, copy: DeadLetter, *, diff: str, why: str, who: str, now: Nanoseconds
    ) -> StoredDeadLetter:
        """Keep an edited copy."""
        with self._database.writing() as connection:
            made = store_changes.add_edit(connection, original, copy, diff, why, who, now)
            stored = store_queries.get(connection, made)
        assert stored is not None
        return stored

    def forget(self, *, before: Nanoseconds, limit: int) -> int:
        """Delete some dead letters that are no longer needed."""
        with self._database.writing() as connection:
            return store_changes.forget(connection, before, limit)
