"""The gRPC service google.cloud.bigquery.storage.v1.BigQueryRead: a table as Arrow, or the refusal of one.

Sources: storage.proto and stream.proto; BigQuery, "Stream table updates with change data capture", section
"Limitations": the Storage Read API is not supported for a table that runs runtime merge jobs because its max_staleness
is too low. It reads the baseline and merges nothing, so it refuses a table with changes that are not applied and older
than max_staleness; the text is the service's, as its users have met it (PostHog/posthog #63731).

A session is one stream, and what it reads is read when the session is made.
"""

import asyncio
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import grpc
import pyarrow as pa
import pyarrow.compute as pc

from emulators.bigquery.append_errors import AppendRefusedError
from emulators.bigquery.catalog import Table, TableName
from emulators.bigquery.column_types import TEXT, UNITS, Column, ColumnType
from emulators.bigquery.decimals import bignumeric_text
from emulators.bigquery.errors import ApiError, invalid, not_found
from emulators.bigquery.protocol import (
    CreateReadSessionRequest,
    DataFormat,
    ReadRowsRequest,
    ReadRowsResponse,
    ReadSession,
    SplitReadStreamRequest,
    SplitReadStreamResponse,
)
from emulators.bigquery.routing import check_routing
from emulators.bigquery.storage import quoted, view
from emulators.bigquery.unserved import not_served
from emulators.bigquery.warehouse import Warehouse

_SERVICE: Final = "google.cloud.bigquery.storage.v1.BigQueryRead"
_TABLE: Final = re.compile(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)")
_NOT_FRESH: Final = (
    "request failed: The table has un-applied upsert data that is not fresh enough to meet table's max_staleness."
)
_KEPT_SESSIONS: Final = 50
_BATCH_ROWS: Final = 10_000
_CODECS: Final = (None, "lz4", "zstd")
"""By the numbers of ArrowSerializationOptions.CompressionCodec (arrow.proto)."""
_LIFETIME: Final = 6 * 3_600_000_000
"""In microseconds (stream.proto: "6 hours after session creation")."""
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOL": pa.bool_(),
    "INT64": pa.int64(),
    "FLOAT64": pa.float64(),
    "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.decimal256(76, 38),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "DATETIME": pa.timestamp("us"),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "GEOGRAPHY": pa.string(),
    "JSON": pa.string(),
}
"""BigQuery, "Use the BigQuery Storage Read API", section "Arrow schema details"."""


def read_handler(warehouse: Warehouse) -> grpc.GenericRpcHandler:  # type: ignore[type-arg]  # generic for checkers only
    """Return the service."""
    api = _ReadApi(warehouse)
    methods = {
        "CreateReadSession": grpc.unary_unary_rpc_method_handler(
            api.create_session,
            request_deserializer=CreateReadSessionRequest.FromString,
            response_serializer=ReadSession.SerializeToString,
        ),
        "ReadRows": grpc.unary_stream_rpc_method_handler(
            api.read_rows,
            request_deserializer=ReadRowsRequest.FromString,
            response_serializer=ReadRowsResponse.SerializeToString,
        ),
        "SplitReadStream": grpc.unary_unary_rpc_method_handler(
            api.split,
            request_deserializer=SplitReadStreamRequest.FromString,
            response_serializer=SplitReadStreamResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler(_SERVICE, methods)


class _ReadApi:
    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._streams: OrderedDict[str, _Stream] = OrderedDict()

    async def create_session(self, request: Any, context: Any) -> Any:
        routed = "read_session.table", request.read_session.table
        return await _answered(context, routed, lambda: self._session(request))

    async def read_rows(self, request: Any, context: Any) -> AsyncIterator[Any]:
        routed = "read_stream", request.read_stream
        stream = await _answered(context, routed, lambda: self._stream(request.read_stream, request.offset))
        for number, batch in enumerate(stream.rows.slice(request.offset).to_batches(max_chunksize=_BATCH_ROWS)):
            response = ReadRowsResponse(row_count=batch.num_rows)
            response.arrow_record_batch.serialized_record_batch = _message(batch, stream.codec)
            response.arrow_record_batch.row_count = batch.num_rows
            if number == 0:
                response.arrow_schema.serialized_schema = batch.schema.serialize().to_pybytes()
            yield response

    async def split(self, request: Any, context: Any) -> Any:
        """Answer with no streams: one that cannot be split (storage.proto)."""
        await _answered(context, ("name", request.name), lambda: self._stream(request.name, 0))
        return SplitReadStreamResponse()

    def _session(self, request: Any) -> Any:
        asked = request.read_session
        codec = _codec(asked)
        table = self._table(asked.table)
        staleness = self._warehouse.staleness
        if staleness.unapplied(table) and not staleness.serves_what_is_applied(table):
            raise invalid(_NOT_FRESH)
        rows = self._read(table, asked.read_options.selected_fields)
        project = request.parent.removeprefix("projects/")
        session = ReadSession(
            name=f"projects/{project}/locations/us/sessions/{uuid.uuid4().hex}",
            data_format=DataFormat.ARROW,
            table=asked.table,
            read_options=asked.read_options,
            estimated_row_count=rows.num_rows,
            estimated_total_bytes_scanned=rows.nbytes,
        )
        session.arrow_schema.serialized_schema = rows.schema.serialize().to_pybytes()
        session.expire_time.FromMicroseconds(self._warehouse.now() + _LIFETIME)
        if rows.num_rows:  # of an empty table there is no stream
            session.streams.add(name=f"{session.name}/streams/0")
            with self._lock:
                self._streams[session.streams[0].name] = _Stream(rows, codec)
                while len(self._streams) > _KEPT_SESSIONS:
                    self._streams.popitem(last=False)
        return session

    def _table(self, path: str) -> Table:
        match = _TABLE.fullmatch(path)
        if match is None:
            raise invalid(f"request failed: Invalid table: {path!r}")
        table = self._warehouse.table(TableName(*match.groups()))
        if table.query:
            raise invalid("request failed: non-table entities cannot be read with the storage API")
        return table

    def _read(self, table: Table, selected: Sequence[str]) -> pa.Table:
        by_name = {column.name.lower(): column for column in table.columns}
        for name in selected:
            if "." in name:
                raise not_served(f"selected_fields of a STRUCT: {name}")
            if name.lower() not in by_name:
                raise invalid(f"request failed: The following selected fields do not exist in the table schema: {name}")
        wanted = {name.lower() for name in selected}
        columns = [column for name, column in by_name.items() if not wanted or name in wanted]
        types = [_read_type(column) for column in columns]
        names = ", ".join(quoted(column.name) for column in columns)
        rows = self._warehouse.query(f"SELECT {names} FROM {view(table)}", [table])
        arrays = [
            _converted(array.combine_chunks(), column).cast(kind)
            for array, column, kind in zip(rows.columns, columns, types, strict=True)
        ]
        schema = pa.schema([(column.name, kind) for column, kind in zip(columns, types, strict=True)])
        return pa.table(arrays, schema=schema)

    def _stream(self, name: str, offset: int) -> "_Stream":
        with self._lock:
            stream = self._streams.get(name)
        if stream is None:
            raise not_found(f"Read stream {name}")
        if offset > stream.rows.num_rows:
            raise invalid(f"request failed: The offset {offset} is beyond the end of the stream")
        return stream


@dataclass(frozen=True)
class _Stream:
    """What a session reads, and how its buffers are compressed."""

    rows: pa.Table
    codec: str | None


def _message(batch: pa.RecordBatch, codec: str | None) -> bytes:
    """Return a record batch as the message that follows the schema's in an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return bytes(messages.read_next_message().serialize())


def _codec(asked: Any) -> str | None:
    """Return how a session's buffers are to be compressed; ApiError where it asks for what is not served."""
    options = asked.read_options
    if asked.data_format != DataFormat.ARROW:
        raise not_served("read sessions in a format other than ARROW")
    if asked.table_modifiers.HasField("snapshot_time"):
        raise not_served("read sessions with snapshot_time")
    for option in ("row_restriction", "sample_percentage", "response_compression_codec"):
        if getattr(options, option):
            raise not_served(f"read sessions with {option}")
    return _CODECS[options.arrow_serialization_options.buffer_compression]


def _read_type(column: Column) -> pa.DataType:
    kind = _ARROW.get(column.type.kind)
    if kind is None:
        raise not_served(f"read sessions of columns of type {column.data_type}: {column.name}")
    return pa.list_(kind) if column.repeated else kind


def _converted(values: pa.Array, column: Column) -> pa.Array:
    if not column.repeated:
        return _scalars(values, column.type)
    elements = _scalars(values.flatten(), column.type)
    return pa.ListArray.from_arrays(values.offsets, elements) if values.offset == 0 else pa.array(values.to_pylist())


def _scalars(values: pa.Array, kind: ColumnType) -> pa.Array:
    """Return values in a type that can be cast to the one that is read; see `column_types` for how they are held."""
    match kind.kind:
        case "BIGNUMERIC":
            units = pc.struct_field(values, UNITS).to_pylist()
            numbers = [None if each is None else Decimal(bignumeric_text(each)) for each in units]
            return pa.array(numbers, _ARROW["BIGNUMERIC"])
        case "GEOGRAPHY":
            return pc.struct_field(values, TEXT)
        case "TIMESTAMP":
            return pc.assume_timezone(values.cast(pa.timestamp("us")), "UTC")
        case "DATETIME":
            return values.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.timestamp("us"))
        case _:
            return values


async def _answered(context: Any, routed: tuple[str, str], call: Callable[[], Any]) -> Any:
    """Return what a call that may wait for locks answers; a refusal ends the call with its status."""
    try:
        check_routing(context.invocation_metadata(), *routed)
        return await asyncio.to_thread(call)
    except AppendRefusedError as refused:
        await context.abort(refused.code, refused.message)
    except ApiError as error:
        await context.abort(error.grpc_code, error.message)
