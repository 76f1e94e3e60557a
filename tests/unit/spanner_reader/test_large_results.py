"""What is as large as the customer's schema may take long; what is small may not. In virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.api_core.exceptions import DeadlineExceeded
from google.cloud.spanner_v1 import ExecuteSqlRequest, PartialResultSet, Session

from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.snapshot.snapshot_table import SpannerSnapshotStore
from services.spanner_reader.adapters.spanner.connection import (
    LARGE_TIMEOUT,
    TIMEOUT,
    SpannerChannels,
    SpannerDatabaseClient,
    row,
)
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import parse_timestamp

NOW = "2026-11-21T09:00:00Z"
ROWS: Sequence[tuple[str, Sequence[Sequence[Any]]]] = [
    ("SELECT `ALL`", [[True]]),
    ("partitions_snapshots", [[None, NOW]]),
]
"""What the rows are of a query that has these words; of any other there are none."""


class SlowSpanner:
    """Google's client of Spanner: each response of a query comes so many seconds after the one before it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def create_session(self, **_call: Any) -> Session:
        return Session(name="sessions/s", multiplexed=True)

    async def rollback(self, request: Any, **_call: Any) -> None: ...

    async def execute_streaming_sql(self, request: ExecuteSqlRequest, **call: Any) -> "SlowAnswer":
        return SlowAnswer(self._seconds, call["timeout"], next((rows for sql, rows in ROWS if sql in request.sql), ()))


class SlowAnswer:
    """Two responses: what the rows are called, and the rows. The call's timeout is for both of them."""

    def __init__(self, seconds: float, timeout: float | None, rows: Sequence[Sequence[Any]]) -> None:
        self._seconds, self._timeout, self._rows = seconds, timeout, rows

    async def __aiter__(self) -> AsyncIterator[PartialResultSet]:
        fields = [{"name": f"c{place}"} for place in range(len(self._rows[0]) if self._rows else 1)]
        first = PartialResultSet.pb(PartialResultSet(metadata={"row_type": {"fields": fields}}))
        first.metadata.transaction.id = b"t"
        first.metadata.transaction.read_timestamp.FromNanoseconds(parse_timestamp(NOW))
        second = PartialResultSet.pb(PartialResultSet())
        for one in self._rows:
            second.values.extend(row(one).values)
        for number, response in enumerate((first, second), 1):
            await asyncio.sleep(self._seconds)
            if self._timeout is not None and number * self._seconds > self._timeout:
                raise DeadlineExceeded("Deadline Exceeded")  # type: ignore[no-untyped-call]
            yield PartialResultSet(response)

    def cancel(self) -> None:
        """Be over."""


Read = Callable[[SpannerDatabaseClient], Awaitable[object]]


def snapshots(database: SpannerDatabaseClient) -> SpannerSnapshotStore:
    return SpannerSnapshotStore(database, "partitions", owner="reader", lease=timedelta(seconds=30))


LARGE: Sequence[Read] = (
    lambda database: SpannerCatalog(database, "s").inspect(),
    lambda database: SpannerShapeStore(database, "partitions").read(),
    lambda database: SpannerShapeStore(database, "partitions").resync_requests(),
    lambda database: SpannerShapeStore(database, "partitions").topic_lost(parse_timestamp(NOW), parse_timestamp(NOW)),
    lambda database: snapshots(database).survey(),
)
SMALL: Sequence[Read] = (
    lambda database: SpannerCatalog(database, "s").definition(),
    lambda database: snapshots(database).now(),
)


async def ask(read: Read, seconds: float) -> None:
    channels = SimpleNamespace(client=SlowSpanner(seconds), streaming=None, admin=None)
    await read(SpannerDatabaseClient("projects/p/instances/i/databases/d", cast("SpannerChannels", channels)))


@pytest.mark.parametrize("read", LARGE)
async def test_what_is_as_large_as_the_schema_may_take_a_minute_for_each_response(read: Read) -> None:
    await ask(read, LARGE_TIMEOUT - 1)
    with pytest.raises(TransientError, match=r"query in projects/p/.*/d: no response within 60 s"):
        await ask(read, LARGE_TIMEOUT + 1)


@pytest.mark.parametrize("read", SMALL)
async def test_all_responses_of_what_is_small_share_the_time_of_one_call(read: Read) -> None:
    await ask(read, TIMEOUT / 2 - 0.1)
    with pytest.raises(TransientError, match="Deadline Exceeded"):
        await ask(read, TIMEOUT / 2 + 0.1)
