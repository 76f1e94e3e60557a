"""A mirror as BigQuery keeps it, which forgets what was deleted, behind a consumer that refuses what is too old for it.

A delete is forgotten two days after its commit, which is earlier than two days after it was applied.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import ChangeSequenceNumber, parse_sequence
from shared.contracts.safe_age import SNAPSHOT_END_AGE, oldest_safe
from shared.contracts.timestamps import Nanoseconds, microseconds, parse_timestamp

DELETES_ARE_REMEMBERED = timedelta(days=2)
GHOST = "a row of before, of which no change tells"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message, when it was published, and when the consumer has it."""

    at: Nanoseconds
    published_at: Nanoseconds
    header: Header
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class _Applied:
    """What is newest of a row; a value of None is a delete."""

    sequence: ChangeSequenceNumber
    committed_at: Nanoseconds
    value: str | None


class Mirror:
    """The mirrors of tables with a key ``Id`` and one column ``Name``."""

    def __init__(self, tables: Collection[str] = (), ghosts: Iterable[int] = ()) -> None:
        ghost = _Applied(ChangeSequenceNumber((0,)), Nanoseconds(0), GHOST)
        self._rows = {(table, key): ghost for key in ghosts for table in tables}
        self.complete_since: dict[str, ChangeSequenceNumber] = {}
        """From when on a table is complete, as was said in time to be believed."""
        self.refused: list[Arrival] = []
        """What became a dead letter."""

    def take(self, arrivals: Iterable[Arrival]) -> "Mirror":
        """Apply messages as they arrive."""
        for arrival in sorted(arrivals, key=lambda one: one.at):
            self._hear(arrival)
            for change in arrival.changes:
                if _is_too_old(arrival, change):
                    self.refused.append(arrival)
                else:
                    self._apply(arrival.header.table, change, arrival.at)
        return self

    def rows(self, table: str) -> dict[int, str]:
        """Return a table's rows, without those that are older than what it is complete since."""
        since = self.complete_since.get(table, ChangeSequenceNumber((0,)))
        return {
            key: one.value
            for (name, key), one in sorted(self._rows.items())
            if name == table and one.value is not None and one.sequence >= since
        }

    def _hear(self, arrival: Arrival) -> None:
        since, table = arrival.header.complete_since, arrival.header.table
        if isinstance(since, str) and not _is_longer(SNAPSHOT_END_AGE, arrival.published_at, arrival.at):
            known = self.complete_since.get(table, ChangeSequenceNumber((0,)))
            self.complete_since[table] = max(known, parse_sequence(since))

    def _apply(self, table: str, change: Change, now: Nanoseconds) -> None:
        place = table, int(msgspec.json.decode(change.key)["Id"])
        value = None if change.row is None else msgspec.json.decode(change.row)["Name"]
        new = _Applied(parse_sequence(change.sequence), parse_timestamp(change.commit_timestamp), value)
        old = self._rows.get(place)
        if old is not None and old.value is None and _is_longer(DELETES_ARE_REMEMBERED, old.committed_at, now):
            old = None
        if old is None or old.sequence < new.sequence:
            self._rows[place] = new


def _is_too_old(arrival: Arrival, change: Change) -> bool:
    if arrival.header.origin == "stream" or change.op == "DELETE":
        return False
    return microseconds(parse_timestamp(change.commit_timestamp)) < oldest_safe(arrival.at)


def _is_longer(time: timedelta, since: Nanoseconds, now: Nanoseconds) -> bool:
    return now - since > time // timedelta(microseconds=1) * 1_000
