"""A small model of a Bigtable table with a change stream, in memory.

The table is in two clusters, of which the first is read; what the first has applied, in its order, is the change
stream, cut into partitions that split and merge.
"""

import asyncio
import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from services.bigtable_reader.core.changes.images import CellVersion, RowCells
from services.bigtable_reader.core.stream.records import (
    Child,
    DeleteCells,
    DeleteFamily,
    Entry,
    KeyRange,
    Microseconds,
    RangeToken,
    SetCell,
)

EPOCH = Microseconds(1_700_000_000_000_000)
CLUSTERS = ("c1", "c2")


@dataclass
class VirtualClock:
    """The event loop's virtual time as a machine's clock, which may be wrong."""

    wrong_by: timedelta = timedelta(0)

    def now(self) -> Microseconds:
        """Return the time."""
        seconds = asyncio.get_running_loop().time() + self.wrong_by.total_seconds()
        return Microseconds(EPOCH + int(seconds * 1_000_000))


@dataclass
class Applied:
    """One change of one row, as the cluster that is read from applied it."""

    row_key: bytes
    cluster: str
    """Empty: garbage collection."""
    commit: Microseconds
    tiebreaker: int
    entries: tuple[Entry, ...]


class Bigtable:
    """A table in two clusters. Everything is seen from the first: what the second takes arrives there later."""

    def __init__(self, *cuts: bytes) -> None:
        self._starts = [b"", *sorted(cuts)]
        self.log: list[Applied] = []
        self.on_the_way: list[Applied] = []
        """Taken by the second cluster, in its order, and not replicated yet."""
        self.lost: set[KeyRange] = set()
        """Ranges whose tokens the service refuses from now on."""
        self.has_stream = True
        self.cancelled_streams = 0
        """How many streams a reader has ended before their CloseStream."""
        self.splits = 0
        self.merges = 0
        self._rows: dict[bytes, list[Applied]] = {}
        self._watching: set[asyncio.Future[None]] = set()
        self._last_commit = 0
        self._clock = VirtualClock()

    @property
    def partitions(self) -> Sequence[KeyRange]:
        """Return the partitions as they are now."""
        return [KeyRange(*ends) for ends in zip(self._starts, [*self._starts[1:], b""], strict=True)]

    @property
    def row_keys(self) -> Collection[bytes]:
        """Return the keys of all rows that there ever were."""
        return self._rows.keys()

    def write(
        self,
        row_key: bytes,
        *entries: Entry,
        cluster: str = "c1",
        behind: int = 0,
        commit: Microseconds | None = None,
    ) -> None:
        """Change a row in one cluster, whose clock may be behind by some microseconds, or by chance be just so.

        A commit time of a row is not given twice in one cluster: tiebreakers are the clusters'.
        """
        taken = {(one.commit, one.cluster) for one in [*self._rows.get(row_key, ()), *self.on_the_way]}
        if commit is None or (commit, cluster) in taken:
            commit = Microseconds(self._commit() - (behind if cluster == "c2" else 0))
        change = Applied(row_key, cluster, commit, CLUSTERS.index(cluster), entries)
        if cluster == "c1":
            self._apply(change)
        else:
            self.on_the_way.append(change)

    def replicate(self, changes: int = 1) -> None:
        """Let the oldest of what is on its way arrive."""
        for change in self.on_the_way[:changes]:
            self._apply(change)
        del self.on_the_way[:changes]

    def collect_garbage(self, row_key: bytes) -> None:
        """Drop a row's oldest cell, as garbage collection does."""
        cells = self.row(row_key)
        if cells is None:
            return
        timestamp, family, qualifier = min(
            (version.timestamp, family, qualifier)
            for family, columns in cells.items()
            for qualifier, versions in columns.items()
            for version in versions
        )
        gone = DeleteCells(family, qualifier, Microseconds(timestamp), Microseconds(timestamp + 1))
        self._apply(Applied(row_key, "", Microseconds(self._commit()), 0, (gone,)))

    def drop_family(self, family: str) -> None:
        """Drop a family's cells: no record tells of it."""
        for row_key, changes in self._rows.items():
            commit = Microseconds(self._commit())
            changes.append(Applied(row_key, "c1", commit, 0, (DeleteFamily(family),)))

    def split(self, key: bytes) -> None:
        """Cut a partition in two before a key."""
        if key and key not in self._starts:
            bisect.insort(self._starts, key)
            self.splits += 1
            self._changed()

    def merge(self, number: int) -> None:
        """Put a partition together with the next one."""
        if len(self._starts) > 1:
            del self._starts[1 + number % (len(self._starts) - 1)]
            self.merges += 1
            self._changed()

    def row(self, row_key: bytes) -> RowCells | None:
        """Return a row as the first cluster has it: later commits win, whatever the order of their arrival."""
        cells: dict[tuple[str, bytes, int], bytes] = {}
        for change in sorted(self._rows.get(row_key, ()), key=lambda one: (one.commit, one.tiebreaker)):
            for entry in change.entries:
                match entry:
                    case SetCell():
                        cells[entry.family, entry.qualifier, entry.timestamp] = entry.value
                    case DeleteCells(family=f, qualifier=q, start=start, end=end):
                        gone = [c for c in cells if c[:2] == (f, q) and start <= c[2] and (not end or c[2] < end)]
                        for cell in gone:
                            del cells[cell]
                    case DeleteFamily(family=family):
                        cells = {cell: value for cell, value in cells.items() if cell[0] != family}
                    case _:
                        raise NotImplementedError(f"the model has no {type(entry).__name__}")
        found: RowCells = {}
        for family, qualifier, timestamp in sorted(cells, key=lambda cell: (cell[0], cell[1], -cell[2])):
            version = CellVersion(timestamp, cells[family, qualifier, timestamp])
            found.setdefault(family, {}).setdefault(qualifier, []).append(version)
        return found or None

    def low_watermark(self) -> Microseconds:
        """Return an estimate as the service makes it."""
        return min((change.commit for change in self.on_the_way), default=self._clock.now())

    def children(self, range_: KeyRange, token: "Vector") -> tuple[Child, ...]:
        """Return what goes on where a range ends that is not a partition any more."""
        return tuple(
            Child(RangeToken(common, token.cut(common).text()), partition)
            for partition in self.partitions
            if (common := _common(range_, partition)) is not None
        )

    async def change(self, *, at_most: float) -> None:
        """Return when something has changed, or some seconds are over."""
        loop = asyncio.get_running_loop()
        changed = loop.create_future()
        self._watching.add(changed)
        timer = loop.call_later(at_most, resolve, changed)
        try:
            await changed
        finally:
            timer.cancel()
            self._watching.discard(changed)

    def _changed(self) -> None:
        for watching in self._watching:
            resolve(watching)

    def _apply(self, change: Applied) -> None:
        self._rows.setdefault(change.row_key, []).append(change)
        self.log.append(change)
        self._changed()

    def _commit(self) -> int:
        """Return a commit time of its own: no two writes have the same."""
        self._last_commit = max(self._last_commit + 2_000, self._clock.now())
        return self._last_commit


def loop_time() -> float:
    """Return the event loop's time: the clock by which a reader of a test sees leases end."""
    return asyncio.get_running_loop().time()


def resolve(future: "asyncio.Future[None]") -> None:
    """Resolve a future, unless it is."""
    if not future.done():
        future.set_result(None)


class Vector(msgspec.Struct, array_like=True):
    """What a token of the model says: how much of the log has been seen, range by range."""

    seen: list[tuple[str, str, int]]

    @classmethod
    def of(cls, parts: Sequence[tuple[KeyRange, int]]) -> "Vector":
        """Return the vector of these ranges."""
        return cls([(part.start.hex(), part.end.hex(), seen) for part, seen in parts])

    @property
    def parts(self) -> Sequence[tuple[KeyRange, int]]:
        """Return its ranges, and how much of the log each has seen."""
        return [(KeyRange(bytes.fromhex(start), bytes.fromhex(end)), seen) for start, end, seen in self.seen]

    def cut(self, to: KeyRange) -> "Vector":
        """Return what it says of a smaller range."""
        return Vector.of([(c, seen) for part, seen in self.parts if (c := _common(part, to)) is not None])

    def text(self) -> str:
        """Return the token."""
        return msgspec.json.encode(self).decode()


def _common(one: KeyRange, other: KeyRange) -> KeyRange | None:
    start = max(one.start, other.start)
    ends = [end for end in (one.end, other.end) if end]
    end = min(ends, default=b"")
    return None if end and start >= end else KeyRange(start, end)
