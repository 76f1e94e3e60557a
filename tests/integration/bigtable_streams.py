"""The change stream through the reader's adapter, from the front before the real emulator."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.stream.change_stream import BigtableChangeStream
from services.bigtable_reader.core.stream.merging import Kept
from services.bigtable_reader.core.stream.records import (
    ALL_KEYS,
    BigtableStreamQuery,
    CloseStream,
    DataChange,
    KeyRange,
    Microseconds,
    Position,
    RangeToken,
    StreamRecord,
)
from tests.integration.bigtable_front import INSTANCE, Front, FrontTable

HEARTBEAT = 100  # milliseconds
TIMEOUT = 30.0
LARGE = 1_000_000
T = TypeVar("T")


@pytest.fixture
def whole_again(front: Front) -> Iterator[Front]:
    """Return the front; how it serves streams, and what goes wrong, ends with the test."""
    yield front
    front.control.serve_streams(
        held=False, seconds_per_change=0.0, value_bytes=LARGE, message_bytes=LARGE, message_chunks=1_000
    )
    front.control.clear_faults()


@asynccontextmanager
async def opened(table: FrontTable, profile: str = "", *, keep: Kept = "all") -> AsyncIterator[BigtableChangeStream]:
    """Open the change stream of a table, through a profile."""
    channels = BigtableChannels(table.front.address)
    try:
        yield BigtableChangeStream(channels, Table(INSTANCE, table.name.rpartition("/")[2], profile), keep=keep)
    finally:
        await channels.close()


def at(start: int) -> Position:
    """Return the position at a time."""
    return Position(start=Microseconds(start))


def after(token: str, key_range: KeyRange = ALL_KEYS) -> Position:
    """Return the position behind a token."""
    return Position((RangeToken(key_range, token),))


def query(position: Position, key_range: KeyRange = ALL_KEYS, end: int | None = None) -> BigtableStreamQuery:
    """Return the query of a range from a position, up to a time."""
    return BigtableStreamQuery(key_range, position, None if end is None else Microseconds(end), HEARTBEAT)


async def read_until(
    stream: BigtableChangeStream, asked: BigtableStreamQuery, enough: Callable[[Sequence[StreamRecord]], bool]
) -> list[StreamRecord]:
    """Return what is read until that is enough, or until the stream ends."""
    found: list[StreamRecord] = []
    async with asyncio.timeout(TIMEOUT), aclosing(stream.read(asked)) as portions:
        async for records in portions:
            found += records
            if enough(found):
                break
    return found


def to_the_end(table: FrontTable, *, keep: Kept = "all") -> list[DataChange]:
    """Return every change that there is by now, of a table of one partition."""

    async def read() -> list[StreamRecord]:
        async with opened(table, keep=keep) as stream:
            end = table.front.control.describe(table.name).now
            return await read_until(stream, query(at(table.since), end=end), lambda _found: False)

    *records, last = run(read())
    assert last == CloseStream(0, last.message if isinstance(last, CloseStream) else "")
    return [record for record in records if isinstance(record, DataChange)]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it, and return what it returns."""
    return asyncio.run(coroutine)


def changes(found: Sequence[StreamRecord]) -> list[DataChange]:
    """Return those of the records that are changes."""
    return [record for record in found if isinstance(record, DataChange)]
