"""A change stream of a service that breaks its own rules, or is slow, against a server that does so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.cloud.bigtable_v2.types import (
    GenerateInitialChangeStreamPartitionsResponse,
    ReadChangeStreamResponse,
)
from structlog.testing import capture_logs

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.stream.change_stream import BigtableChangeStream
from services.bigtable_reader.core.stream.records import (
    ALL_KEYS,
    BigtableStreamQuery,
    Child,
    CloseStream,
    Heartbeat,
    KeyRange,
    Microseconds,
    Position,
    RangeToken,
    StreamRecord,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.streams import connections
from tests.integration.silent_server import serving

pytestmark = pytest.mark.integration

PARTITION: Any = GenerateInitialChangeStreamPartitionsResponse.pb()
RECORD: Any = ReadChangeStreamResponse.pb()
TABLE = Table("projects/p/instances/i", "t", "one-cluster")
QUERY = BigtableStreamQuery(ALL_KEYS, Position(start=Microseconds(1)), None, 100)


@dataclass
class Server(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers with what it is told to, a while after it was asked."""

    partitions: Sequence[Any] = ()
    records: Sequence[Any] = ()
    after: float = 0.0
    asked: list[str] = field(default_factory=list)

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        self.asked.append(method)
        answers = self.records if method == "ReadChangeStream" else self.partitions

        async def answer(_request: Any, _context: Any) -> AsyncIterator[Any]:
            await asyncio.sleep(self.after)
            for one in answers:
                yield one

        return grpc.unary_stream_rpc_method_handler(answer, bytes, lambda one: one.SerializeToString())


def run(server: Server, scenario: Callable[[BigtableChannels], Awaitable[None]]) -> None:
    async def go() -> None:
        async with serving(server) as address:
            channels = BigtableChannels(address)
            try:
                await scenario(channels)
            finally:
                await channels.close()

    asyncio.run(go())


async def read(channels: BigtableChannels) -> list[StreamRecord]:
    """Read until the stream ends, or has given a heartbeat."""
    found: list[StreamRecord] = []
    async with aclosing(BigtableChangeStream(channels, TABLE).read(QUERY)) as portions:
        async for records in portions:
            found += records
            if any(isinstance(record, Heartbeat) for record in records):
                break
    return found


def row_range(start: bytes, end: bytes) -> Any:
    return {"row_range": {"start_key_closed": start, "end_key_open": end}}


@pytest.mark.parametrize(
    ("partitions", "why"),
    [
        ([PARTITION(partition=row_range(b"b", b"a"))], "a range without keys"),
        ([PARTITION(partition=row_range(b"a", b"a"))], "a range without keys"),
        ([], "none was named"),
    ],
)
def test_partitions_that_cannot_be_are_asked_for_again(partitions: Sequence[Any], why: str) -> None:
    async def scenario(channels: BigtableChannels) -> None:
        with pytest.raises(TransientError, match=why):
            await BigtableChangeStream(channels, TABLE).initial_partitions()

    run(Server(partitions=partitions), scenario)


def test_what_came_before_a_broken_record_is_read_though_it_came_with_it() -> None:
    beat = RECORD(heartbeat={"continuation_token": {"token": "t"}, "estimated_low_watermark": {"seconds": 7}})
    found: list[StreamRecord] = []

    async def read_all(channels: BigtableChannels) -> None:
        async with aclosing(BigtableChangeStream(channels, TABLE).read(QUERY)) as portions:
            async for records in portions:
                assert records
                found.extend(records)

    async def scenario(channels: BigtableChannels) -> None:
        with pytest.raises(TransientError, match="continuation of nothing"):
            await read_all(channels)

    run(Server(records=[beat, beat, RECORD(data_change={"type_": 3}), beat]), scenario)
    assert found == [Heartbeat("t", Microseconds(7_000_000))] * 2


@pytest.mark.parametrize(
    ("code", "kind", "fix"),
    [(11, TransientError, "older than the"), (9, MisconfiguredError, "doctor")],
)
def test_a_stream_that_is_closed_without_a_child_says_what_to_check(code: int, kind: type[Exception], fix: str) -> None:
    closing = RECORD(close_stream={"status": {"code": code, "message": "words of Bigtable"}})

    async def scenario(channels: BigtableChannels) -> None:
        with pytest.raises(kind, match="words of Bigtable") as found:
            await read(channels)
        assert fix in (getattr(found.value, "fix", "") or str(found.value))

    run(Server(records=[closing]), scenario)


def test_tokens_and_partitions_of_different_numbers_are_read_on_with_a_warning() -> None:
    token = {"partition": row_range(b"a", b"b"), "token": "t"}
    partitions = [row_range(b"a", b"b"), row_range(b"b", b"c")]
    closing = {"status": {"code": 11}, "continuation_tokens": [token], "new_partitions": partitions}
    found: list[StreamRecord] = []

    async def scenario(channels: BigtableChannels) -> None:
        found.extend(await read(channels))

    with capture_logs() as logs:
        run(Server(records=[RECORD(close_stream=closing)]), scenario)

    (record,) = found
    assert isinstance(record, CloseStream)
    assert record.children == (Child(RangeToken(KeyRange(b"a", b"b"), "t"), KeyRange(b"a", b"b")),)
    assert [(line["event"], line["log_level"], line["amiss"]) for line in logs] == [
        ("stream_closed_inconsistently", "warning", "closed with 1 tokens for 2 new partitions")
    ]


def test_a_service_that_always_needs_long_for_its_first_message_is_read_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_OPENING_SECONDS", 0.2)
    beat = RECORD(
        heartbeat={"continuation_token": {"token": "t"}, "estimated_low_watermark": {"seconds": 7}},
    )
    server = Server(records=[beat], after=2.0)

    async def scenario(channels: BigtableChannels) -> None:
        for _attempt in range(8):
            try:
                assert await read(channels) == [Heartbeat("t", Microseconds(7_000_000))]
            except TransientError:
                continue
            assert len(server.asked) > 1
            assert not channels.silences  # forgotten once it speaks
            return
        raise AssertionError("never read")

    run(server, scenario)
