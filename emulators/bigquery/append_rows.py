"""What AppendRows means: one connection's requests, checked in order and accepted whole or not at all.

Source: google/cloud/bigquery/storage/v1/storage.proto; BigQuery, "Introduction to the Storage Write API" and "Stream
table updates with change data capture".
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf import message

from emulators.bigquery.append_errors import (
    AppendRefusedError,
    closing,
)
from emulators.bigquery.catalog import Table, TableName
from emulators.bigquery.column_types import Column
from emulators.bigquery.errors import ApiError
from emulators.bigquery.protocol import (
    TABLE_NOT_FOUND,
    AppendRowsRequest,
    AppendRowsResponse,
    WriteStream,
    WriteStreamView,
)
from emulators.bigquery.routing import AppendRouting
from emulators.bigquery.rows import RowReader
from emulators.bigquery.warehouse import Warehouse
from emulators.bigquery.write_streams import Stream, WriteStreams
from emulators.bigquery.writer_schema import CHANGE_TYPE, read_writer_schema, table_schema

REQUEST_BYTES: Final = 20_000_000
"""The limit of one request (storage.proto, AppendRowsRequest: less than 20 MB; it was 10 MB in earlier versions)."""

_DEFAULT_STREAM: Final = re.compile(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)/(?:streams/)?_default")
_STREAM: Final = re.compile(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)/streams/[^/]+")
_PARENT: Final = re.compile(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)")


def table_of(stream: str) -> TableName:
    """Return the table that a stream writes to; AppendRefusedError for what is no stream's name."""
    match = _DEFAULT_STREAM.fullmatch(stream) or _STREAM.fullmatch(stream)
    if match is None:
        raise closing(f"Invalid stream name: {stream!r}")
    return TableName(*match.groups())


def is_default(stream: str) -> bool:
    """Return whether it is the name of a default stream."""
    return _DEFAULT_STREAM.fullmatch(stream) is not None


def parent_table(parent: str) -> TableName:
    """Return the table of a path like ``projects/p/datasets/d/tables/t``; AppendRefusedError for another path."""
    match = _PARENT.fullmatch(parent)
    if match is None:
        raise closing(f"Invalid parent: {parent!r}")
    return TableName(*match.groups())


def find_table(warehouse: Warehouse, stream: str) -> Table:
    """Return the table of a default stream; AppendRefusedError where it does not exist."""
    try:
        table = warehouse.table_for_writers(table_of(stream))
    except ApiError as error:
        raise closing(
            f"Requested entity was not found. {error} Entity: {stream}",
            error.grpc_code,
            TABLE_NOT_FOUND,
            stream,
        ) from error
    if table.query:
        raise closing(f"Cannot append to {table.name}: it is a view. Entity: {stream}")
    return table


class Connection:
    """One AppendRows connection: which table its next rows go to, by which schema, and whether they are changes."""

    def __init__(self, warehouse: Warehouse, streams: WriteStreams, routing: AppendRouting) -> None:
        self._warehouse = warehouse
        self._streams = streams
        self._routing = routing
        self._stream = ""
        self._named: Stream | None = None
        self._reader: RowReader | None = None
        self._changes: bool | None = None
        self._columns: Sequence[Column] = ()

    def append(self, request: Any, size: int) -> Any:
        """Accept a request's rows and return the answer; AppendRefusedError where none of them were."""
        if size > REQUEST_BYTES:
            raise AppendRefusedError(f"AppendRows request too large: {size} limit {REQUEST_BYTES}")
        self._choose_stream(request)
        reader = self._choose_reader(request)
        answer = AppendRowsResponse(write_stream=self._stream)
        answer.append_result.SetInParent()
        if self._named is not None:
            answer.append_result.offset.value = self._append_to(self._named, reader, request)
        elif request.HasField("offset"):
            raise AppendRefusedError("Offset must not be set for the default stream")
        else:
            rows = reader.read(request.proto_rows.rows.serialized_rows, self._changes, self._warehouse.now())
            self._warehouse.append(reader.schema.table, rows)
            if rows.columns.num_rows:
                self._changes = rows.changes
        current = find_table(self._warehouse, self._stream)
        if current.columns != self._columns:
            self._columns = current.columns
            answer.updated_schema.CopyFrom(table_schema(current))
        return answer

    def stream(self) -> str:
        """Return the stream that the latest request was for."""
        return self._stream

    def _append_to(self, stream: Stream, reader: RowReader, request: Any) -> int:
        """Append to a stream that an application has made; return the offset of the first row."""
        if reader.schema.has(CHANGE_TYPE):
            raise AppendRefusedError(f"{CHANGE_TYPE} is only supported on the default stream. Entity: {stream.name}")
        offset = request.offset.value if request.HasField("offset") else None
        self._streams.check_place(stream, self, offset)
        rows = reader.read(request.proto_rows.rows.serialized_rows, False, self._warehouse.now())
        return self._streams.append(stream, self, rows, offset)

    def _choose_stream(self, request: Any) -> None:
        if request.write_stream and request.write_stream != self._stream:
            if self._named is not None:
                raise closing("Only connections to default streams can change their table")
            self._routing.check(request.write_stream, first=not self._stream)
            find_table(self._warehouse, request.write_stream)
            if not is_default(request.write_stream):
                self._named = _found(self._streams, request.write_stream)
                self._named.connection = self  # the newest connection is the one that may append
            self._stream, self._reader = request.write_stream, None
        elif not self._stream:
            raise closing("The first request of a connection must name its write_stream")

    def _choose_reader(self, request: Any) -> RowReader:
        if request.HasField("arrow_rows"):
            raise self._no_arrow()
        if request.proto_rows.HasField("writer_schema"):
            table = find_table(self._warehouse, self._stream)
            descriptor = request.proto_rows.writer_schema.proto_descriptor
            repeated = self._reader is not None and self._reader.schema.proto == descriptor
            self._reader = None
            self._reader = RowReader(read_writer_schema(table, descriptor))
            if not repeated:  # Google's Node client sends the schema in every request, and still waits for an update
                self._columns = table.columns
        elif self._reader is not None:
            self._reader = self._current(self._reader)
        if self._reader is None:
            raise closing(f"The first request for a stream must carry its writer schema. Entity: {self._stream}")
        return self._reader

    def _current(self, reader: RowReader) -> RowReader:
        """Hold the writer's schema against the table again where it is another by now (a key or column is gone)."""
        table = find_table(self._warehouse, self._stream)
        if table.number != reader.schema.table.number or table.version == reader.schema.table.version:
            return reader
        return RowReader(read_writer_schema(table, reader.schema.proto))

    def _no_arrow(self) -> AppendRefusedError:
        if find_table(self._warehouse, self._stream).primary_key:
            return AppendRefusedError(
                f"Rows with {CHANGE_TYPE} must be in protobuf format: Arrow is not supported for change data capture"
            )
        return AppendRefusedError(
            "This stand-in does not serve AppendRows with arrow_rows, only with proto_rows",
            code=grpc.StatusCode.UNIMPLEMENTED,
        )


def _found(streams: WriteStreams, name: str) -> Stream:
    try:
        return streams.find(name)
    except AppendRefusedError as refused:
        raise closing(refused.message, refused.code, refused.storage_code, name) from refused


def parse_request(data: bytes) -> Any:
    """Return the request in a message; AppendRefusedError where there is none."""
    try:
        return AppendRowsRequest.FromString(data)
    except message.DecodeError as error:
        raise closing(f"Could not parse the request: {error}") from error


def write_stream(warehouse: Warehouse, streams: WriteStreams, request: Any) -> Any:
    """Return a stream, as GetWriteStream does; with the table's schema where that is asked for."""
    table = find_table(warehouse, request.name)
    if is_default(request.name):
        name = table.name
        path = f"projects/{name.project}/datasets/{name.dataset}/tables/{name.table}/streams/_default"
        stream = WriteStream(name=path, type_=WriteStream.COMMITTED, write_mode=WriteStream.INSERT, location="US")
    else:
        stream = stream_resource(streams.find(request.name))
    if request.view == WriteStreamView.FULL:
        stream.table_schema.CopyFrom(table_schema(table))
    return stream


def stream_resource(stream: Stream) -> Any:
    """Return a stream that an application has made, as the API describes it."""
    resource = WriteStream(name=stream.name, write_mode=WriteStream.INSERT, location="US")
    resource.type_ = WriteStream.Type.Value(stream.type)
    resource.create_time.FromMicroseconds(stream.created)
    resource.table_schema.CopyFrom(table_schema(stream.table))
    return resource
