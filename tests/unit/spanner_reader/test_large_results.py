"""What is as large as the customer's schema may take long; what is small may not. In virtual time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import pytest

from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.adapters.snapshot.snapshot_table import SpannerSnapshotStore
from services.spanner_reader.adapters.spanner.connection import (
    LARGE_TIMEOUT,
    TIMEOUT,
    SpannerDatabaseClient,
)
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import parse_timestamp
from tests.fakes.spanner_client import NOW, FakeSpanner, Rows

ROWS: Mapping[str, Rows] = {"SELECT `ALL`": [[True]], "partitions_snapshots": [[None, NOW, None]]}
"""What the rows are of a query that has these words; of any other there are none."""
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
    await read(FakeSpanner(ROWS, seconds=seconds).database())


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
