"""Rows that were there before the stream: the ranges of keys that they are read in, and the changes they make.

A snapshot reads a table as it was at one time, T; its rows carry the change sequence number ``T / 0 / 0 / 0``, so any
change that came later wins, whichever arrives first. A range is read in key order, and what it remembers is the last
key of which Pub/Sub has confirmed everything before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, NewType

import msgspec

from services.spanner_reader.core.schema.shapes import SpannerResyncKind, SpannerResyncRequest
from shared.contracts.change_batch import Change, Header, Op
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import PoisonRecordError
from shared.contracts.row_id import bucket_of, canonical_key
from shared.contracts.safe_age import SAFE_AGE, SNAPSHOT_END_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds, nanoseconds

KeyText = NewType("KeyText", str)
"""The values of a key, in key order, as a JSON array of wire values: a place in a table."""

OLDEST_READ: Final = timedelta(hours=23)
"""How far back a snapshot may read, an hour less than a snapshot row may be old when it is published: 24 hours.

BigQuery remembers for two days what was deleted. A snapshot row that is older than that could bring a row back.
"""
_TOLD_AGAIN: Final = SAFE_AGE - SNAPSHOT_END_AGE - timedelta(hours=2)
"""How long ago a snapshot may have begun whose end is said again: a day, and two hours are margin."""
_JUST_NOW: Final = timedelta(hours=1)
"""How long ago a snapshot was finished that took longer: half of the margin that `SNAPSHOT_END_AGE` has."""
MOD_TYPE: Final = "SNAPSHOT"

_json: Final = msgspec.json.Encoder().encode
_values: Final = msgspec.json.Decoder(list[Any]).decode
_PLACE: Final = "{}"


class RangeState(StrEnum):
    """How far a range has come. Its lease says who reads it."""

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
    finished_at: Nanoseconds | None = None
    """When it was saved that all of it is done."""

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


def claimable_ranges(ranges: Iterable[SnapshotRange], *, now: Nanoseconds) -> list[SnapshotRange]:
    """Return the ranges that are left to read and that no reader reads, those waiting longest first."""
    free = [one for one in ranges if one.state in UNFINISHED and (one.lease_until is None or one.lease_until < now)]
    return sorted(free, key=lambda one: (one.first_read_at, one.table, one.number))


def is_read(survey: SnapshotSurvey) -> bool:
    """Return whether a reader has the lease of anything that is left to read."""
    return any(one.state in UNFINISHED and (one.lease_until or 0) >= survey.now for one in survey.ranges)


@dataclass(frozen=True, slots=True)
class CompleteSnapshot:
    """A table of which every row is published: as it was at one time, or as it was later."""

    table: str
    run: int
    since: Nanoseconds
    """Where its first rows were read: what the table holds now is published with this time or a later one."""
    finished_at: Nanoseconds
    """When the last of its ranges was done."""

    def may_be_announced(self, now: Nanoseconds) -> bool:
        """Return whether its end may be published now, for the first time or again.

        A consumer believes it for `SNAPSHOT_END_AGE`, and in that time none of its rows, each of ``since`` or
        later, may become older than `SAFE_AGE`, for then it may have been refused. What took more than a day is
        announced when it is finished, and not again.
        """
        return _is_within(_TOLD_AGAIN, self.since, now) or _is_within(_JUST_NOW, self.finished_at, now)


def lost_until(table: str, since: Nanoseconds, requests: Iterable[SpannerResyncRequest]) -> Nanoseconds | None:
    """Return until when the topic lost messages, if rows of a table's snapshot that began then may be among them.

    What it has of them is confirmed, and is not read again: so it may come to its end, and be complete nowhere.
    """
    findings = (one for request in requests if request.table == table for one in request.findings)
    losses = [one.before for one in findings if one.kind is SpannerResyncKind.TABLE_LOST]
    return max((before for before in losses if since <= before), default=None)


def complete_snapshots(ranges: Iterable[SnapshotRange]) -> Sequence[CompleteSnapshot]:
    """Return the snapshots that are at their end: of tables whose ranges are all read and leave out no key."""
    return [
        CompleteSnapshot(
            table,
            run,
            since=min(one.first_read_at for one in parts),
            finished_at=max(one.first_read_at if one.finished_at is None else one.finished_at for one in parts),
        )
        for (table, run), parts in by_run(ranges).items()
        if _all_read(parts)
    ]


def by_run(ranges: Iterable[SnapshotRange]) -> Mapping[tuple[str, int], Sequence[SnapshotRange]]:
    """Return the ranges of each snapshot: of a whole table, or of some keys of one, which are read beside it."""
    runs: dict[tuple[str, int], list[SnapshotRange]] = {}
    for one in sorted(ranges, key=lambda one: (one.table, one.run, one.number)):
        runs.setdefault((one.table, one.run), []).append(one)
    return runs


def is_kept_at_a_start(earlier: Sequence[SnapshotRange], at: Nanoseconds, now: Nanoseconds) -> bool:
    """Return whether the snapshot of a table that is there is enough for a stream that begins ``at`` a time.

    It is if it reads the table at that time or later. It also is if a reader has its lease: a stream has begun then.
    """
    whole = whole_tables(earlier)
    if whole and min(one.first_read_at for one in whole) >= at:
        return True
    if len(earlier) > 1 or not whole or whole[0].state is not RangeState.REQUESTED:
        return False
    lease_until = whole[0].lease_until
    return lease_until is not None and lease_until >= now


def is_untouched(earlier: Sequence[SnapshotRange]) -> bool:
    """Return whether a snapshot is asked for, and no reader has claimed any of it."""
    return len(earlier) == 1 and earlier[0].state is RangeState.REQUESTED and earlier[0].owner is None


def whole_tables(ranges: Iterable[SnapshotRange]) -> Sequence[SnapshotRange]:
    """Return the ranges of snapshots of whole tables: each has the range 0, and none of some keys has."""
    return [one for parts in by_run(ranges).values() if parts[0].number == 0 for one in parts]


def _all_read(parts: Sequence[SnapshotRange]) -> bool:
    """Return whether ranges are done, of one snapshot, and follow on each other from end to end of their table."""
    if any(one.state is not RangeState.DONE or one.run != parts[0].run for one in parts):
        return False
    following = {one.after: one for one in parts}
    reached: KeyText | None = None
    for _part in parts:
        one = following.pop(reached, None)
        if one is None:
            return False
        reached = one.until
        if reached is None:
            return not following
    return False


def merged(parts: Sequence[SnapshotRange]) -> SnapshotRange | None:
    """Return the range that can stand for all ranges of a snapshot of a whole table; None while they are needed.

    Once nothing of a snapshot is left to read, only what it is as a whole matters: a reader that has not announced its
    end yet, a later resync request and an automatic resync need its run and its times, and `status` counts its rows.
    """
    first, *others = parts
    cancelled = any(one.state is RangeState.CANCELLED for one in parts)
    if not others or first.number or any(one.state in UNFINISHED for one in parts):
        return None
    if not (cancelled or _all_read(parts)):  # keys are missing: it must not look complete
        return None
    return replace(
        first,
        after=None,
        until=None,
        last=None,
        read_at=max(one.read_at for one in parts),
        first_read_at=min(one.first_read_at for one in parts),
        rows=sum(one.rows for one in parts),
        state=RangeState.CANCELLED if cancelled else RangeState.DONE,
        owner=None,
        lease_until=None,
        fencing=max(one.fencing for one in parts),
        finished_at=max((one.finished_at for one in parts if one.finished_at is not None), default=None),
    )


def mergeable(ranges: Iterable[SnapshotRange]) -> Sequence[str]:
    """Return the tables that have a snapshot whose ranges can be merged into one."""
    return list(dict.fromkeys(table for (table, _run), parts in by_run(ranges).items() if merged(parts) is not None))


def too_old(read_at: Nanoseconds, now: Nanoseconds) -> bool:
    """Return whether what is left of a range has to be read at a new time."""
    return not _is_within(OLDEST_READ, read_at, now)


def _is_within(age: timedelta, at: Nanoseconds, now: Nanoseconds) -> bool:
    return now - at <= nanoseconds(age)


class RowMaker:
    """Makes change records of rows that were read at one time under one header."""

    def __init__(self, header: Header, read_at: Nanoseconds, buckets: int) -> None:
        """Take a header of origin ``snapshot``; the rows' values stand in the order of its columns."""
        self.header = header
        self._buckets = buckets
        self._names = [column.name for column in header.columns]
        places = {name: place for place, name in enumerate(self._names)}
        self._key = [(name, places[name]) for name in header.primary_key]
        rest = [name for name in places if name not in header.primary_key]
        self._rest = [places[name] for name in rest]
        self._row = _row_of(rest)
        self._types = header.key_types()
        self._sequence = str(four_sections(microseconds(read_at)))
        self._at = format_timestamp(read_at)

    def changes(self, rows: Sequence[Sequence[Any]]) -> list[tuple[str, Change]]:
        """Return the rows as upserts, each with its ordering key."""
        return [self._change(row) for row in rows]

    def deletes(self, keys: Sequence[Sequence[object]]) -> list[tuple[str, Change]]:
        """Return what says that there were no rows under some keys, each with its ordering key."""
        named = [dict(zip(self.header.primary_key, key, strict=True)) for key in keys]
        return [self._made("DELETE", key, None) for key in named]

    def key_text(self, row: Sequence[Any]) -> KeyText:
        """Return the place of a row in its table."""
        return KeyText(_json([row[place] for _name, place in self._key]).decode())

    def may_be_place(self, place: KeyText) -> bool:
        """Return whether a place is one of this table, or of its rows that begin so: its values are of the key's types.

        One that was stored before the table was dropped and made again may not be.
        """
        values = _values(place)
        if len(values) > len(self._types):
            return False
        types = self._types[: len(values)]
        names = [name for name, _kind in types]
        try:
            canonical_key(self.header.table, types, dict(zip(names, values, strict=True)))
        except PoisonRecordError:
            return False
        return True

    def row_id(self, key: Sequence[object]) -> bytes:
        """Return the canonical bytes of the row of a key; PoisonRecordError where it is none of the table's."""
        return canonical_key(self.header.table, self._types, dict(zip(self.header.primary_key, key, strict=True)))

    def _change(self, row: Sequence[Any]) -> tuple[str, Change]:
        rest = _json(self._row(*[row[place] for place in self._rest])).decode()
        return self._made("UPSERT", {name: row[place] for name, place in self._key}, rest)

    def _made(self, op: Op, key: Mapping[str, object], row: str | None) -> tuple[str, Change]:
        change = Change(
            op=op,
            mod_type=MOD_TYPE,
            sequence=self._sequence,
            commit_timestamp=self._at,
            place=_PLACE,
            key=_json(key).decode(),
            row=row,
        )
        return self._ordering_key(key, change.key), change

    def _ordering_key(self, key: Mapping[str, object], text: str) -> str:
        table = self.header.table
        try:
            canonical = canonical_key(table, self._types, key)
        except PoisonRecordError:  # the consumer sets it aside; here it only needs some bucket
            canonical = text.encode()
        return snapshot_ordering_key(table, bucket_of(canonical, self._buckets))


def _row_of(names: Sequence[str]) -> Callable[..., msgspec.Struct]:
    """Return what takes the values of columns and is encoded as an object of them: in half the time of a dict's."""
    fields = [f"c{number}" for number in range(len(names))]
    renamed = dict(zip(fields, names, strict=True))
    return msgspec.defstruct("Row", [(one, Any) for one in fields], rename=renamed, gc=False)


def snapshot_ordering_key(table: str, bucket: int) -> str:
    """Return the ordering key of a bucket's snapshot rows: not the stream's, whose changes would wait behind them."""
    return f"{table}/snapshot-{bucket}"
