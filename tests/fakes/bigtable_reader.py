"""In-memory ports of the Bigtable reader: one reader's way to `bigtable_table.py`'s world, which outlives it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from services.bigtable_reader.core.changes.images import Row, TooLargeRow
from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.stream.records import (
    BigtableStreamQuery,
    CloseStream,
    DataChange,
    Heartbeat,
    KeyRange,
    Position,
    StreamRecord,
)
from services.bigtable_reader.ports import PositionLostError, ReadRefusedError, ReadRows, StreamGoneError
from shared.contracts.change_batch import Change, Header
from shared.contracts.dead_letter import DeadLetter
from tests.fakes.bigtable_table import Bigtable, Vector, VirtualClock, resolve
from tests.fakes.life import CrashError, Way

_OUT_OF_RANGE = 11
_TOGETHER = 3
"""Records that may come at the same time."""
_PUBLISHING = 4
"""How many times as long as another call the two halves of publishing may take."""


class FakeChangeStream:
    """The change stream of the model's table."""

    def __init__(self, table: Bigtable, way: Way | None = None) -> None:
        self.table = table
        self.way = way or Way()
        self._clock = VirtualClock()

    async def initial_partitions(self) -> Sequence[KeyRange]:
        """Return the partitions as they are now."""
        await self.way.step()
        return self.table.partitions

    async def read(self, query: BigtableStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a range, some at a time; a CloseStream as soon as the range is not a partition."""
        records: Sequence[StreamRecord] = ()
        try:
            async with aclosing(self._read(query)) as portions:
                async for records in portions:
                    yield records
        except (GeneratorExit, asyncio.CancelledError):
            self.table.cancelled_streams += not (records and isinstance(records[-1], CloseStream))
            raise

    async def _read(self, query: BigtableStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        await self.way.step()
        seen = self._begin(query.range, query.position)
        start = query.position.start
        quiet_since = self._clock.now()
        while True:
            await self.way.step()
            if not self.table.has_stream:
                raise StreamGoneError("made-up", "FAILED_PRECONDITION Change stream is not enabled on the table")
            if query.range not in self.table.partitions:
                token = Vector.of(list(seen.items()))
                children = self.table.children(query.range, token)
                yield [CloseStream(_OUT_OF_RANGE, "split or merged", children)]
                return
            some = [self._next(query.range, seen, start) for _ in range(self.way.chance.randint(1, _TOGETHER))]
            records = [record for record in some if record is not None]
            if records:
                quiet_since = self._clock.now()
                yield records
            elif self._clock.now() - quiet_since >= query.heartbeat_milliseconds * 1_000:
                quiet_since = self._clock.now()
                yield [Heartbeat(Vector.of(list(seen.items())).text(), self.table.low_watermark())]
            elif query.end is not None and query.end < self._clock.now():
                yield [CloseStream(0, "")]
                return
            else:
                await self.table.change(at_most=2.5)

    def _begin(self, range_: KeyRange, position: Position) -> dict[KeyRange, int]:
        if range_ in self.table.lost and position.tokens:
            raise PositionLostError("made-up", "INVALID_ARGUMENT the token is not known")
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
        self.unreadable: set[bytes] = set()
        """Rows that the service refuses to read."""
        self.too_large: set[bytes] = set()
        """Rows that no message can hold."""

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        """Return those of the rows that exist; of some calls, a part of them."""
        await self.way.step()
        if not self.unreadable.isdisjoint(row_keys):
            raise ReadRefusedError("made-up", "FAILED_PRECONDITION: larger than 256 MiB")
        found: dict[bytes, Row] = {}
        asked = row_keys[: self.way.chance.randint(1, 2 * len(row_keys))]
        for row_key in asked:
            if self.way.slowest:
                await asyncio.sleep(self.way.chance.random() * self.way.slowest / len(row_keys))
            if (cells := self.table.row(row_key)) is not None:
                found[row_key] = TooLargeRow(9_000_001) if row_key in self.too_large else cells
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

    def hurry(self, seconds: float = 0.0) -> None:
        """Let nothing wait longer than it does."""

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
        resolve(confirmed)

    async def _on_the_way(self) -> None:
        await asyncio.sleep(self.way.chance.random() * self.way.slowest * _PUBLISHING)
        await self.way.passable()
        self.way.life.step()


class FakeCatalog:
    """What there is to see of a table."""

    def __init__(self, *families: str) -> None:
        self.found = InspectedTable(frozenset(families), frozenset({"c1"}), 7 * 86_400, "c1")

    async def seen(self) -> InspectedTable:
        """Return what its change stream never tells."""
        return self.found


class FakeDeadLetterSink:
    """Keeps dead letters in memory."""

    def __init__(self) -> None:
        self.kept: list[DeadLetter] = []
        self.open = asyncio.Event()
        """While it is not set, the topic takes dead letters and confirms none."""
        self.open.set()

    async def keep(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Return when every dead letter is confirmed."""
        await asyncio.sleep(0)
        await self.open.wait()
        self.kept += dead_letters
