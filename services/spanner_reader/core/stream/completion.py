"""Updates that hold only what changed, made whole: which of them wait for what, and what follows from the row before.

All changes of a row come in one partition at a time, in commit order. So the row as it was just before the earliest
commit that waits, and every change since then, give the row at each of these changes: no change is read by itself, and
a transaction that changes a row several times is no special case. What that rests on: every change since that time is
here, those that were published at once or left out among them. `CompletionQueue` keeps them for as long as they count.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from itertools import groupby
from typing import Final

import msgspec

from services.spanner_reader.core.stream.records import DataChangeRecord
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import ChangeSequenceNumber, four_sections, parse_sequence
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds, nanoseconds

LONGEST_BATCH: Final = timedelta(seconds=10)
"""How much commit time a batch covers: what happens to a table without a change record is seldom within so little."""
_LONGEST: Final = nanoseconds(LONGEST_BATCH)
_MICROSECOND: Final = 1_000
_EDITS_BITS: Final = 32
"""Of a revision, those by which the edits of a dead letter count."""

Values = Mapping[str, object]
"""The values of a row outside its key: JSON as it came (``msgspec.Raw``), or wire values as they were read."""

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_json: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, eq=False)
class QueuedChange:
    """One change in a queue. ``whole``: it says all there is to say of its row, a delete among them."""

    row_id: bytes
    commit: Nanoseconds
    transaction: str
    whole: bool
    header: Header
    ordering_key: str
    change: Change
    published: bool = False
    """Whether it is here only for what it says of its row: it is published, or was left out."""

    @property
    def order(self) -> str:
        """Return the text that orders the changes of a row."""
        return self.change.sequence


class CompletionQueue:
    """The changes of one query of a partition that wait for the rest of their rows, and those that these rest on."""

    def __init__(self) -> None:
        self._tables: dict[str, list[QueuedChange]] = {}
        self._waiting: Counter[bytes] = Counter()
        """Rows of which changes wait, or are in the batch that was taken last."""
        self._taken: Sequence[QueuedChange] = ()
        self._open: dict[str, Nanoseconds] = {}
        """Transactions of which this partition has more to come, by their commit timestamps."""
        self._latest = Nanoseconds(0)
        self.size = 0
        """In bytes."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is remembered at all."""
        return not self._tables and not self._taken

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits."""
        return not self._waiting

    @property
    def can_take(self) -> bool:
        """Return whether there is a batch to take, or one is taken."""
        return bool(self._taken) or any(self._ready(table) for table in self._tables)

    def waits(self, row_ids: Iterable[bytes]) -> bool:
        """Return whether changes of any of these rows wait."""
        return any(row_id in self._waiting for row_id in row_ids)

    def arrived(self, record: DataChangeRecord) -> None:
        """Notice a record, whatever becomes of it."""
        self.passed(Nanoseconds(record.commit_timestamp - 1))
        if record.is_last_record_in_transaction_in_partition:
            self._open.pop(record.server_transaction_id, None)
        else:
            self._open[record.server_transaction_id] = record.commit_timestamp

    def passed(self, time: Nanoseconds) -> None:
        """Notice that every change up to a time has arrived."""
        if self._open:
            self._open = {one: commit for one, commit in self._open.items() if commit > time}
        self._latest = max(self._latest, Nanoseconds(time + 1))
        if self._tables and self.is_idle:
            self._forget()

    def add(self, entries: Sequence[QueuedChange]) -> None:
        """Take the changes of a record."""
        for one in entries:
            self._tables.setdefault(one.header.table, []).append(one)
            self.size += one.change.size()
            if not one.published:
                self._waiting[one.row_id] += 1

    def take(self, most: int) -> Sequence[QueuedChange]:
        """Return the next changes of one table, about so many, in their order; none while there are none.

        A commit is never cut, nor a transaction that has more to come. Those that are published already come along:
        the rows of the others follow from them. `done` says that the batch is over; there is one at a time.
        """
        ready = {table: entries for table in self._tables if (entries := self._ready(table))}
        if not ready or self._taken:
            return ()
        table = min(ready, key=lambda name: next(one.commit for one in ready[name] if not one.published))
        entries = ready[table]
        first = next(one.commit for one in entries if not one.published)
        until = first
        for number, one in enumerate(entries):
            if one.commit != until and (number >= most or one.commit > first + _LONGEST):
                break
            until = max(until, one.commit)
        self._taken = [one for one in entries if one.commit <= until]
        kept = [one for one in self._tables[table] if one.commit > until or one.transaction in self._open]
        # Of the newest commit more may come: what comes rests on these, too.
        carried = [replace(one, published=True) for one in self._taken if one.commit == self._latest]
        self._tables[table] = sorted([*carried, *kept], key=lambda one: one.order)
        self.size += sum(one.change.size() for one in carried)
        return self._taken

    def done(self) -> None:
        """Notice that what was taken is published."""
        for one in self._taken:
            self.size -= one.change.size()
            if not one.published:
                self._waiting[one.row_id] -= 1
                if not self._waiting[one.row_id]:
                    del self._waiting[one.row_id]
        self._taken = ()
        self._forget()

    def _ready(self, table: str) -> Sequence[QueuedChange]:
        """Return the changes of a table of which nothing more is to come that precedes them; none where none waits."""
        entries = self._tables[table]
        if self._open:
            entries = [one for one in entries if one.transaction not in self._open]
        if all(one.published for one in entries):
            return ()
        return sorted(entries, key=lambda one: one.order)

    def _forget(self) -> None:
        """Forget what is published and precedes everything that waits, or may still come to wait."""
        for table, entries in list(self._tables.items()):
            first = min((one.commit for one in entries if not one.published), default=self._latest)
            kept = [one for one in entries if one.commit >= min(first, self._latest)]
            if len(kept) < len(entries):
                self.size -= sum(one.change.size() for one in entries) - sum(one.change.size() for one in kept)
                self._tables[table] = kept
            if not kept:
                del self._tables[table]


def base_of(entries: Sequence[QueuedChange]) -> Nanoseconds:
    """Return the time just before the earliest of some changes: commit timestamps are whole microseconds."""
    return Nanoseconds(min(one.commit for one in entries) - _MICROSECOND)


def halves(entries: Sequence[QueuedChange]) -> tuple[Sequence[QueuedChange], Sequence[QueuedChange]] | None:
    """Return the earlier and the later commits of some changes; None of one commit, which is never cut."""
    commits = sorted({one.commit for one in entries})
    if len(commits) == 1:
        return None
    middle = commits[len(commits) // 2]
    return [one for one in entries if one.commit < middle], [one for one in entries if one.commit >= middle]


def by_row(entries: Iterable[QueuedChange]) -> Mapping[bytes, Sequence[QueuedChange]]:
    """Return the changes of each row, in their order."""
    rows: dict[bytes, list[QueuedChange]] = {}
    for one in sorted(entries, key=lambda one: one.order):
        rows.setdefault(one.row_id, []).append(one)
    return rows


class Completeness(Enum):
    """What is known of a change's row."""

    AS_IT_IS = "as it is"
    """The change says it all; or it is poison, and says so."""
    WHOLE = "whole"
    """An update that happens to name every column."""
    COMPLETED = "completed"
    RECONSTRUCTED = "reconstructed"
    """Completed from a row of another time: columns that the change does not name may be those of later."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Before:
    """A row before the first of its changes; None: there was none. ``true``: it is the row as it was at that time."""

    values: Values | None
    true: bool = True


@dataclass(frozen=True, slots=True)
class Version:
    """A change, and the values of its row where that was completed."""

    entry: QueuedChange
    outcome: Completeness
    values: Values | None = None


def versions(
    entries: Iterable[QueuedChange], before: Before | None, columns: frozenset[str] | None, *, reconstruct: bool = False
) -> Iterator[Version]:
    """Yield each change of one row, in order, with its row.

    ``before`` None: nothing is known of the row before. ``columns`` are all that were watched outside the key; None:
    not known. With ``reconstruct`` nothing is trusted that a change does not say itself, such as which columns there
    were, and a row that is not known, or was not there, is taken for one that was empty.
    """
    row = before
    for _order, group in groupby(entries, key=lambda one: one.order):
        same = list(group)
        found = []
        for one in same:
            row, version = _next(row, one, columns, reconstruct=reconstruct)
            found.append(version)
        # Transactions that change other columns of one row may have one commit timestamp, and one sequence each: what
        # arrives last in BigQuery has to be the row that all of them have made.
        if len(found) > 1 and row is not None and row.values is not None:
            found = [_last(version, row) for version in found]
        yield from found


def _next(
    row: Before | None, one: QueuedChange, columns: frozenset[str] | None, *, reconstruct: bool
) -> tuple[Before | None, Version]:
    """Return a row after a change of it, and what that is as a version."""
    values = _values(one.change)
    if one.whole:
        known = Before(None if one.change.op == "DELETE" else values, true=not reconstruct)
        return known, Version(one, Completeness.AS_IT_IS)
    if values is None:
        return row, Version(one, Completeness.AS_IT_IS)
    if columns is not None and columns <= values.keys():
        return Before(values), Version(one, Completeness.WHOLE)
    if row is None or row.values is None:  # an update of a row that was not there: the stream lacks some change
        row = Before({}, true=False) if reconstruct else None
    if row is None or row.values is None:
        return None, Version(one, Completeness.UNKNOWN)
    row = Before({**row.values, **values}, row.true)
    return row, _last(Version(one, Completeness.COMPLETED), row)


def _last(version: Version, row: Before) -> Version:
    """Return the version of an update that ends in a row; what is no update stays as it is."""
    if version.outcome in (Completeness.AS_IT_IS, Completeness.UNKNOWN):
        return version
    return Version(version.entry, Completeness.COMPLETED if row.true else Completeness.RECONSTRUCTED, row.values)


def needs_read(entries: Sequence[QueuedChange], columns: frozenset[str] | None) -> bool:
    """Return whether the row before some changes of it has to be read; ``columns`` as in `versions`."""
    found = (one for one in versions(entries, None, columns) if not one.entry.published)
    return any(one.outcome is Completeness.UNKNOWN for one in found)


def names_some(entries: Sequence[QueuedChange]) -> bool:
    """Return whether some changes of a row that wait do not say all there is to say of it."""
    found = (one for one in versions(entries, None, None, reconstruct=True) if not one.entry.published)
    return any(one.outcome is Completeness.RECONSTRUCTED for one in found)


def completed_change(version: Version, header: Header) -> Change:
    """Return a change with its whole row, under the header of whole rows."""
    keys = frozenset(header.primary_key)
    values = version.values or {}
    row = {column.name: values.get(column.name) for column in header.columns if column.name not in keys}
    return version.entry.change.completed(
        _json(row).decode(), reconstructed=version.outcome is Completeness.RECONSTRUCTED
    )


def published_again(change: Change, revision: int) -> Change:
    """Return a change with a revision, so that it wins over the one published before.

    And over each edit of that one as a dead letter, of which every next has a revision that is higher by one.
    """
    sections = (*parse_sequence(change.sequence).sections[:3], revision << _EDITS_BITS)
    return msgspec.structs.replace(change, sequence=str(ChangeSequenceNumber(sections)))


def row_as_it_is_now(entry: QueuedChange, values: Values, at: Nanoseconds, header: Header) -> Change:
    """Return what says how a row is at a time: whatever changes it later wins, and what changed it before is in it."""
    change = msgspec.structs.replace(
        entry.change,
        sequence=str(four_sections(microseconds(at))),
        commit_timestamp=format_timestamp(at),
        place="{}",
        old=None,
    )
    return completed_change(Version(replace(entry, change=change), Completeness.RECONSTRUCTED, values), header)


def _values(change: Change) -> Values | None:
    """Return what an upsert says of its row outside the key; None where it is no JSON object."""
    try:
        return None if change.row is None else _object.decode(change.row)
    except (msgspec.MsgspecError, RecursionError):
        return None
