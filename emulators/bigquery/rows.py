"""The rows of one append request: from serialized messages to checked columns, or to what is wrong with each row.

Rows decode in columns where every field is a plain scalar; enums, wrappers and rows that do not parse go one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message, message_factory
from ptars import HandlerPool

from emulators.bigquery.append_errors import AppendRefusedError, corrupted_rows
from emulators.bigquery.column_types import Column
from emulators.bigquery.nested_values import convert_column, required_but_missing
from emulators.bigquery.sequences import comparable
from emulators.bigquery.writer_schema import CHANGE_TYPE, SEQUENCE_NUMBER, WriterField, WriterSchema

DELETED: Final = "_CHANGE_DELETED"
"""Whether the row is a DELETE: a column beside the table's own, whose name no column can have (reserved prefix)."""

_PAST: Final = (5 * 365 + 2) * 86_400_000_000
_FUTURE: Final = 366 * 86_400_000_000
_OUTSIDE_PARTITIONS: Final = (
    "The destination table's partition is outside the allowed bounds. You can only stream to partitions within "
    "5 years in the past and 1 year in the future relative to the current date."
)
"""BigQuery, "Introduction to the Storage Write API", section "Time-unit column partitioning"."""

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "google.protobuf.BoolValue": pa.bool_(),
    "google.protobuf.Int32Value": pa.int32(),
    "google.protobuf.Int64Value": pa.int64(),
    "google.protobuf.UInt32Value": pa.uint32(),
    "google.protobuf.FloatValue": pa.float32(),
    "google.protobuf.DoubleValue": pa.float64(),
    "google.protobuf.StringValue": pa.string(),
    "google.protobuf.BytesValue": pa.binary(),
    "google.protobuf.Timestamp": pa.int64(),
    "google.protobuf.Duration": pa.int64(),
}


@dataclass(frozen=True)
class Rows:
    """Checked rows: the table's columns as it stores them and, for changes, sequence and whether it is a DELETE."""

    columns: pa.Table
    changes: bool


class RowReader:
    """Reads the rows that one writer schema describes."""

    def __init__(self, schema: WriterSchema) -> None:
        self.schema = schema
        self._message = message_factory.GetMessageClass(schema.descriptor)
        self._columnar: Any = None
        if schema.flat:
            self._columnar = HandlerPool([schema.descriptor.file]).get_for_message(schema.descriptor)

    def read(self, serialized: Sequence[bytes], expect_changes: bool | None, now: int) -> Rows:
        """Return the rows of a request, all of them; AppendRefusedError that names each bad row otherwise.

        ``expect_changes``: what the connection has carried so far: changes, plain rows, or nothing yet (None).
        ``now``, in microseconds since the epoch, decides which partitions are open.
        """
        fields, errors = self._decode(serialized)
        count = len(serialized)
        nothing = pa.nulls(count, pa.string())
        change_type = fields.get(CHANGE_TYPE, nothing)
        changes = change_type.null_count < count if expect_changes is None or count == 0 else expect_changes
        if changes and not self.schema.table.primary_key:
            raise AppendRefusedError(
                f"Table {self.schema.table.name} has no primary key, which UPSERT and DELETE rows need"
            )
        for index in _indices(_wrong_change_types(change_type, changes)):
            errors.setdefault(index, "The given value is not a valid CHANGE_TYPE")
        deleted = pc.fill_null(pc.equal(change_type, "DELETE"), False)
        columns: dict[str, pa.Array] = {}
        for column in self.schema.table.columns:
            columns[column.name] = self._column(column, fields, count, errors)
            for index in _indices(pc.and_(pc.is_null(columns[column.name]), self._needed(column, changes, deleted))):
                errors.setdefault(index, required_but_missing(column.name))
        for index in _indices(self._outside_partitions(columns, now)):
            errors.setdefault(index, _OUTSIDE_PARTITIONS)
        sequence = fields.get(SEQUENCE_NUMBER, nothing)
        normal = comparable(sequence)
        for index in _indices(pc.and_(pc.is_null(normal), pc.is_valid(sequence))):
            errors.setdefault(index, f"The given value is not a valid {SEQUENCE_NUMBER}: {sequence[index]}")
        if errors:
            raise corrupted_rows(errors)
        if changes:
            columns[SEQUENCE_NUMBER] = pc.fill_null(normal, "")  # no number: only the time of ingestion decides
            columns[DELETED] = deleted
        return Rows(pa.table(columns), changes)

    def _outside_partitions(self, columns: Mapping[str, pa.Array], now: int) -> pa.Array:
        partitioning = self.schema.table.partitioning
        if partitioning is None:
            return pa.array([], pa.bool_())
        times = columns[partitioning.column]
        if pa.types.is_date(times.type):
            times = times.cast(pa.timestamp("us"))
        times = times.cast(pa.int64())
        return pc.or_(pc.less(times, now - _PAST), pc.greater(times, now + _FUTURE))

    def _needed(self, column: Column, changes: bool, deleted: pa.Array) -> pa.Array:
        if changes and column.name in self.schema.table.primary_key:
            return pa.scalar(True)
        if column.mode == "REQUIRED":
            return pc.invert(deleted)  # of a DELETE only the key is read
        return pa.scalar(False)

    def _column(self, column: Column, fields: Mapping[str, pa.Array], count: int, errors: dict[int, str]) -> pa.Array:
        if column.name not in fields and not column.repeated:
            return pa.nulls(count, column.arrow)
        given = fields[column.name] if column.name in fields else pa.nulls(count, column.arrow)
        converted = convert_column(given, column)
        for index, error in converted.errors.items():
            errors.setdefault(index, error)
        return converted.values

    def _decode(self, serialized: Sequence[bytes]) -> tuple[dict[str, pa.Array], dict[int, str]]:
        if self._columnar is not None:
            try:
                batch = self._columnar.list_to_record_batch(list(serialized))
            except ValueError:
                pass  # at least one does not parse: find out which
            else:
                names = [field.name for field in self.schema.fields]
                return dict(zip(names, batch.columns, strict=True)), {}
        return self._decode_one_by_one(serialized)

    def _decode_one_by_one(self, serialized: Sequence[bytes]) -> tuple[dict[str, pa.Array], dict[int, str]]:
        lists: list[list[object]] = [[] for _ in self.schema.fields]
        errors = {}
        descriptors = list(self.schema.descriptor.fields)
        for index, data in enumerate(serialized):
            try:
                row = self._message.FromString(data)
                values = [
                    _value(row, descriptor, field)
                    for descriptor, field in zip(descriptors, self.schema.fields, strict=True)
                ]
            except (message.DecodeError, ValueError) as error:
                errors[index] = f"Could not parse the serialized row: {error}"
                values = [None] * len(lists)
            for values_of_field, value in zip(lists, values, strict=True):
                values_of_field.append(value)
        return {
            field.name: pa.array(values, _arrow_type(field))
            for field, values in zip(self.schema.fields, lists, strict=True)
        }, errors


def _wrong_change_types(change_type: pa.Array, changes: bool) -> pa.Array:
    if not changes:
        return pc.is_valid(change_type)
    return pc.invert(pc.is_in(change_type, pa.array(["UPSERT", "DELETE"])))


def _indices(wrong: pa.Array) -> list[int]:
    indices: list[int] = pc.indices_nonzero(wrong).to_pylist()
    return indices


def _arrow_type(field: WriterField) -> pa.DataType:
    if field.column is not None and field.column.repeated:
        return pa.list_(_element_type(field))
    return _element_type(field)


def _element_type(field: WriterField) -> pa.DataType:
    if field.fields:
        return pa.struct([(part.name, _arrow_type(part)) for part in field.fields])
    if field.proto_type == "enum":
        return pa.string() if field.column is not None and field.column.type.googlesql == "STRING" else pa.int64()
    return _ARROW[field.proto_type]


def _value(row: Any, descriptor: Any, field: WriterField) -> object:
    if field.column is not None and field.column.repeated:
        return [_single(value, descriptor, field) for value in getattr(row, descriptor.name)]
    if not row.HasField(descriptor.name):
        return None
    return _single(getattr(row, descriptor.name), descriptor, field)


def _single(value: Any, descriptor: Any, field: WriterField) -> object:
    if field.fields:
        parts = zip(descriptor.message_type.fields, field.fields, strict=True)
        return {part.name: _value(value, inner, part) for inner, part in parts}
    if field.proto_type == "enum":
        by_name = field.column is not None and field.column.type.googlesql == "STRING"
        return descriptor.enum_type.values_by_number[value].name if by_name else value
    if field.proto_type in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return value.seconds * 1_000_000 + _microseconds(value.nanos)
    if field.proto_type.startswith("google.protobuf."):
        value = value.value
    if isinstance(value, bytes) and _ARROW[field.proto_type] == pa.string():
        raise ValueError(f"field {field.name} is not valid UTF-8")
    return value


def _microseconds(nanos: int) -> int:
    return nanos // 1_000 if nanos >= 0 else -(-nanos // 1_000)  # of a negative Duration both parts are negative
