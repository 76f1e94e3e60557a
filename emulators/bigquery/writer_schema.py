"""The writer's schema: a DescriptorProto checked against the table it is to write to.

Source of the pairs of protobuf and column types: BigQuery, "Introduction to the Storage Write API", section "Data
type conversions". A pair that the table there does not list is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, timestamp_pb2, wrappers_pb2

from emulators.bigquery.append_errors import AppendRefusedError
from emulators.bigquery.catalog import Table
from emulators.bigquery.column_types import Column, ColumnType
from emulators.bigquery.nested_values import RANGE_END, RANGE_START
from emulators.bigquery.protocol import SCHEMA_MISMATCH_EXTRA_FIELDS, TableFieldSchema, TableSchema

CHANGE_TYPE: Final = "_CHANGE_TYPE"
SEQUENCE_NUMBER: Final = "_CHANGE_SEQUENCE_NUMBER"
_PSEUDO_COLUMNS: Final = (CHANGE_TYPE, SEQUENCE_NUMBER)

_Field = descriptor_pb2.FieldDescriptorProto
_ROOT: Final = "writer_schema.proto"
SCALARS: Final = frozenset({"bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes"})
_DECIMAL: Final = (
    "int32",
    "int64",
    "uint32",
    "uint64",
    "double",
    "float",
    "string",
    "bytes",
    "google.protobuf.BytesValue",
)
PAIRS: Final[Mapping[str, Sequence[str]]] = {
    "BOOL": ("bool", "int32", "int64", "uint32", "uint64", "google.protobuf.BoolValue"),
    "BYTES": ("bytes", "string", "google.protobuf.BytesValue"),
    "DATE": ("int32", "int64"),
    "FLOAT64": ("double", "float", "google.protobuf.DoubleValue", "google.protobuf.FloatValue"),
    "INT64": (
        "int32",
        "int64",
        "uint32",
        "enum",
        "google.protobuf.Int32Value",
        "google.protobuf.Int64Value",
        "google.protobuf.UInt32Value",
    ),
    "JSON": ("string",),
    "NUMERIC": _DECIMAL,
    "BIGNUMERIC": _DECIMAL,
    "STRING": ("string", "enum", "google.protobuf.StringValue"),
    "TIMESTAMP": ("int64", "int32", "uint32", "google.protobuf.Timestamp"),
    "DATETIME": ("string", "int64"),
    "TIME": ("string", "int64"),
    "GEOGRAPHY": ("string",),
    "INTERVAL": ("string", "google.protobuf.Duration"),
}
_KNOWN: Final = (wrappers_pb2, timestamp_pb2, duration_pb2)
_KNOWN_PACKAGE: Final = "google.protobuf."


@dataclass(frozen=True)
class WriterField:
    """A field of the writer's message: its protobuf type, and the column it fills (None for a pseudo-column).

    ``fields`` are those of a nested message, which fills a STRUCT or a RANGE.
    """

    name: str
    proto_type: str
    column: Column | None
    fields: Sequence["WriterField"] = ()


@dataclass(frozen=True)
class WriterSchema:
    """A message type that fits a table: ``proto`` as the writer sent it, ``descriptor`` to decode rows with."""

    table: Table
    fields: Sequence[WriterField]
    proto: descriptor_pb2.DescriptorProto
    descriptor: Any

    @property
    def flat(self) -> bool:
        """Return whether all fields are plain scalars, which decode in columns."""
        return all(field.proto_type in SCALARS for field in self.fields)

    def has(self, name: str) -> bool:
        """Return whether the message has this field."""
        return any(field.name == name for field in self.fields)


def read_writer_schema(table: Table, proto: descriptor_pb2.DescriptorProto) -> WriterSchema:
    """Return the writer's schema; AppendRefusedError where it does not fit the table."""
    descriptor = _build(proto)
    fields = _fields(descriptor, table.columns, proto.name, table, pseudo_columns=True)
    return WriterSchema(table, fields, proto, descriptor)


def _fields(
    message: Any, columns: Sequence[Column], path: str, table: Table, *, pseudo_columns: bool = False
) -> Sequence[WriterField]:
    """Hold a message's fields against the columns of a table, or against the fields of a STRUCT in one."""
    by_name = {column.name.lower(): column for column in columns}
    fields = []
    for field in message.fields:
        proto_type = _proto_type(field)
        if pseudo_columns and field.name.upper() in _PSEUDO_COLUMNS:
            if proto_type != "string" or _repeated(field):
                raise AppendRefusedError(f"The proto field {field.name} must be an optional string")
            fields.append(WriterField(field.name.upper(), proto_type, None))
            continue
        column = by_name.get(field.name.lower())
        if column is None:
            raise AppendRefusedError(
                f"Input schema has more fields than BigQuery schema, extra fields: '{field.name}'",
                storage_code=SCHEMA_MISMATCH_EXTRA_FIELDS,
                entity=_entity(table),
            )
        fields.append(_field(field, proto_type, column, f"{path}.{field.name}", table))
    if not fields:
        raise AppendRefusedError("The writer schema has no fields" if pseudo_columns else f"{path} has no fields")
    return tuple(fields)


def _field(field: Any, proto_type: str, column: Column, path: str, table: Table) -> WriterField:
    mismatched = f"The proto field mismatched with BigQuery field at {path}, the proto field"
    if _repeated(field) is not column.repeated:
        raise AppendRefusedError(f"{mismatched} mode {_label(field)}, BigQuery field mode {column.mode}")
    nested: Sequence[WriterField] = ()
    if proto_type == "message" and column.type.fields:
        nested = _fields(field.message_type, column.type.fields, path, table)
    elif proto_type == "message" and column.type.element is not None:
        nested = _range_fields(field.message_type, column.type.element, path)
    elif proto_type not in PAIRS.get(column.type.googlesql, ()):
        raise AppendRefusedError(f"{mismatched} type {proto_type}, BigQuery field type {column.type.rest}")
    return WriterField(column.name, proto_type, column, nested)


def _range_fields(message: Any, element: ColumnType, path: str) -> Sequence[WriterField]:
    types = {field.name: _proto_type(field) for field in message.fields if not _repeated(field)}
    alike = len(set(types.values())) == 1 and set(types.values()) <= set(PAIRS[element.googlesql])
    if len(message.fields) != len(types) or set(types) != {RANGE_START, RANGE_END} or not alike:
        raise AppendRefusedError(
            f"The proto field mismatched with BigQuery field at {path}: RANGE<{element.googlesql}> needs a message "
            f"with the fields {RANGE_START} and {RANGE_END} of one type, out of {', '.join(PAIRS[element.googlesql])}"
        )
    return tuple(WriterField(name, proto_type, Column(name, element)) for name, proto_type in types.items())


def table_schema(table: Table) -> Any:
    """Return the table's columns as the write API describes them."""
    schema = TableSchema()
    for column in table.columns:
        schema.fields.append(_field_schema(column))
    return schema


def _field_schema(column: Column) -> Any:
    schema = TableFieldSchema(
        name=column.name,
        type_=TableFieldSchema.Type.Value(column.type.kind.replace("FLOAT64", "DOUBLE")),
        mode=TableFieldSchema.Mode.Value(column.mode),
    )
    for field in column.type.fields:
        schema.fields.append(_field_schema(field))
    if column.type.element is not None:
        schema.range_element_type.type_ = TableFieldSchema.Type.Value(column.type.element.googlesql)
    return schema


def _build(proto: descriptor_pb2.DescriptorProto) -> Any:
    # A pool of its own per schema: two writers may give one name to different messages. Only what lies inside the
    # root message, and Google's wrappers, can be referred to; anything else does not resolve and is refused.
    file = descriptor_pb2.FileDescriptorProto(name=_ROOT, syntax="proto2")
    file.message_type.append(proto)
    pool = descriptor_pool.DescriptorPool()
    for known in _KNOWN:
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        file.dependency.append(known.DESCRIPTOR.name)
    try:
        pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(proto.name)
    except (TypeError, KeyError) as error:
        raise AppendRefusedError(f"Invalid proto schema: {error}") from error


def _proto_type(field: Any) -> str:
    """Return the type's name: a scalar's, Google's of one of its own messages, or just that it is a message."""
    if field.type != _Field.TYPE_MESSAGE:
        return _Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    full_name: str = field.message_type.full_name
    return full_name if full_name.startswith(_KNOWN_PACKAGE) else "message"


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _label(field: Any) -> str:
    return "REPEATED" if field.is_repeated else "REQUIRED" if field.is_required else "OPTIONAL"


def _entity(table: Table) -> str:
    name = table.name
    return f"projects/{name.project}/datasets/{name.dataset}/tables/{name.table}/streams/_default"
