"""In-memory ports of the Bigtable reader, and a small model of Bigtable behind them.

`Bigtable` is the world, which outlives a reader: a table in two clusters, of which the first is read; what the first
has applied, in its order, is the change stream, cut into partitions that split and merge. The ports are one reader's
way to it, and die with its `Life`.
"""

import asyncio
import bisect
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from services.bigtable_reader.core.images import CellVersion, RowCells
from services.bigtable_reader.core.partitions import Survey
from services.bigtable_reader.core.records import (
    Child,
    CloseStream,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    KeyRange,
    Microseconds,
    Position,
    RangeToken,
    SetCell,
    StreamQuery,
    StreamRecord,
)
from services.bigtable_reader.ports import PositionLostError, ReadRows
from shared.contracts.change_batch import Change, Header
from shared.contracts.dead_letter import DeadLetter
from tests.fakes.life import CrashError, Way

EPOCH = Microseconds(1_700_000_000_000_000)
CLUSTERS = ("c1", "c2")
_OUT_OF_RANGE = 11
_PUBLISHING = 4
"""How many times as long as another call the two halves of publishing may take."""


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
        timer = loop.call_later(at_most, _resolve, changed)
        try:
            await changed
        finally:
            timer.cancel()
            self._watching.discard(changed)

    def _changed(self) -> None:
        for watching in self._watching:
            _resolve(watching)

    def _apply(self, change: Applied) -> None:
        self._rows.setdefault(change.row_key, []).append(change)
        self.log.append(change)
        self._changed()

    def _commit(self) -> int:
        """Return a commit time of its own: no two writes have the same."""
        self._last_commit = max(self._last_commit + 2_000, self._clock.now())
        return self._last_commit


def _resolve(future: "asyncio.Future[None]") -> None:
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


class FakeChangeStream:
    """The change stream of the model's table."""

    def __init__(self, table: Bigtable, way: Way | None = None) -> None:
        self.table = table
        self.way = way or Way()
        self.queries: list[StreamQuery] = []
        self._clock = VirtualClock()

    async def initial_partitions(self) -> Sequence[KeyRange]:
        """Return the partitions as they are now."""
        await self.way.step()
        return self.table.partitions

    async def read(self, query: StreamQuery) -> AsyncGenerator[StreamRecord, None]:
        """Yield the records of a range; the last is a CloseStream, as soon as the range is not a partition."""
        await self.way.step()
        self.queries.append(query)
        seen = self._begin(query.range, query.position)
        start = query.position.start
        quiet_since = self._clock.now()
        while True:
            await self.way.step()
            if query.range not in self.table.partitions:
                token = Vector.of(list(seen.items()))
                children = self.table.children(query.range, token)
                yield CloseStream(_OUT_OF_RANGE, "split or merged", children)
                return
            record = self._next(query.range, seen, start)
            if record is not None:
                quiet_since = self._clock.now()
                yield record
            elif self._clock.now() - quiet_since >= query.heartbeat_milliseconds * 1_000:
                quiet_since = self._clock.now()
                yield Heartbeat(Vector.of(list(seen.items())).text(), self.table.low_watermark())
            elif query.end is not None and query.end < self._clock.now():
                yield CloseStream(0, "")
                return
            else:
                await self.table.change(at_most=2.5)

    def _begin(self, range_: KeyRange, position: Position) -> dict[KeyRange, int]:
        if range_ in self.table.lost and position.tokens:
            raise PositionLostError("INVALID_ARGUMENT the token is not known")
        if not position.tokens:
            return {range_: 0}
        at = range_.start
        seen: dict[KeyRange, int] = {}
        for token in position.tokens:
            if token.range.start != at:
                raise AssertionError(f"the tokens {position.tokens} do not cover {range_} exactly")
            at = token.range.end
            seen |= dict(msgspec.json.decode(token.token, type=Vector).parts)
        if at != range_.end:
            raise AssertionError(f"the tokens {position.tokens} do not cover {range_} exactly")
        return seen

    def _next(self, range_: KeyRange, seen: dict[KeyRange, int], start: int | None) -> DataChange | None:
        """Return the next record; parts of a range that have seen less begin again where the least of them stands."""
        at = min(seen.values())
        while at < len(self.table.log):
            change = self.table.log[at]
            at += 1
            new = [part for part, had in seen.items() if had < at]
            mine = any(change.row_key in part for part in new)
            for part in new:
                seen[part] = at
            if mine and (start is None or change.commit >= start):
                return DataChange(
                    row_key=change.row_key,
                    kind="USER" if change.cluster else "GARBAGE_COLLECTION",
                    source_cluster=change.cluster,
                    commit=change.commit,
                    tiebreaker=change.tiebreaker,
                    entries=change.entries,
                    token=Vector.of(list(seen.items())).text(),
                    low_watermark=self.table.low_watermark(),
                )
        return None


class FakeRows:
    """The rows of the model's table, each as it is at some moment after the call."""

    def __init__(self, table: Bigtable, way: Way | None = None) -> None:
        self.table = table
        self.way = way or Way()
        self.readings: list[Sequence[bytes]] = []

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        """Return those of the rows that exist; of some calls, a part of them."""
        self.readings.append(row_keys)
        await self.way.step()
        found = {}
        asked = row_keys[: self.way.chance.randint(1, 2 * len(row_keys))]
        for row_key in asked:
            if self.way.slowest:
                await asyncio.sleep(self.way.chance.random() * self.way.slowest / len(row_keys))
            if (cells := self.table.row(row_key)) is not None:
                found[row_key] = cells
        await self.way.step()
        return ReadRows(found, row_keys[len(asked) :])


@dataclass
class Topic:
    """What has been published, and in which order; with duplicates."""

    batches: list[tuple[Header, Sequence[Change]]] = field(default_factory=list)

    @property
    def changes(self) -> Sequence[Change]:
        """Return all changes, in the order in which they were published."""
        return [change for _header, changes in self.batches for change in changes]


class FakePublisher:
    """Publishes to a topic in memory, and confirms some time later, in any order."""

    def __init__(self, topic: Topic, way: Way | None = None) -> None:
        self.topic = topic
        self.way = way or Way()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.room = asyncio.Event()
        self.room.set()

    async def publish(self, header: Header, changes: Sequence[tuple[str, Change]]) -> "asyncio.Future[None]":
        """Take changes; the future resolves when all are confirmed."""
        if self._closed:
            raise RuntimeError("the publisher is closed")
        await self.room.wait()
        self.way.life.step()
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken = [change for _key, change in changes]
        self._tasks.add(asyncio.create_task(self._publish(header, taken, confirmed)))
        return confirmed

    async def close(self) -> None:
        """Publish what was taken, and end."""
        self._closed = True
        await asyncio.gather(*self._tasks)

    async def _publish(self, header: Header, changes: Sequence[Change], confirmed: "asyncio.Future[None]") -> None:
        """A process that dies with a message on its way may or may not have sent it."""
        try:
            await self._on_the_way()
            self.topic.batches.append((header, changes))
            await self._on_the_way()
        except CrashError as error:
            if not confirmed.done():
                confirmed.set_exception(error)
                confirmed.exception()  # seen: who waited for it is as dead
            return
        _resolve(confirmed)

    async def _on_the_way(self) -> None:
        await asyncio.sleep(self.way.chance.random() * self.way.slowest * _PUBLISHING)
        await self.way.passable()
        self.way.life.step()


class FakeCatalog:
    """A table's families, and its clusters."""

    def __init__(self, *families: str) -> None:
        self.found = set(families)
        self.found_clusters = {"c1"}

    async def families(self) -> Collection[str]:
        """Return the table's column families."""
        return set(self.found)

    async def clusters(self) -> Collection[str]:
        """Return the clusters that the table is replicated to."""
        return set(self.found_clusters)


class FakeLetters:
    """Keeps letters in memory."""

    def __init__(self) -> None:
        self.kept: list[DeadLetter] = []

    async def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Return when every letter is confirmed."""
        await asyncio.sleep(0)
        self.kept += letters


@dataclass
class FakeMetrics:
    """Counts in memory."""

    records: int = 0
    rows: int = 0
    asked: int = 0
    published_changes: int = 0
    split: int = 0
    merged: int = 0
    reconciled: int = 0
    family_changes: int = 0
    losing: bool = False
    survey: Survey | None = None
    low_watermark: Microseconds | None = None
    stalled_for: timedelta = timedelta(0)

    def read(self, record: StreamRecord) -> None:
        """Count a record that was read."""
        self.records += isinstance(record, DataChange)

    def read_back(self, rows: int, records: int) -> None:
        """Count rows that were read back, and the records that asked for it."""
        self.rows += rows
        self.asked += records

    def published(self, changes: int) -> None:
        """Count changes that Pub/Sub has confirmed."""
        self.published_changes += changes

    def reshaped(self, split: int, merged: int, reconciled: int) -> None:
        """Count pieces that were split, merged and reconciled."""
        self.split += split
        self.merged += merged
        self.reconciled += reconciled

    def surveyed(self, survey: Survey, low_watermark: Microseconds, stalled_for: timedelta) -> None:
        """Remember what was shown."""
        self.survey = survey
        self.low_watermark = low_watermark
        self.stalled_for = stalled_for

    def families_changed(self) -> None:
        """Count that families were added or dropped."""
        self.family_changes += 1

    def topic_loses(self) -> None:
        """Show that the topic does not keep what is published to it."""
        self.losing = True
