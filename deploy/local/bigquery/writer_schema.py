"""The writer's schema: a DescriptorProto held against the table it is to write to.

Source of the pairs of protobuf and column types: BigQuery, "Introduction to the Storage Write API", section "Data
type conversions". A pair that the table there does not list is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2, wrappers_pb2

from deploy.local.bigquery.append_errors import AppendRefusedError
from deploy.local.bigquery.catalog import Column, Table
from deploy.local.bigquery.protocol import SCHEMA_MISMATCH_EXTRA_FIELDS, TableFieldSchema, TableSchema

CHANGE_TYPE: Final = "_CHANGE_TYPE"
SEQUENCE_NUMBER: Final = "_CHANGE_SEQUENCE_NUMBER"
_PSEUDO_COLUMNS: Final = (CHANGE_TYPE, SEQUENCE_NUMBER)

_Field = descriptor_pb2.FieldDescriptorProto
_ROOT: Final = "writer_schema.proto"
SCALARS: Final = frozenset({"bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes"})
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
    "NUMERIC": (
        "int32",
        "int64",
        "uint32",
        "uint64",
        "double",
        "float",
        "string",
        "bytes",
        "google.protobuf.BytesValue",
    ),
    "STRING": ("string", "enum", "google.protobuf.StringValue"),
    "TIMESTAMP": ("int64", "int32", "uint32", "google.protobuf.Timestamp"),
}


@dataclass(frozen=True)
class WriterField:
    """A field of the writer's message: its protobuf type, and the column it fills (None for a pseudo-column)."""

    name: str
    proto_type: str
    column: Column | None


@dataclass(frozen=True)
class WriterSchema:
    """A message type that fits a table: ``proto`` as the writer sent it, ``descriptor`` to decode rows with."""

    table: Table
    fields: Sequence[WriterField]
    proto: descriptor_pb2.DescriptorProto
    descriptor: Any

    @property
    def flat(self) -> bool:
        """Tell whether all fields are plain scalars, which decode in columns."""
        return all(field.proto_type in SCALARS for field in self.fields)

    def has(self, name: str) -> bool:
        """Tell whether the message has this field."""
        return any(field.name == name for field in self.fields)


def read_writer_schema(table: Table, proto: descriptor_pb2.DescriptorProto) -> WriterSchema:
    """Return the writer's schema; AppendRefusedError where it does not fit the table."""
    descriptor = _build(proto)
    columns = {column.name.lower(): column for column in table.columns}
    fields = []
    for field in proto.field:
        proto_type = _proto_type(field)
        if field.name.upper() in _PSEUDO_COLUMNS:
            if proto_type != "string" or field.label == _Field.LABEL_REPEATED:
                raise AppendRefusedError(f"The proto field {field.name} must be an optional string")
            fields.append(WriterField(field.name.upper(), proto_type, None))
            continue
        column = columns.get(field.name.lower())
        if column is None:
            raise AppendRefusedError(
                f"Input schema has more fields than BigQuery schema, extra fields: '{field.name}'",
                storage_code=SCHEMA_MISMATCH_EXTRA_FIELDS,
                entity=_entity(table),
            )
        if (field.label == _Field.LABEL_REPEATED) is not column.repeated:
            raise AppendRefusedError(
                f"The proto field mismatched with BigQuery field at {proto.name}.{field.name}, the proto field mode "
                f"{_label(field)}, BigQuery field mode {column.mode}"
            )
        if proto_type not in PAIRS[column.type.googlesql]:
            raise AppendRefusedError(
                f"The proto field mismatched with BigQuery field at {proto.name}.{field.name}, "
                f"the proto field type {proto_type}, BigQuery field type {column.type.rest}"
            )
        fields.append(WriterField(column.name, proto_type, column))
    if not fields:
        raise AppendRefusedError("The writer schema has no fields")
    return WriterSchema(table, tuple(fields), proto, descriptor)


def table_schema(table: Table) -> Any:
    """Return the table's columns as the write API describes them."""
    schema = TableSchema()
    for column in table.columns:
        schema.fields.add(
            name=column.name,
            type_=TableFieldSchema.Type.Value(column.type.googlesql.replace("FLOAT64", "DOUBLE")),
            mode=TableFieldSchema.Mode.Value(column.mode),
        )
    return schema


def _build(proto: descriptor_pb2.DescriptorProto) -> Any:
    # A pool of its own per schema: two writers may give one name to different messages. Only what lies inside the
    # root message, and Google's wrappers, can be referred to; anything else does not resolve and is refused.
    file = descriptor_pb2.FileDescriptorProto(name=_ROOT, syntax="proto2")
    file.message_type.append(proto)
    pool = descriptor_pool.DescriptorPool()
    for known in (wrappers_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        file.dependency.append(known.DESCRIPTOR.name)
    try:
        pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(proto.name)
    except (TypeError, KeyError) as error:
        raise AppendRefusedError(f"Invalid proto schema: {error}") from error


def _proto_type(field: descriptor_pb2.FieldDescriptorProto) -> str:
    if field.type == _Field.TYPE_MESSAGE:
        return field.type_name.removeprefix(".")
    return _Field.Type.Name(field.type).removeprefix("TYPE_").lower()


def _label(field: descriptor_pb2.FieldDescriptorProto) -> str:
    return _Field.Label.Name(field.label).removeprefix("LABEL_")


def _entity(table: Table) -> str:
    name = table.name
    return f"projects/{name.project}/datasets/{name.dataset}/tables/{name.table}/streams/_default"
