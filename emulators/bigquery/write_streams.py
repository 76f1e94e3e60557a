"""Streams that an application makes for itself: COMMITTED, PENDING and BUFFERED ones, with offsets.

Source: google/cloud/bigquery/storage/v1/storage.proto; BigQuery, "Introduction to the Storage Write API", section
"Application-created streams". Changes (`_CHANGE_TYPE`) are taken by the default stream only.
"""

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import pyarrow as pa

from emulators.bigquery.append_errors import AppendRefusedError
from emulators.bigquery.catalog import Table, TableName
from emulators.bigquery.protocol import StorageError, WriteStream
from emulators.bigquery.rows import Rows
from emulators.bigquery.warehouse import Warehouse

_TYPES: Final = {WriteStream.COMMITTED: "COMMITTED", WriteStream.PENDING: "PENDING", WriteStream.BUFFERED: "BUFFERED"}


@dataclass
class Stream:
    """A stream: how many rows have been appended, which of them wait to be seen, and whether it has ended."""

    name: str
    table: Table
    type: str
    created: int
    rows: int = 0
    waiting: list[pa.Table] = field(default_factory=list)
    finalized: bool = False
    committed: bool = False
    connection: object = None
    """The one connection that may append."""


class WriteStreams:
    """All streams that have been made. Used from several threads."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._lock = threading.RLock()
        self._streams: dict[str, Stream] = {}

    def create(self, parent: TableName, stream_type: int) -> Stream:
        """Make a stream of a table; AppendRefusedError for a type that there is not."""
        if stream_type not in _TYPES:
            raise _refused("The type of a stream is COMMITTED, PENDING or BUFFERED", "INVALID_STREAM_TYPE")
        table = self._warehouse.table(parent)
        path = f"projects/{parent.project}/datasets/{parent.dataset}/tables/{parent.table}/streams/{uuid.uuid4().hex}"
        with self._lock:
            self._streams[path] = Stream(path, table, _TYPES[stream_type], self._warehouse.now())
            return self._streams[path]

    def find(self, name: str) -> Stream:
        """Return a stream; AppendRefusedError where there is none."""
        with self._lock:
            if name not in self._streams:
                raise _refused(
                    f"Requested entity was not found. Entity: {name}",
                    "STREAM_NOT_FOUND",
                    grpc.StatusCode.NOT_FOUND,
                    name,
                )
            return self._streams[name]

    def check_place(self, stream: Stream, connection: object, offset: int | None) -> None:
        """Refuse an append that is not for the end of the stream, or by a connection that another has replaced."""
        with self._lock:
            if stream.connection is not connection:
                raise AppendRefusedError(
                    f"Another connection appends to the stream. Entity: {stream.name}",
                    code=grpc.StatusCode.ABORTED,
                    closes=True,
                )
            if stream.finalized:
                raise _refused(f"The stream is finalized. Entity: {stream.name}", "STREAM_FINALIZED")
            at = f"The offset is {offset}, the end of the stream is {stream.rows}. Entity: {stream.name}"
            if offset is not None and offset < stream.rows:
                raise _refused(at, "OFFSET_ALREADY_EXISTS", grpc.StatusCode.ALREADY_EXISTS, stream.name)
            if offset is not None and offset > stream.rows:
                raise _refused(at, "OFFSET_OUT_OF_RANGE", grpc.StatusCode.OUT_OF_RANGE, stream.name)

    def append(self, stream: Stream, connection: object, rows: Rows, offset: int | None) -> int:
        """Append rows at the end; return their offset. Rows of a COMMITTED stream are seen at once."""
        with self._lock:
            self.check_place(stream, connection, offset)
            if stream.type == "COMMITTED":
                self._warehouse.append(stream.table, rows)
            else:
                stream.waiting.append(rows.columns)
            stream.rows += rows.columns.num_rows
            first: int = stream.rows - rows.columns.num_rows
            return first

    def flush(self, name: str, offset: int) -> int:
        """Let the rows of a BUFFERED stream be seen, up to and with the one at the offset."""
        with self._lock:
            stream = self.find(name)
            if stream.type != "BUFFERED":
                raise _refused(f"Only a BUFFERED stream is flushed. Entity: {name}", "INVALID_STREAM_TYPE")
            waiting = pa.concat_tables(stream.waiting, promote_options="default") if stream.waiting else None
            seen = stream.rows - (waiting.num_rows if waiting is not None else 0)
            if offset >= stream.rows:
                raise _refused(
                    f"The offset {offset} is beyond the end of the stream, {stream.rows}. Entity: {name}",
                    "OFFSET_OUT_OF_RANGE",
                    grpc.StatusCode.OUT_OF_RANGE,
                    name,
                )
            if offset >= seen and waiting is not None:
                count = offset + 1 - seen
                self._warehouse.append(stream.table, Rows(waiting.slice(0, count), changes=False))
                stream.waiting = [waiting.slice(count)]
            return offset

    def finalize(self, name: str) -> int:
        """Let nothing more be appended; return how many rows the stream has."""
        with self._lock:
            if name.endswith("/_default"):
                raise _refused(f"The default stream cannot be finalized. Entity: {name}", "INVALID_STREAM_TYPE")
            stream = self.find(name)
            stream.finalized = True
            return stream.rows

    def commit(self, parent: TableName, names: Sequence[str]) -> Sequence[Any]:
        """Let the rows of finalized PENDING streams be seen, all at once; return what keeps them from it, if anything.

        To commit once more what is committed changes nothing.
        """
        with self._lock:
            streams = [self._streams.get(name) for name in names]
            errors = [_why_not(name, stream, parent) for name, stream in zip(names, streams, strict=True)]
            if any(errors):
                return [error for error in errors if error is not None]
            found = [stream for stream in streams if stream is not None]
            rows = [table for stream in found for table in stream.waiting]
            if rows:
                self._warehouse.append(
                    found[0].table, Rows(pa.concat_tables(rows, promote_options="default"), changes=False)
                )
            for stream in found:
                stream.committed, stream.waiting = True, []
            return []


def _why_not(name: str, stream: Stream | None, parent: TableName) -> Any:
    if stream is None or stream.table.name != parent:
        return StorageError(code=StorageError.STREAM_NOT_FOUND, entity=name, error_message="There is no such stream")
    if stream.type != "PENDING":
        return StorageError(code=StorageError.INVALID_STREAM_TYPE, entity=name, error_message="It is not PENDING")
    if stream.committed:
        return StorageError(code=StorageError.STREAM_ALREADY_COMMITTED, entity=name, error_message="It is committed")
    if not stream.finalized:
        return StorageError(code=StorageError.INVALID_STREAM_STATE, entity=name, error_message="It is not finalized")
    return None


def _refused(
    message: str, storage: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT, entity: str = ""
) -> AppendRefusedError:
    number = StorageError.StorageErrorCode.Value(storage)
    return AppendRefusedError(message, code=code, storage_code=number, entity=entity)
