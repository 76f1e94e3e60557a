"""What the tests of the Bigtable reader's PartitionStore are made of, and a connection that breaks when it is told."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

from services.bigtable_reader.adapters.bigtable.connection import TIMEOUT, BigtableChannels, Method, Table
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_table import BigtablePartitionStore, PartitionTimes
from services.bigtable_reader.core.stream.partitions import (
    BigtablePartition,
    BigtablePartitionSurvey,
    BigtableProgress,
    StreamRange,
    overlapping,
    uncovered,
)
from services.bigtable_reader.core.stream.records import Child, KeyRange, Microseconds, Position, RangeToken
from services.bigtable_reader.core.stream.topology import MergeTimeouts
from services.bigtable_reader.ports import KeyRangePartitionStore
from shared.contracts.errors import TransientError

LEASE: Final = timedelta(seconds=10)
MINUTE: Final = 60_000_000
LONG: Final = MergeTimeouts(merge=timedelta(days=1), token=timedelta(days=1))
PARTITION_TABLE: Final = Table("projects/p/instances/i", "millrace_partitions")
ZERO_TIMEOUTS: Final = MergeTimeouts(merge=timedelta(), token=timedelta())


class Open(Protocol):
    """How a test gets an owner's view of the table."""

    def __call__(
        self, owner: str, *, timeouts: MergeTimeouts = LONG, source: str | None = None
    ) -> KeyRangePartitionStore: ...


@dataclass
class Stores:
    """Owners' views of one partition table, and a way to let their leases end."""

    open: Open
    monotonic: list[float] = field(default_factory=lambda: [1_000.0])

    async def holding(self, *ranges: str) -> tuple[KeyRangePartitionStore, KeyRangePartitionStore, BigtablePartition]:
        """Return two owners, of whom one has begun with these ranges, and what it has claimed: the first range."""
        one, two = self.open("one"), self.open("two")
        await begun(one, *ranges)
        (owned,) = await take(one, "a")
        return one, two, owned

    async def let_leases_end(self, *watching: KeyRangePartitionStore) -> None:
        """Let the time of a lease pass, before the eyes of those who watch."""
        for store in watching:
            await store.survey()
        self.monotonic[0] += LEASE.total_seconds() * 1.5
        for store in watching:
            await store.survey()


def span(text: str) -> KeyRange:
    """Return `a-c` as a range; nothing before or behind the dash is the end of all keys."""
    start, end = text.split("-")
    return KeyRange(start.encode(), end.encode())


def child(part: str, partition: str | None = None, named: str | None = None) -> Child:
    """Return a child with a token for a range, of a partition: the range itself unless another is named."""
    return Child(token(part, named), span(partition or part))


def token(part: str, named: str | None = None) -> RangeToken:
    return RangeToken(span(part), named or f"token of {part}")


def tokens(*parts: str) -> Position:
    return Position(tuple(token(part) for part in parts))


_numbers: Final = itertools.count()


def a_stream() -> str:
    """Return the name of a stream that nobody has begun."""
    return f"s{next(_numbers)}"


def a_store(
    channels: BigtableChannels,
    stream: str,
    owner: str,
    monotonic: Sequence[float],
    *,
    timeouts: MergeTimeouts = LONG,
    source: str | None = None,
    topic: str | None = None,
) -> BigtablePartitionStore:
    """Return an owner's view of the partition table in the emulator, and of this clock; streams have a table each."""
    return BigtablePartitionStore(
        PartitionRows(channels, PARTITION_TABLE, stream),
        source=source or f"t of {stream}",
        owner=owner,
        times=PartitionTimes(lease=LEASE, retention=timedelta(days=7), merge=timeouts),
        topic=topic,
        monotonic=lambda: monotonic[0],
    )


async def begun(store: KeyRangePartitionStore, *ranges: str) -> Microseconds:
    """Begin with these ranges now; return when that is."""
    start = (await store.survey()).now
    assert await store.begin([span(one) for one in ranges], start)
    return start


async def whole(store: KeyRangePartitionStore) -> BigtablePartitionSurvey:
    """Survey, and check that the key space is covered, and never twice."""
    survey = await store.survey()
    ranges = [stream_range.range for stream_range in survey.stream_ranges]
    assert uncovered(ranges) == []
    assert overlapping(ranges) == []
    return survey


async def stream_ranges(store: KeyRangePartitionStore) -> list[str]:
    """Return each key range as `range:tokens -> target`; a time is `@`."""
    return [shown(stream_range) for stream_range in (await whole(store)).stream_ranges]


def shown(stream_range: StreamRange) -> str:
    position = stream_range.position
    at = "" if position is None else "@" if position.start is not None else ",".join(t.token for t in position.tokens)
    target = "" if stream_range.target is None else f" -> {_span(stream_range.target)}"
    return f"{_span(stream_range.range)}:{at.replace('token of ', '')}{target}"


def _span(range_: KeyRange) -> str:
    return f"{range_.start.decode()}-{range_.end.decode()}"


async def take(store: KeyRangePartitionStore, *keys: str) -> list[BigtablePartition]:
    """Claim the key ranges that hold these keys, which have to be free; in the order of the keys."""
    survey = await store.survey()
    wanted = [
        stream_range for key in keys for stream_range in survey.stream_ranges if key.encode() in stream_range.range
    ]
    claimed = {partition.stream_range.id: partition for partition in await store.claim(wanted)}
    assert claimed.keys() == {stream_range.id for stream_range in wanted}
    return [claimed[stream_range.id] for stream_range in wanted]


def reached(
    partition: BigtablePartition, *, minutes: int = 0, reserved_up_to: int = 0, at: str | None = None
) -> BigtableProgress:
    """Return progress by so many minutes, up to the token of that name; its upper limit is above the minimum."""
    range_ = partition.stream_range.range
    position = partition.position if at is None else Position((RangeToken(range_, at),))
    watermark = Microseconds(partition.low_watermark + minutes * MINUTE)
    return BigtableProgress(partition, position, watermark, partition.min_version + reserved_up_to)


class KilledError(Exception):
    """The process is dead."""


When = Literal["before", "after", "late"]


class BreakingChannels(BigtableChannels):
    """A connection on which the requests that are numbered in ``breaks`` fail, from 1: unsent, unanswered or late.

    A late request is sent by `deliver`, when its sender has long given it up. With ``kills``, everything behind the
    first that fails does so too: its sender is dead.
    """

    def __init__(self, emulator_host: str, breaks: dict[int, When] | None = None, *, kills: bool = False) -> None:
        super().__init__(emulator_host)
        self.breaks = breaks or {}
        self.requests: list[str] = []
        self.largest_condition = 0
        """In bytes."""
        self._kills = kills
        self._dead = False
        self._late: list[Coroutine[Any, Any, Any]] = []

    def restart_counting(self, breaks: dict[int, When] | None = None) -> None:
        """Number the requests from 1 again."""
        self.requests.clear()
        self.breaks = breaks or {}

    async def deliver(self) -> None:
        """Send what is late."""
        late, self._late = self._late, []
        for request in late:
            await request

    async def call(self, method: Method, table: Table, request: Any, *, timeout: float = TIMEOUT) -> Any:  # noqa: ASYNC109
        when = self._next(method)
        if method.name == "CheckAndMutateRow":
            self.largest_condition = max(self.largest_condition, request.predicate_filter.ByteSize())
        if when == "late":
            self._late.append(super().call(method, table, request, timeout=timeout))
        if when in ("before", "late"):
            raise self._broken()
        answer = await super().call(method, table, request, timeout=timeout)
        if when == "after":
            raise self._broken()
        return answer

    async def stream(
        self,
        method: Method,
        table: Table,
        request: Any,
        *,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> AsyncGenerator[Any, None]:
        if self._next(method) is not None:
            raise self._broken()
        async for answer in super().stream(method, table, request, timeout=timeout):
            yield answer

    def _next(self, method: Method) -> When | None:
        if self._dead:
            raise self._broken()
        self.requests.append(method.name)
        return self.breaks.get(len(self.requests))

    def _broken(self) -> Exception:
        self._dead |= self._kills
        return KilledError() if self._kills else TransientError("UNAVAILABLE")


async def until_known(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call again for as long as nothing is known of its outcome."""
    for _attempt in range(20):
        try:
            return await call()
        except TransientError:
            await asyncio.sleep(0)
    raise AssertionError("never known")
