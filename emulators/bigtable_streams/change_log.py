"""What a table's change stream holds: its records in the order they were applied, and how they are cut into partitions.

A record's index says where it stands in the whole table's order. Each partition holds the records of its range, so a
reader reads nothing else; a split or merge hands them on.
"""

import asyncio
import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, Literal

from emulators.bigtable_streams.key_range import KeyRange
from emulators.bigtable_streams.tokens import Position


class Bell:
    """Wakes all who wait at the time it rings."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake those who wait."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def wait(self, seconds: float) -> None:
        """Return when the bell rings, or after some seconds."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait([waiting], timeout=max(seconds, 0.0))
        finally:
            self._waiting.discard(waiting)


Kind = Literal["USER", "GARBAGE_COLLECTION"]


@dataclass(frozen=True, slots=True)
class Record:
    """One row's changes of one call, applied at once. Times are microseconds since the epoch."""

    index: int
    row_key: bytes
    entries: Sequence[Any]
    kind: Kind
    cluster: str
    commit: int
    tiebreaker: int
    watermark: int
    """The low watermark once this record had been applied: an estimate, later records may be older."""

    @property
    def order(self) -> tuple[int, int]:
        """Return what decides between records that touch the same cells: the larger one wins."""
        return self.commit, self.tiebreaker


@dataclass(eq=False)
class Partition:
    """A range of keys as it is served now, with the records of its keys."""

    range: KeyRange
    records: list[Record]
    bell: Bell = field(default_factory=Bell)
    _open: bool = True

    def is_open(self) -> bool:
        """Return whether it is served still."""
        return self._open

    def close(self) -> None:
        """Serve it no more: every stream of it wakes."""
        self._open = False
        self.bell.ring()

    def first_from(self, index: int) -> int:
        """Return the place in ``records`` of the first one at or after a table-wide index."""
        return bisect_left(self.records, index, key=attrgetter("index"))


class ChangeLog:
    """One epoch of a table's change stream: from when it was enabled until it is disabled or the table is dropped."""

    def __init__(self, now: Callable[[], int], splits: Iterable[bytes] = ()) -> None:
        self.epoch = uuid.uuid4().hex
        self.since = now()
        self.ended = False
        self.next_index = 0
        self.trimmed: list[tuple[KeyRange, int]] = []
        """Of these keys, the records before the index are gone."""
        self.trimmed_until = 0
        """What was committed before this time may be gone."""
        self._now = now
        self._stalled_at: int | None = None
        self._last_commit = self.since
        self._rows: defaultdict[bytes, list[Record]] = defaultdict(list)
        self.partitions = [Partition(each, []) for each in _ranges(splits)]
        self._starts = [partition.range.start for partition in self.partitions]

    def append(
        self,
        row_key: bytes,
        entries: Sequence[Any],
        cluster: str,
        *,
        kind: Kind = "USER",
        commit: int | None = None,
        tiebreaker: int = 0,
    ) -> Record:
        """Add what was just applied to a row, at this moment unless another commit time is given."""
        if commit is None:
            commit = self._last_commit = max(self._now(), self._last_commit + 1)
        record = Record(
            index=self.next_index,
            row_key=row_key,
            entries=entries,
            kind=kind,
            cluster=cluster,
            commit=commit,
            tiebreaker=tiebreaker,
            watermark=self.low_watermark(),
        )
        self.next_index += 1
        partition = self.partitions[self._place(row_key)]
        partition.records.append(record)
        self._rows[row_key].append(record)
        partition.bell.ring()
        return record

    def history(self, row_key: bytes) -> Sequence[Record]:
        """Return the records of a row that are still there, in the order they were applied."""
        return self._rows.get(row_key, [])

    def low_watermark(self) -> int:
        """Return the time up to which replication has caught up: now, unless it is stalled."""
        return max(self._now(), self._last_commit) if self._stalled_at is None else self._stalled_at

    def stall(self, stalled: bool) -> None:
        """Let the low watermark stand still where it is, or go on."""
        self._stalled_at = self.low_watermark() if stalled else None
        self.ring()

    def partition_of(self, wanted: KeyRange) -> Partition | None:
        """Return the partition that has exactly this range now."""
        partition = self.partitions[self._place(wanted.start)]
        return partition if partition.range == wanted else None

    def overlapping(self, wanted: KeyRange) -> Sequence[Partition]:
        """Return the partitions that share keys with a range, in key order."""
        return [each for each in self.partitions if each.range.within(wanted) is not None]

    def split(self, at: bytes) -> bool:
        """Cut the partition that holds a key in two, the second one starting at the key; False where one starts."""
        return self.repartition([*self._starts, at])

    def merge(self, at: bytes) -> bool:
        """Join the partition that starts at a key with the one before it; False where none starts."""
        return self.repartition(start for start in self._starts if start != at)

    def repartition(self, starts: Iterable[bytes]) -> bool:
        """Let partitions start at these keys, all at once; what keeps its range goes on. False if nothing changes."""
        kept = {partition.range: partition for partition in self.partitions}
        new = [kept.get(keys) or Partition(keys, self._records_of(keys)) for keys in _ranges(starts)]
        return self._serve(new)

    def move(self, at: bytes) -> None:
        """Replace the partition that holds a key by one with the same range, as when a tablet moves."""
        place = self._place(at)
        old = self.partitions[place]
        again = Partition(old.range, list(old.records))
        self._serve([*self.partitions[:place], again, *self.partitions[place + 1 :]])

    def trim(self, before: int | None = None) -> None:
        """Forget the records committed before a time, or all; positions before the last of them are expired."""
        limit = self.low_watermark() if before is None else before
        self.trimmed_until = max(self.trimmed_until, min(limit, self._now()))
        for partition in self.partitions:
            gone = next((n for n, r in enumerate(partition.records) if r.commit >= limit), len(partition.records))
            if gone:
                last = partition.records[gone - 1].index
                self.trimmed.append((partition.range, last + 1))
                for record in partition.records[:gone]:
                    self._rows[record.row_key].remove(record)
                del partition.records[:gone]

    def expired(self, position: Position) -> bool:
        """Return whether a record at or after a position has been forgotten."""
        return any(position.index < index and keys.within(position.range) is not None for keys, index in self.trimmed)

    def index_at(self, wanted: KeyRange, time: int) -> int:
        """Return the position of the first record of a range that was committed at or after a time."""
        found = [
            r.index for p in self.overlapping(wanted) for r in p.records if r.commit >= time and r.row_key in wanted
        ]
        return min(found, default=self.next_index)

    def count_from(self, positions: Iterable[Position]) -> int:
        """Return how many records there are at or after each position."""
        return sum(
            record.row_key in position.range
            for position in positions
            for partition in self.overlapping(position.range)
            for record in islice(partition.records, partition.first_from(position.index), None)
        )

    def ring(self) -> None:
        """Wake every stream, so that it sees what has changed."""
        for partition in self.partitions:
            partition.bell.ring()

    def end(self) -> None:
        """End the epoch: no token of it is worth anything from now on."""
        self.ended = True
        self.ring()

    def _place(self, key: bytes) -> int:
        place = bisect_left(self._starts, key)
        return place if place < len(self._starts) and self._starts[place] == key else place - 1

    def _records_of(self, keys: KeyRange) -> list[Record]:
        parts = [[r for r in each.records if r.row_key in keys] for each in self.overlapping(keys)]
        return list(merge(*parts, key=attrgetter("index")))

    def _serve(self, partitions: list[Partition]) -> bool:
        gone = [partition for partition in self.partitions if partition not in partitions]
        self.partitions = partitions
        self._starts = [partition.range.start for partition in partitions]
        for partition in gone:
            partition.close()
        return bool(gone)


def _ranges(starts: Iterable[bytes]) -> Iterable[KeyRange]:
    cuts = sorted({start for start in starts if start})
    return map(KeyRange, [b"", *cuts], [*cuts, b""])
