"""In-memory ports of the Spanner reader, which a test can kill between any two effects.

`Table`, `Script` and `Topic` are the world, which outlives a reader; the ports are one reader's way to it, and die
with its `Life`.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from services.spanner_reader.core.stream.partitions import (
    NewPartition,
    PartitionState,
    SpannerPartition,
    SpannerPartitionSurvey,
    claimable,
)
from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionToken,
    SpannerStreamQuery,
    StreamRecord,
)
from services.spanner_reader.ports import SpannerProgress
from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.life import CrashError, Life

CALLS: Final[Mapping[str, int]] = {"survey": 2, "claim": 2, "advance": 2, "attend": 2, "pauses": 1}
"""How many calls of Spanner each takes in the partition table at rest, as `test_spanner_commits.py` counts them."""


@dataclass
class SteppingClock:
    """Spanner's clock, moved by the test."""

    time: Nanoseconds = field(default=Nanoseconds(1_000_000_000_000))

    def now(self) -> Nanoseconds:
        """Return the time now."""
        return self.time

    def step(self, by: timedelta) -> None:
        """Move on."""
        self.time = Nanoseconds(self.time + int(by.total_seconds() * 1_000_000_000))


@dataclass
class Table:
    """The rows of a partition table."""

    clock: SteppingClock = field(default_factory=SteppingClock)
    rows: dict[PartitionToken, SpannerPartition] = field(default_factory=dict)
    finished_at: dict[PartitionToken, Nanoseconds] = field(default_factory=dict)
    readers: dict[str, Nanoseconds] = field(default_factory=dict)

    def row(self, token: PartitionToken) -> SpannerPartition:
        """Return a row as a query would."""
        stored = self.rows[token]
        finished = {parent for parent in stored.parents if self._is_finished(parent)}
        return replace(stored, finished_parents=frozenset(finished))

    def _is_finished(self, token: PartitionToken) -> bool:
        return token in self.rows and self.rows[token].state is PartitionState.FINISHED


class FakePartitionStore:
    """A partition store in memory, as one owner sees it."""

    def __init__(self, table: Table, owner: str, lease: timedelta, life: Life | None = None) -> None:
        self.table = table
        self._owner = owner
        self._lease = int(lease.total_seconds() * 1_000_000_000)
        self._life = life or Life()

    async def add_root(self, start: Nanoseconds, end: Nanoseconds | None) -> bool:
        """Remember the stream's first query, unless any partition is known; return whether none was."""
        await self._before("add_root")
        if self.table.rows:
            return False
        self.table.rows[ROOT] = SpannerPartition(token=ROOT, start=start, watermark=start)
        self._life.step()
        return True

    async def survey(self) -> SpannerPartitionSurvey:
        """Return all partitions that are not finished."""
        await self._before("survey")
        rows = [self.table.row(token) for token in self.table.rows]
        unfinished = tuple(row for row in rows if row.state is not PartitionState.FINISHED)
        now = self.table.clock.now()
        present = frozenset(owner for owner, until in self.table.readers.items() if until >= now)
        return SpannerPartitionSurvey(now, unfinished, len(rows) - len(unfinished), present)

    async def claim(self, tokens: Collection[PartitionToken], end: Nanoseconds | None) -> Sequence[SpannerPartition]:
        """Take those of the partitions that are still due and free."""
        await self._before("claim")
        now = self.table.clock.now()
        rows = [self.table.row(token) for token in tokens if token in self.table.rows]
        claimed = []
        for row in claimable(rows, owner=self._owner, holding=(), now=now, end=end):
            ours = replace(
                row,
                state=PartitionState.SCHEDULED,
                owner=self._owner,
                lease_until=Nanoseconds(now + self._lease),
                fencing=row.fencing + 1,
            )
            self.table.rows[row.token] = ours
            claimed.append(ours)
        self._life.step()
        return claimed

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases (or give them back); return the partitions that are not ours."""
        await self._before("advance")
        lost = set()
        for one in progress:
            row = self.table.rows.get(one.partition.token)
            if row is None or not self._is_ours(one.partition, row):
                lost.add(one.partition.token)
            elif row.state is not PartitionState.FINISHED:
                until = None if release else Nanoseconds(self.table.clock.now() + self._lease)
                watermark = max(row.watermark, one.watermark)
                self.table.rows[row.token] = replace(
                    row, state=PartitionState.RUNNING, watermark=watermark, lease_until=until, load=one.load
                )
        self._life.step()
        return lost

    async def finish(
        self, progress: SpannerProgress, children: Sequence[NewPartition]
    ) -> Collection[PartitionToken] | None:
        """Remember the new children and mark the partition FINISHED, both or neither."""
        await self._before("finish")
        row = self.table.rows.get(progress.partition.token)
        if row is None or not self._is_ours(progress.partition, row):
            return None
        if row.state is PartitionState.FINISHED:
            return frozenset()
        new = [child for child in children if child.token not in self.table.rows]
        for child in new:
            self.table.rows[child.token] = SpannerPartition(
                token=child.token, start=child.start, watermark=child.start, parents=child.parents
            )
        watermark = max(row.watermark, progress.watermark)
        self.table.rows[row.token] = replace(row, state=PartitionState.FINISHED, watermark=watermark, lease_until=None)
        self.table.finished_at[row.token] = self.table.clock.now()
        self._life.step()
        return frozenset(child.token for child in new)

    async def attend(self, *, leave: bool = False) -> None:
        """Be counted among the readers for as long as a lease lasts; or not any more."""
        await self._before("attend")
        if leave:
            self.table.readers.pop(self._owner, None)
        else:
            self.table.readers[self._owner] = Nanoseconds(self.table.clock.now() + self._lease)
        self._life.step()

    async def forget_finished(self, keep: timedelta) -> int:
        """Delete partitions that were finished longer than ``keep`` ago, a thousand at most."""
        await self._before("forget_finished")
        before = self.table.clock.now() - int(keep.total_seconds() * 1_000_000_000)
        needed = {
            parent
            for row in self.table.rows.values()
            if row.state is not PartitionState.FINISHED
            for parent in row.parents
        }
        gone = [token for token, at in self.table.finished_at.items() if at < before and token not in needed]
        for token in gone[:1_000]:
            del self.table.rows[token], self.table.finished_at[token]
        self._life.step()
        return len(gone[:1_000])

    async def _before(self, call: str) -> None:
        """Let the time before the effect of a call pass; the effect itself takes none."""
        await asyncio.sleep(0)
        self._life.step()

    def _is_ours(self, owned: SpannerPartition, row: SpannerPartition) -> bool:
        return row.owner == self._owner and row.fencing == owned.fencing


@dataclass
class Script:
    """What each partition of a stream holds; gates keep a partition's end back; breaks end queries in the middle."""

    records: Mapping[PartitionToken, Sequence[StreamRecord]]
    gates: dict[PartitionToken, asyncio.Event] = field(default_factory=dict)
    breaks: dict[PartitionToken, list[int]] = field(default_factory=dict)
    """After how many records each next query of a partition breaks off with a TransientError."""
    ends_early: dict[PartitionToken, int] = field(default_factory=dict)
    """How many more queries of a partition end without an error before its child records."""
    queries: list[SpannerStreamQuery] = field(default_factory=list)
    open_queries: set[PartitionToken] = field(default_factory=set)
    together: int = 1
    """How many records a query yields at a time."""


class FakeChangeStream:
    """A change stream that follows a script. Like the real one: inclusive at both ends, and live without an end."""

    def __init__(self, script: Script, life: Life | None = None) -> None:
        self._script = script
        self._life = life or Life()

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a partition from the start asked for, some at a time."""
        some: list[StreamRecord] = []
        async with aclosing(self._one_by_one(query)) as found:
            async for record in found:
                some += [] if record is None else [record]
                if some and (record is None or len(some) == self._script.together):
                    yield some
                    some = []

    async def _one_by_one(self, query: SpannerStreamQuery) -> AsyncGenerator[StreamRecord | None, None]:
        """Yield records, and None where it may take a while to the next, or there is none."""
        self._life.step()
        self._script.queries.append(query)
        if query.token in self._script.open_queries:
            raise AssertionError(f"{query.token} is read twice at a time")
        self._script.open_queries.add(query.token)
        breaks = self._script.breaks.get(query.token)
        left = breaks.pop(0) if breaks else None
        try:
            for record in self._script.records[query.token]:
                await asyncio.sleep(0)
                if isinstance(record, ChildPartitionsRecord) and query.token in self._script.gates:
                    yield None
                    await self._script.gates[query.token].wait()
                if not _within(record, query):
                    continue
                if isinstance(record, ChildPartitionsRecord) and self._script.ends_early.get(query.token):
                    self._script.ends_early[query.token] -= 1
                    break
                self._life.step()
                if left == 0:
                    yield None
                    raise TransientError("UNAVAILABLE")
                left = None if left is None else left - 1
                yield record
            else:
                yield None
                await self._wait_at_the_end(query, left)
            yield None
        finally:
            self._script.open_queries.discard(query.token)

    async def _wait_at_the_end(self, query: SpannerStreamQuery, left: int | None) -> None:
        ends = any(
            isinstance(r, ChildPartitionsRecord) and _within(r, query) for r in self._script.records[query.token]
        )
        if left is not None:
            raise TransientError("UNAVAILABLE")
        if not ends and query.end is None:
            await asyncio.Event().wait()


async def one_by_one(
    portions: AsyncGenerator[Sequence[StreamRecord], None],
) -> AsyncGenerator[StreamRecord, None]:
    """Yield the records of a query one by one; closing it ends the query."""
    async with aclosing(portions):
        async for records in portions:
            for record in records:
                yield record


def _within(record: StreamRecord, query: SpannerStreamQuery) -> bool:
    match record:
        case DataChangeRecord():
            time = record.commit_timestamp
        case HeartbeatRecord():
            time = record.timestamp
        case ChildPartitionsRecord():
            return query.end is None or record.start_timestamp <= query.end
    return query.start <= time and (query.end is None or time <= query.end)


@dataclass
class Topic:
    """What has been published, and in which order; with duplicates."""

    changes: list[Change] = field(default_factory=list)
    headers: list[Header] = field(default_factory=list)
    batches: list[tuple[Header, Sequence[Change]]] = field(default_factory=list)

    def sequences(self) -> list[str]:
        """Return the change sequence numbers, in the order in which they were published."""
        return [change.sequence for change in self.changes]


class FakePublisher:
    """Publishes to a topic in memory, and confirms some turns of the loop later, in any order; or by hand."""

    def __init__(
        self,
        topic: Topic,
        life: Life | None = None,
        *,
        seed: int = 0,
        by_hand: bool = False,
        in_order: bool = False,
        room: int = 100,
    ) -> None:
        self.topic = topic
        self.waiting: list[asyncio.Future[None]] = []
        self.room = room
        self.error: Exception | None = None
        self._life = life or Life()
        self._random = random.Random(seed)
        self._by_hand = by_hand
        self._turns = 1 if in_order else 4
        self._space = asyncio.Event()
        self._closed = False

    async def publish(self, header: Header, changes: Sequence[tuple[str, Change]]) -> "asyncio.Future[None]":
        """Take changes, once there is room; the future resolves when all are confirmed."""
        while len(self.waiting) >= self.room and self.error is None:
            self._space.clear()
            await self._space.wait()
        self._life.step()
        if self.error is not None:
            raise self.error
        if self._closed:
            raise RuntimeError("the publisher is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        taken = [change for _key, change in changes]
        if self._by_hand:
            self._publish(header, taken)
        else:
            self._later(self._random.randrange(self._turns), lambda: self._confirm(header, taken, future))
        return future

    def hurry(self, seconds: float = 0.0) -> None:
        """Let nothing wait longer than it does."""

    async def close(self) -> None:
        """Publish what was taken, and end."""
        self._closed = True
        for _turn in range(10):
            await asyncio.sleep(0)
        self._life.step()

    def confirm(self, future: "asyncio.Future[None]") -> None:
        """Confirm one by hand."""
        self.waiting.remove(future)
        if not future.done():  # its caller may have given up waiting
            future.set_result(None)
        self._space.set()

    def _confirm(self, header: Header, changes: Sequence[Change], future: "asyncio.Future[None]") -> None:
        if self._life.over:
            return
        self._publish(header, changes)
        try:
            self._life.step()  # published, and killed before the confirmation arrived
        except CrashError as error:
            future.set_exception(error)
            return
        self.confirm(future)

    def _publish(self, header: Header, changes: Sequence[Change]) -> None:
        self.topic.headers.append(header)
        self.topic.batches.append((header, changes))
        self.topic.changes.extend(changes)

    def _later(self, turns: int, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if turns == 0:
            loop.call_soon(call)
        else:
            loop.call_soon(lambda: self._later(turns - 1, call))
