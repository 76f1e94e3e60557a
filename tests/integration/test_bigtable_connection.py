"""The connections to Bigtable, against a server that holds its streams open and sees who asks for what."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc
import psutil
import pytest
from google.cloud.bigtable_v2.types import (
    CheckAndMutateRowRequest,
    CheckAndMutateRowResponse,
    ReadChangeStreamRequest,
    ReadChangeStreamResponse,
)

from services.bigtable_reader.adapters.bigtable.connection import (
    BigtableChannels,
    Method,
    Table,
)
from services.bigtable_reader.adapters.stream.change_stream import BigtableChangeStream
from services.bigtable_reader.core.stream.records import (
    BigtableStreamQuery,
    CloseStream,
    KeyRange,
    Microseconds,
    Position,
)
from shared.streams.connections import STREAMS_PER_CONNECTION
from tests.integration.silent_server import serving

pytestmark = pytest.mark.integration

STREAM = Method("ReadChangeStream", ReadChangeStreamRequest.pb(), ReadChangeStreamResponse.pb())
CALL = Method("CheckAndMutateRow", CheckAndMutateRowRequest.pb(), CheckAndMutateRowResponse.pb())
TABLE = Table("projects/p/instances/i", "t", "one-cluster")


class Server(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers each stream once and keeps it open; counts them by connection."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.metadata: list[dict[str, str]] = []
        self.one_ended = asyncio.Event()

    def service(self, handler_call_details: Any) -> Any:
        self.metadata.append(dict(handler_call_details.invocation_metadata))
        if handler_call_details.method == STREAM.path:
            return grpc.unary_stream_rpc_method_handler(
                self._stream, STREAM.request.FromString, STREAM.response.SerializeToString
            )
        return grpc.unary_unary_rpc_method_handler(self._call, CALL.request.FromString, CALL.response.SerializeToString)

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        peer = context.peer()
        self.open[peer] += 1
        try:
            yield STREAM.response(heartbeat={"estimated_low_watermark": {"seconds": 7}})
            await asyncio.Event().wait()
        finally:
            self.open[peer] -= 1
            self.one_ended.set()

    async def _call(self, request: Any, context: Any) -> Any:
        return CALL.response(predicate_matched=request.row_key == b"k")


@asynccontextmanager
async def connected(handler: Server) -> AsyncIterator[BigtableChannels]:
    async with serving(handler) as address:
        channels = BigtableChannels(address)
        try:
            yield channels
        finally:
            await channels.close()


class Closing(Server):
    """Closes each stream, and ends it some time after; counts those that the client does not leave to it."""

    cancelled = 0

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        close = STREAM.response()
        close.close_stream.status.code = 11
        named = close.close_stream.continuation_tokens.add(token="next")
        named.partition.CopyFrom(request.partition)
        close.close_stream.new_partitions.add().CopyFrom(request.partition)
        yield close
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_a_stream_that_the_server_closes_is_ended_by_the_server_and_not_cancelled() -> None:
    server = Closing()
    async with connected(server) as channels:
        stream = BigtableChangeStream(channels, TABLE)
        query = BigtableStreamQuery(KeyRange(b"", b"m"), Position(start=Microseconds(1)), None, 1_000)
        for _split in range(5):
            async with asyncio.timeout(30), aclosing(stream.read(query)) as portions:
                async for records in portions:
                    assert isinstance(records[-1], CloseStream)
                    break
        assert server.cancelled == 0


async def opened(channels: BigtableChannels, streams: int) -> list[AsyncGenerator[Sequence[bytes], None]]:
    """Open streams, and wait for each one's first answer."""
    found = [channels.portions(STREAM, TABLE, STREAM.request(), timeout=None) for _ in range(streams)]
    async with asyncio.timeout(30):
        portions = await asyncio.gather(*(anext(stream) for stream in found))
    answers = [STREAM.response.FromString(answer) for portion in portions for answer in portion]
    assert [answer.heartbeat.estimated_low_watermark.seconds for answer in answers] == [7] * streams
    return found


async def test_streams_beyond_what_a_connection_carries_get_another_one() -> None:
    server = Server()
    async with connected(server) as channels:
        streams = await opened(channels, 2 * STREAMS_PER_CONNECTION + 1)
        assert sorted(server.open.values()) == [4, STREAMS_PER_CONNECTION - 3, STREAMS_PER_CONNECTION]
        for stream in streams:
            await stream.aclose()
        again = await opened(channels, STREAMS_PER_CONNECTION)  # the connections are used again
        assert len(server.open) == 3
        for stream in again:
            await stream.aclose()


async def test_closing_a_stream_ends_the_call_on_the_server() -> None:
    server = Server()
    async with connected(server) as channels:
        (stream,) = await opened(channels, 1)
        assert server.open.total() == 1
        await stream.aclose()
        async with asyncio.timeout(10):
            await server.one_ended.wait()
        assert server.open.total() == 0


async def test_streams_that_were_closed_leave_neither_threads_nor_memory_behind() -> None:
    async with connected(Server()) as channels:
        process = psutil.Process()
        before = 0
        for number in range(500):
            if number == 100:  # what is kept once is kept by now
                before = process.memory_info().rss
            (stream,) = await opened(channels, 1)
            await stream.aclose()
        assert process.memory_info().rss - before < 400 * 10_000  # gRPC would keep twice as much, see _drain
        assert not [thread for thread in threading.enumerate() if thread.name == STREAM.name]


async def test_each_call_names_the_table_and_profile_it_is_for() -> None:
    server = Server()
    async with connected(server) as channels:
        answer = await channels.call(CALL, TABLE, CALL.request(row_key=b"k"))
        assert answer.predicate_matched
        async with aclosing(channels.stream(STREAM, TABLE, STREAM.request())) as stream:
            await anext(stream)
        for metadata in server.metadata:
            assert parse_qs(metadata["x-goog-request-params"]) == {
                "table_name": ["projects/p/instances/i/tables/t"],
                "app_profile_id": ["one-cluster"],
            }
        assert len(server.metadata) == 2


async def test_credentials_are_looked_up_once_for_all_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.json"
    named = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "t"}
    file.write_text(json.dumps(named | {"quota_project_id": "p"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    channels = BigtableChannels(None)
    file.unlink()
    try:
        assert channels.admin is not None  # one more connection, where there is nothing left to look up
    finally:
        await channels.close()
