"""Rows that were there before the stream: the ranges of keys that they are read in, and the changes they make.

A snapshot reads a table as it was at one time, T; its rows carry the change sequence number ``T / 0 / 0 / 0``, so any
change that came later wins, whichever arrives first. A range is read in key order, and what it remembers is the last
key of which Pub/Sub has confirmed everything before.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, NewType

import msgspec

from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import PoisonRecordError
from shared.contracts.row_id import bucket_of, canonical_key
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds

KeyText = NewType("KeyText", str)
"""The values of a key, in key order, as a JSON array of wire values: a place in a table."""

OLDEST_READ: Final = timedelta(hours=23)
"""How far back a snapshot may read, an hour less than a snapshot row may be old when it is published: 24 hours.

BigQuery remembers for two days what was deleted. A snapshot row that is older than that could bring a row back.
"""
MOD_TYPE: Final = "SNAPSHOT"

_json: Final = msgspec.json.Encoder().encode
_PLACE: Final = "{}"


class RangeState(StrEnum):
    """How far a range has come. Who reads it is told by its lease."""

    REQUESTED = "REQUESTED"
    """A whole table, or a range that was asked for: not cut into smaller ones yet."""
    CUT = "CUT"
    DONE = "DONE"
    CANCELLED = "CANCELLED"


UNFINISHED: Final = frozenset({RangeState.REQUESTED, RangeState.CUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRange:
    """Keys of a table that one reader reads at a time: behind ``after`` up to ``until``, or from end to end."""

    table: str
    number: int
    run: int
    """Which snapshot of the table it belongs to: a later one has a higher number."""
    after: KeyText | None = None
    until: KeyText | None = None
    last: KeyText | None = None
    """Everything up to here is confirmed by Pub/Sub."""
    read_at: Nanoseconds
    """The time at which its rows are read."""
    first_read_at: Nanoseconds
    """The time at which its first rows were read: no row of it is older."""
    rows: int = 0
    state: RangeState = RangeState.REQUESTED
    owner: str | None = None
    lease_until: Nanoseconds | None = None
    fencing: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """Return what names the range."""
        return self.table, self.number

    @property
    def behind(self) -> KeyText | None:
        """Return the key behind which there is more to read."""
        return self.after if self.last is None else self.last


@dataclass(frozen=True, slots=True)
class SnapshotSurvey:
    """All ranges of all snapshots, and Spanner's time."""

    now: Nanoseconds
    ranges: tuple[SnapshotRange, ...]


def claimable_ranges(
    ranges: Iterable[SnapshotRange], *, holding: Collection[tuple[str, int]], now: Nanoseconds
) -> list[SnapshotRange]:
    """Return the ranges that are left to read and that nobody reads, those waiting longest first."""
    free = [
        one
        for one in ranges
        if one.state in UNFINISHED and one.place not in holding and (one.lease_until is None or one.lease_until < now)
    ]
    return sorted(free, key=lambda one: (one.first_read_at, one.table, one.number))


def too_old(read_at: Nanoseconds, now: Nanoseconds) -> bool:
    """Tell whether what is left of a range has to be read at a new time."""
    return now - read_at > OLDEST_READ // timedelta(microseconds=1) * 1_000


@dataclass(slots=True)
class TakenRows:
    """Rows that were handed on together, and the key of the last of them."""

    last: KeyText
    rows: int
    size: int
    confirmed: bool = False


@dataclass(slots=True)
class ConfirmedKeys:
    """The rows of one range in key order, and how far all of them are confirmed."""

    last: KeyText | None
    rows: int = 0
    outstanding_bytes: int = 0
    _line: deque[TakenRows] = field(default_factory=deque)

    def add(self, last: KeyText, rows: int, size: int) -> TakenRows:
        """Take the next rows, the last of which has this key; return what is to be confirmed."""
        taken = TakenRows(last, rows, size)
        self._line.append(taken)
        self.outstanding_bytes += size
        return taken

    def confirm(self, taken: TakenRows) -> None:
        """Say that rows are confirmed."""
        taken.confirmed = True
        self.outstanding_bytes -= taken.size
        while self._line and self._line[0].confirmed:
            first = self._line.popleft()
            self.last = first.last
            self.rows += first.rows

    @property
    def all_confirmed(self) -> bool:
        """Tell whether nothing waits for Pub/Sub."""
        return not self._line


class RowMaker:
    """Makes change records of rows that were read at one time under one header."""

    def __init__(self, header: Header, read_at: Nanoseconds, buckets: int) -> None:
        """Take a header of origin ``snapshot``; the rows' values stand in the order of its columns."""
        self.header = header
        self._buckets = buckets
        self._names = [column.name for column in header.columns]
        places = {name: place for place, name in enumerate(self._names)}
        self._key = [(name, places[name]) for name in header.primary_key]
        self._rest = [(name, place) for name, place in places.items() if name not in header.primary_key]
        self._types = header.key_types()
        self._sequence = str(four_sections(microseconds(read_at)))
        self._at = format_timestamp(read_at)

    def changes(self, rows: Sequence[Sequence[Any]]) -> list[tuple[str, Change]]:
        """Return the rows as upserts, each with its ordering key."""
        return [self._change(row) for row in rows]

    def key_text(self, row: Sequence[Any]) -> KeyText:
        """Return the place of a row in its table."""
        return KeyText(_json([row[place] for _name, place in self._key]).decode())

    def _change(self, row: Sequence[Any]) -> tuple[str, Change]:
        key = {name: row[place] for name, place in self._key}
        change = Change(
            op="UPSERT",
            mod_type=MOD_TYPE,
            sequence=self._sequence,
            commit_timestamp=self._at,
            place=_PLACE,
            key=_json(key).decode(),
            row=_json({name: row[place] for name, place in self._rest}).decode(),
        )
        return self._ordering_key(key, change.key), change

    def _ordering_key(self, key: Mapping[str, object], text: str) -> str:
        table = self.header.table
        try:
            canonical = canonical_key(table, self._types, key)
        except PoisonRecordError:  # the consumer sets it aside; here it only needs some bucket
            canonical = text.encode()
        return snapshot_ordering_key(table, bucket_of(canonical, self._buckets))


def snapshot_ordering_key(table: str, bucket: int) -> str:
    """Return the ordering key of a bucket's snapshot rows: not the stream's, whose changes would wait behind them."""
    return f"{table}/snapshot-{bucket}"
