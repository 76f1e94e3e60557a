"""How urgently Spanner is asked for the stream and rows that load the source, which replicas of it, and as whom."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from google.cloud.spanner_v1 import ExecuteSqlRequest, PartitionReadRequest, ReadRequest, Session

from services.spanner_reader.adapters.snapshot.rows import SpannerRows
from services.spanner_reader.adapters.spanner.connection import (
    CallOptions,
    Priority,
    SpannerChannels,
    SpannerDatabaseClient,
    directed_reads,
)
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.records import ROOT, SpannerStreamQuery
from services.spanner_reader.ports import WatchedTable
from tests.unit.spanner_reader.scripts import COLUMNS, START

DIRECTED: Final = directed_reads([("us-east1", "read_only")])
SINGERS: Final = WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW")


class FakeEmptySpanner:
    """Google's client of Spanner, and the calls that stream: a database without rows, which it would read in parts."""

    def __init__(self) -> None:
        self.streamed: list[Any] = []
        """The requests of calls that stream."""
        self.roles = set[str]()
        """As which sessions were made."""

    async def create_session(self, request: Mapping[str, Any], **_call: Any) -> Session:
        self.roles.add(request["session"].creator_role)
        return Session(name="sessions/s", multiplexed=True)

    async def delete_session(self, **_call: Any) -> None:
        """Forget it."""

    async def begin_transaction(self, _request: Any, **_call: Any) -> Any:
        return SimpleNamespace(id=b"t")

    async def partition_read(self, _request: PartitionReadRequest, **_call: Any) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition_token=token) for token in (b"one", b"two")])

    async def portions(
        self, method: str, request: Any, _metadata: Sequence[tuple[str, str]]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Note a request, and answer that there is nothing."""
        kinds: dict[str, Any] = {"ExecuteStreamingSql": ExecuteSqlRequest, "StreamingRead": ReadRequest}
        self.streamed.append(kinds[method].wrap(request))
        responses: Sequence[Sequence[bytes]] = []
        for some in responses:
            yield some


def database_of(spanner: FakeEmptySpanner, priority: Priority | None = None) -> SpannerDatabaseClient:
    channels = cast("SpannerChannels", SimpleNamespace(client=spanner, admin=None, portions=spanner.portions))
    options = CallOptions(priority=priority, directed_reads=DIRECTED, role="mirror")
    return SpannerDatabaseClient("projects/p/instances/i/databases/d", channels, options=options)


async def all_of(portions: AsyncGenerator[Sequence[Any], None]) -> list[Any]:
    async with aclosing(portions):
        return [one async for some in portions for one in some]


@pytest.mark.parametrize(
    ("priority", "asked"), [("low", "PRIORITY_LOW"), ("medium", "PRIORITY_MEDIUM"), (None, "PRIORITY_UNSPECIFIED")]
)
async def test_the_change_stream_is_read_with_the_priority_and_from_the_replicas_of_the_settings(
    priority: Priority | None, asked: str
) -> None:
    spanner = FakeEmptySpanner()
    stream = SpannerChangeStream(database_of(spanner, priority), "Everything")
    await all_of(stream.read(SpannerStreamQuery(ROOT, START, None, 10_000)))

    (request,) = spanner.streamed
    assert "READ_Everything" in request.sql
    assert request.request_options.priority.name == asked
    assert request.directed_read_options == DIRECTED


@pytest.mark.parametrize("data_boost", [False, True])
async def test_rows_in_key_order_and_under_keys_are_read_with_low_priority_and_from_the_replicas_of_the_settings(
    *, data_boost: bool
) -> None:
    spanner = FakeEmptySpanner()
    rows = SpannerRows(database_of(spanner, "high"), data_boost=data_boost)
    await all_of(rows.read(SINGERS, START, after=None, until=None, in_key_order=True))
    await all_of(rows.read_keys(SINGERS, START, [KeyText("[1]")]))

    assert len(spanner.streamed) == 2
    for request in spanner.streamed:
        assert request.table == "Singers"
        assert request.request_options.priority.name == "PRIORITY_LOW"
        assert request.directed_read_options == DIRECTED


async def test_rows_by_data_boost_are_read_with_low_priority_and_from_the_replicas_of_the_settings() -> None:
    spanner = FakeEmptySpanner()
    await all_of(
        SpannerRows(database_of(spanner, "high"), data_boost=True).read(SINGERS, START, after=None, until=None)
    )

    assert spanner.roles == {"mirror"}
    assert [request.partition_token for request in spanner.streamed] == [b"one", b"two"]
    for request in spanner.streamed:
        assert request.data_boost_enabled
        assert request.request_options.priority.name == "PRIORITY_LOW"
        assert request.directed_read_options == DIRECTED


async def test_where_parts_of_a_table_begin_is_read_with_low_priority_from_the_replicas_of_the_settings() -> None:
    spanner = FakeEmptySpanner()
    assert await SpannerRows(database_of(spanner, "high"), data_boost=False).cuts(SINGERS, START) == []

    assert [request.partition_token for request in spanner.streamed] == [b"one", b"two"]
    assert {request.request_options.priority.name for request in spanner.streamed} == {"PRIORITY_LOW"}
    assert all(request.directed_read_options == DIRECTED for request in spanner.streamed)
