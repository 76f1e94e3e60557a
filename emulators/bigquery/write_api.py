"""The gRPC server of google.cloud.bigquery.storage.v1.BigQueryWrite: connections in, answers out, in order.

The message classes are the published ones, used raw (without proto-plus), which keeps a request of ten thousand rows
at a few milliseconds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import grpc
import structlog

from emulators.bigquery.append_errors import AppendRefusedError
from emulators.bigquery.append_rows import (
    Connection,
    parent_table,
    parse_request,
    stream_resource,
    table_of,
    write_stream,
)
from emulators.bigquery.errors import ApiError
from emulators.bigquery.faults import Counters, Faults
from emulators.bigquery.protocol import (
    AppendRowsResponse,
    BatchCommitRequest,
    BatchCommitResponse,
    CreateWriteStreamRequest,
    FinalizeWriteStreamRequest,
    FinalizeWriteStreamResponse,
    FlushRowsRequest,
    FlushRowsResponse,
    GetWriteStreamRequest,
    WriteStream,
)
from emulators.bigquery.read_api import read_handler
from emulators.bigquery.routing import AppendRouting, check_routing, is_sent
from emulators.bigquery.throughput import Throughput
from emulators.bigquery.warehouse import Warehouse
from emulators.bigquery.write_streams import WriteStreams

_SERVICE: Final = "google.cloud.bigquery.storage.v1.BigQueryWrite"
_MESSAGE_BYTES: Final = 64_000_000  # far above the API's limit, so that it is the API that refuses
_DETAILS: Final = "grpc-status-details-bin"

log = structlog.get_logger()


def write_server(warehouse: Warehouse, faults: Faults, counters: Counters, throughput: Throughput) -> grpc.aio.Server:
    """Return the server, without a port and not started. It serves reads, too: BigQuery has both at one address."""
    api = _WriteApi(warehouse, faults, counters, throughput)
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", _MESSAGE_BYTES), ("grpc.so_reuseport", 0)],
    )
    methods = {
        "AppendRows": grpc.stream_stream_rpc_method_handler(
            api.append_rows,
            request_deserializer=None,  # bytes: parsed off the event loop
            response_serializer=AppendRowsResponse.SerializeToString,
        ),
        **{
            name: grpc.unary_unary_rpc_method_handler(
                api.answering(field, call),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
            for name, request, response, field, call in (
                ("GetWriteStream", GetWriteStreamRequest, WriteStream, "name", api.get_write_stream),
                ("CreateWriteStream", CreateWriteStreamRequest, WriteStream, "parent", api.create_write_stream),
                ("FinalizeWriteStream", FinalizeWriteStreamRequest, FinalizeWriteStreamResponse, "name", api.finalize),
                ("FlushRows", FlushRowsRequest, FlushRowsResponse, "write_stream", api.flush),
                ("BatchCommitWriteStreams", BatchCommitRequest, BatchCommitResponse, "parent", api.commit),
            )
        },
    }
    served = grpc.method_handlers_generic_handler(_SERVICE, methods)
    server.add_generic_rpc_handlers((served, read_handler(warehouse), _Unserved()))
    return server


class _Unserved(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # a generic class only for checkers
    """Refuses every call that no other handler takes, and names it."""

    def service(self, handler_call_details: Any) -> Any:
        async def refuse(_requests: Any, context: Any) -> None:
            method = handler_call_details.method.removeprefix("/")
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"This stand-in does not serve {method}")

        return grpc.stream_stream_rpc_method_handler(refuse)


class _WriteApi:
    def __init__(self, warehouse: Warehouse, faults: Faults, counters: Counters, throughput: Throughput) -> None:
        self._warehouse = warehouse
        self._throughput = throughput
        self._faults = faults
        self._counters = counters
        self._streams = WriteStreams(warehouse)
        self._open = 0

    async def append_rows(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        self._counters.count(connections_opened=1, connections_open=1)
        self._open += 1
        try:
            await self._serve(context)
        finally:
            self._open -= 1
            self._counters.count(connections_open=-1)

    def get_write_stream(self, request: Any) -> Any:
        return write_stream(self._warehouse, self._streams, request)

    def create_write_stream(self, request: Any) -> Any:
        return stream_resource(self._streams.create(parent_table(request.parent), request.write_stream.type_))

    def finalize(self, request: Any) -> Any:
        return FinalizeWriteStreamResponse(row_count=self._streams.finalize(request.name))

    def flush(self, request: Any) -> Any:
        return FlushRowsResponse(offset=self._streams.flush(request.write_stream, request.offset.value))

    def commit(self, request: Any) -> Any:
        errors = self._streams.commit(parent_table(request.parent), request.write_streams)
        answer = BatchCommitResponse(stream_errors=errors)
        if not errors:
            answer.commit_time.FromMicroseconds(self._warehouse.now())
        return answer

    def answering(self, routed: str, call: Callable[[Any], Any]) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
        """Return the handler of a call that may wait for locks; a refusal ends it with its status.

        ``routed``: the field of the request that its routing header must repeat.
        """

        async def answer(request: Any, context: Any) -> Any:
            try:
                self._meet_unrouted(context)
                check_routing(context.invocation_metadata(), routed, getattr(request, routed))
                return await asyncio.to_thread(call, request)
            except AppendRefusedError as refused:
                await _close(context, refused)
            except ApiError as error:
                await context.abort(error.grpc_code, error.message)

        return answer

    async def _serve(self, context: Any) -> None:
        try:
            routing = AppendRouting(context.invocation_metadata())
            self._meet_unrouted(context)
            connection = Connection(self._warehouse, self._streams, routing)
            self._check_quota()
            while True:
                data = await self._next_request(context)
                if data is grpc.aio.EOF:  # type: ignore[attr-defined]
                    return
                await context.write(await self._answer(connection, data))
        except AppendRefusedError as refused:
            await _close(context, refused)

    def _check_quota(self) -> None:
        # BigQuery, "Storage Write API best practices", section "Connection pool management": beyond the project's
        # quota of concurrent connections AppendRows fails.
        limit = self._faults.connections
        if limit is not None and self._open > limit:
            raise AppendRefusedError(
                f"Exceeds quota limit subject: concurrent connections, limit {limit}",
                code=grpc.StatusCode.RESOURCE_EXHAUSTED,
                closes=True,
            )

    async def _next_request(self, context: Any) -> Any:
        idle_seconds = self._faults.idle_seconds
        try:
            return await asyncio.wait_for(context.read(), idle_seconds)
        except TimeoutError:
            raise AppendRefusedError(
                f"Closing the stream because it has been inactive for {idle_seconds:g} seconds.",
                code=grpc.StatusCode.ABORTED,
                closes=True,
            ) from None

    async def _answer(self, connection: Connection, data: bytes) -> Any:
        """Return the answer to one request; AppendRefusedError where the stream is to be closed."""
        table = ""
        try:
            request = await asyncio.to_thread(parse_request, data)
            table = _dotted(request.write_stream or connection.stream())
            self._throughput.check(request.write_stream or connection.stream(), len(data))
            await self._faults.meet("before", table, data)
            answer = await asyncio.to_thread(connection.append, request, len(data))
            rows = len(request.proto_rows.rows.serialized_rows)
            self._counters.count_append(table, rows, len(data))
            await self._faults.meet("after", table, data)
        except AppendRefusedError as refused:
            self._counters.count_refusal(table)
            log.info("append_refused", table=table, status=refused.code.name, rows=len(refused.row_errors))
            if refused.closes:
                raise
            return refused.response(connection.stream())
        return answer

    def _meet_unrouted(self, context: Any) -> None:
        if not is_sent(context.invocation_metadata()):
            self._faults.meet_unrouted()


async def _close(context: Any, refused: AppendRefusedError) -> None:
    context.set_trailing_metadata(((_DETAILS, refused.status().SerializeToString()),))
    await context.abort(refused.code, refused.message)


def _dotted(stream: str) -> str:
    try:
        name = table_of(stream)
    except AppendRefusedError:
        return ""
    return f"{name.project}.{name.dataset}.{name.table}"
