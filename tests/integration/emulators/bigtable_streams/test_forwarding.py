"""What the front passes through arrives as it was sent, both ways; a write is recorded though its client has left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import grpc
import pytest
from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_v2 import types as data_types

from emulators.bigtable_streams import handlers
from emulators.bigtable_streams.mutations import check_mutations
from emulators.bigtable_streams.refusals import RefusedError
from emulators.bigtable_streams.server import serving
from tests.integration.bigtable_front import ReadChangeStreamResponse, set_cell

pytestmark = pytest.mark.integration

METHOD: Final = "/some.Service/Method"
DATA: Final = "/google.bigtable.v2.Bigtable/"
TABLE: Final = "projects/p/instances/i/tables/t"


class Behind(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the published types only
    """A scripted server behind the front, instead of the emulator."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.seconds: float | None = None
        self.started, self.cancelled, self.go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method in (METHOD, f"{DATA}ReadRows"):
            return grpc.stream_stream_rpc_method_handler(self._answer)
        return grpc.unary_unary_rpc_method_handler(self._api)

    async def _answer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.metadata = dict(context.invocation_metadata())
        self.seconds = context.time_remaining()
        await context.send_initial_metadata((("initial", "1"),))
        async for request in requests:
            match request:
                case b"wait":
                    self.started.set()
                    try:
                        await asyncio.Event().wait()  # until the call is cancelled
                    finally:
                        self.cancelled.set()
                case b"fail":
                    context.set_trailing_metadata((("trailing-bin", b"\0\1"),))
                    await context.abort(grpc.StatusCode.DATA_LOSS, "as it was said")
                case _:
                    yield request + b"!"
        context.set_trailing_metadata((("trailing", "2"),))

    async def _api(self, request: bytes, context: Any) -> bytes:
        if b"wait" in request:
            self.started.set()
            await self.go_on.wait()
            return b""
        table = admin_types.Table.pb()(name=TABLE)
        table.column_families["f"].SetInParent()
        return bytes(table.SerializeToString())


@pytest.fixture
@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Behind, grpc.aio.Channel]]:
    behind, server = Behind(), grpc.aio.server()
    server.add_generic_rpc_handlers((behind,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            serving(0, f"127.0.0.1:{port}") as ports,
            grpc.aio.insecure_channel(f"127.0.0.1:{ports.port}") as channel,
        ):
            async with asyncio.timeout(30):
                yield behind, channel
    finally:
        await server.stop(None)


async def sent(*requests: bytes) -> AsyncIterator[bytes]:
    for request in requests:
        yield request


async def test_metadata_deadline_and_messages_of_any_number_pass_both_ways(
    scripted: tuple[Behind, grpc.aio.Channel],
) -> None:
    behind, channel = scripted
    metadata = (("x-goog-request-params", "table_name=t"), ("odd-bin", b"\xff"))
    call: Any = channel.stream_stream(METHOD, None, None)(sent(b"a", b"b"), metadata=metadata, timeout=20)
    assert [answer async for answer in call] == [b"a!", b"b!"]
    assert dict(await call.initial_metadata())["initial"] == "1"
    assert dict(await call.trailing_metadata())["trailing"] == "2"
    assert behind.metadata["x-goog-request-params"] == "table_name=t"
    assert behind.metadata["odd-bin"] == b"\xff"
    assert behind.seconds is not None
    assert 0 < behind.seconds <= 20.2  # gRPC rounds a timeout up on each of the two ways
    one: Any = channel.unary_unary(METHOD, None, None)
    assert await one(b"a") == b"a!"


async def test_a_status_passes_with_its_words_and_trailing_metadata(scripted: tuple[Behind, grpc.aio.Channel]) -> None:
    _behind, channel = scripted
    one: Any = channel.unary_unary(METHOD, None, None)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await one(b"fail")
    assert raised.value.code() is grpc.StatusCode.DATA_LOSS
    assert raised.value.details() == "as it was said"
    trailing: Any = raised.value.trailing_metadata()
    assert dict(trailing)["trailing-bin"] == b"\0\1"


async def test_a_cancelled_call_is_cancelled_at_the_emulator_too(scripted: tuple[Behind, grpc.aio.Channel]) -> None:
    behind, channel = scripted
    one: Any = channel.unary_unary(METHOD, None, None)
    call = one(b"wait")
    await behind.started.wait()
    call.cancel()
    await behind.cancelled.wait()


async def test_a_write_is_recorded_though_its_client_left_while_it_was_applied(
    scripted: tuple[Behind, grpc.aio.Channel],
) -> None:
    behind, channel = scripted
    create: Any = channel.unary_unary("/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable", None, None)
    wanted = admin_types.CreateTableRequest.pb()(parent="projects/p/instances/i", table_id="t")
    wanted.table.column_families["f"].SetInParent()
    wanted.table.change_stream_config.retention_period.FromTimedelta(timedelta(days=1))
    await create(wanted.SerializeToString())
    read: Any = channel.unary_stream(f"{DATA}ReadChangeStream", None, ReadChangeStreamResponse.FromString)
    asked = data_types.ReadChangeStreamRequest.pb()(table_name=TABLE)
    asked.heartbeat_duration.FromTimedelta(timedelta(milliseconds=20))
    stream = aiter(read(asked.SerializeToString()))
    assert (await anext(stream)).HasField("heartbeat"), "it is open before the write"
    write: Any = channel.unary_unary(f"{DATA}MutateRow", None, None)
    request = data_types.MutateRowRequest.pb()(table_name=TABLE, row_key=b"wait")
    request.mutations.append(set_cell("f", b"q", b"v", 1_000))
    call = write(request.SerializeToString())
    await behind.started.wait()
    call.cancel()
    behind.go_on.set()
    async for message in stream:
        if message.HasField("data_change"):
            assert message.data_change.row_key == b"wait"
            return


async def test_rows_come_many_in_a_message_as_bigtable_sends_them(scripted: tuple[Behind, grpc.aio.Channel]) -> None:
    """The emulator sends one row in each."""
    _behind, channel = scripted
    read_rows: Any = channel.stream_stream(f"{DATA}ReadRows", None, None)
    call = read_rows(sent(b"1", b"2", b"3"))
    assert [answer async for answer in call] == [b"1!2!3!"]
    assert dict(await call.trailing_metadata())["trailing"] == "2"
    large = b"x" * 300_000
    assert [len(answer) async for answer in read_rows(sent(large, large, b"3"))] == [600_002, 2]


async def test_rows_that_came_before_a_reading_broke_off_come_too(scripted: tuple[Behind, grpc.aio.Channel]) -> None:
    _behind, channel = scripted
    read_rows: Any = channel.stream_stream(f"{DATA}ReadRows", None, None)
    answers = aiter(read_rows(sent(b"1", b"2", b"fail")))
    assert await anext(answers) == b"1!2!"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(answers)
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS


async def test_a_row_that_is_too_large_cannot_be_read_and_those_before_it_can(
    scripted: tuple[Behind, grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    _behind, channel = scripted
    monkeypatch.setattr(handlers, "_ROW_BYTES", 1_000)
    read_rows: Any = channel.stream_stream(f"{DATA}ReadRows", None, None)
    answers = aiter(read_rows(sent(b"1", b"x" * 999, b"x" * 1_000, b"2")))
    assert len(await anext(answers)) == 1_002
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(answers)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_value_of_more_than_a_hundred_megabytes_is_refused() -> None:
    families = {"f": admin_types.ColumnFamily.pb()()}
    check_mutations([set_cell("f", b"q", b"v" * (100 << 20), 0)], b"row", TABLE, families)
    with pytest.raises(RefusedError) as refused:
        check_mutations([set_cell("f", b"q", b"v" * ((100 << 20) + 1), 0)], b"row", TABLE, families)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
