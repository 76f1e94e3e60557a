"""Typed columns to serialized protobuf rows, as BigQuery's Storage Write API takes them.

`ptars` encodes a whole Arrow batch in Rust, about ten times as fast as a message a row; but it corrupts silently where
an array's type is not its field's, and drops NULLs of arrays. So it is given only fields of the types that the tests
prove equal, alone or repeated, only batches whose schema equals the one it derives from the descriptor, and no array
with NULL in it. Everything else goes by the plain protobuf classes.
"""

from collections.abc import Mapping
from typing import Any, Final

import ptars
import pyarrow as pa
import structlog
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FieldOptions, FileDescriptorProto
from google.protobuf.message import Message

from services.cdc_consumer.core.schema.tables import TableDefinition, row_schema
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE

ROW: Final = "Row"
"""The name of the message type. Without a package, so that the descriptor stands alone, as BigQuery wants it."""

_TEXT: Final = "TYPE_STRING"
_PROVEN: Final[Mapping[str, pa.DataType]] = {
    "TYPE_BOOL": pa.bool_(),
    "TYPE_INT64": pa.int64(),
    "TYPE_INT32": pa.int32(),
    "TYPE_DOUBLE": pa.float64(),
    "TYPE_STRING": pa.string(),
    "TYPE_BYTES": pa.binary(),
}
"""The fields that `ptars` may encode: for each, tests show its bytes equal to those of the plain classes."""
_PACKED: Final = _PROVEN.keys() - {"TYPE_STRING", "TYPE_BYTES"}


def row_descriptor(definition: TableDefinition) -> DescriptorProto:
    """Return the message type of a table's rows: proto2, optional fields, the pseudo-columns last.

    Optional and of proto2, so that a field left out is NULL and a zero or an empty text is itself. With JSON names of
    their own: those made from ``a_b`` and ``aB`` would be the same, and a descriptor pool refuses that.
    """
    fields = [(column.name, column.type.proto, column.type.element is not None) for column in definition.columns]
    fields += [(name, _TEXT, False) for name in definition.pseudo_columns]
    return DescriptorProto(
        name=ROW,
        field=[
            FieldDescriptorProto(
                name=name,
                json_name=name,
                number=number,
                label=FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL,
                type=FieldDescriptorProto.Type.Value(proto),
                # `ptars` packs whatever can be; a parser takes both forms, but the descriptor should tell the truth.
                options=FieldOptions(packed=True) if repeated and proto in _PACKED else None,
            )
            for number, (name, proto, repeated) in enumerate(fields, start=1)
        ],
    )


class RowEncoder:
    """Encodes rows of one table definition; make one per definition and keep it."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.descriptor = row_descriptor(definition)
        self.schema: pa.Schema = row_schema(definition)
        self._arrays = [column.name for column in definition.columns if column.type.element is not None]
        resolved = resolve(self.descriptor)
        self._ptars = ptars_handler(resolved, self.schema)
        self._message = message_factory.GetMessageClass(resolved)

    @property
    def vectorised(self) -> bool:
        """Return whether rows go through `ptars`, or one by one."""
        return self._ptars is not None

    def encode(self, rows: pa.Table) -> pa.BinaryArray:
        """Return one serialized message per row.

        Book-keeping columns are left out. TypeError unless the other columns are exactly the definition's, in order
        and in their wire types (see `conform`).
        """
        columns = rows.select([name for name in rows.schema.names if name not in (MESSAGE, CHANGE)])
        if columns.schema.names != self.schema.names or columns.schema.types != self.schema.types:
            raise TypeError(
                f"rows of table {self.definition.name} are not of its schema: "
                f"{_difference(columns.schema, self.schema)}"
            )
        if self._ptars is None:
            return self.encode_plainly(columns)
        for name in self._arrays:
            if any(chunk.flatten().null_count for chunk in columns.column(name).chunks):
                raise TypeError(f"column {name} of table {self.definition.name}: an array holds NULL")
        batches = columns.combine_chunks().to_batches()
        encoded = [self._ptars.record_batch_to_array(batch) for batch in batches]
        result = encoded[0] if len(encoded) == 1 else pa.concat_arrays([pa.array([], pa.binary()), *encoded])
        if len(result) != len(columns) or result.null_count:
            raise TypeError(f"{len(columns)} rows of table {self.definition.name} became {len(result)} messages")
        return result

    def encode_plainly(self, columns: pa.Table) -> pa.BinaryArray:
        """Encode by the protobuf classes, row by row: what `ptars` is measured against, and what it cannot take.

        TypeError where an array holds NULL.
        """
        encoded = [
            self._message(**{name: value for name, value in row.items() if value is not None}).SerializeToString()
            for row in columns.to_pylist()
        ]
        return pa.array(encoded, pa.binary())


def resolve(descriptor: DescriptorProto) -> Descriptor:
    """Return a message type ready for use, in a descriptor pool of its own: two tables may share a name."""
    file = FileDescriptorProto(name="row.proto", syntax="proto2", message_type=[descriptor])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindMessageTypeByName(descriptor.name)


def message_class(descriptor: DescriptorProto) -> type[Message]:
    """Return the class of a message type, to read rows back."""
    return message_factory.GetMessageClass(resolve(descriptor))


def ptars_handler(descriptor: Descriptor, schema: pa.Schema) -> Any:
    """Return what encodes batches of ``schema``, or None where it would not be proven right."""
    proto = DescriptorProto()
    descriptor.CopyToProto(proto)
    for field, column in zip(proto.field, schema, strict=True):
        kind = FieldDescriptorProto.Type.Name(field.type)
        proven = _PROVEN.get(kind)
        if proven is not None and field.label == FieldDescriptorProto.LABEL_REPEATED:
            proven = pa.list_(pa.field("item", proven, nullable=False))
        if proven != column.type or field.options.packed != (kind in _PACKED and pa.types.is_list(column.type)):
            return None
    try:
        handler = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)
    except Exception as error:  # noqa: BLE001 - whatever it cannot take goes the plain way
        structlog.get_logger().info("rows_encoded_plainly", error=str(error))
        return None
    derived = handler.schema()
    return handler if derived.names == schema.names and derived.types == schema.types else None


def _difference(found: pa.Schema, expected: pa.Schema) -> str:
    have = [f"{field.name} {field.type}" for field in found]
    want = [f"{field.name} {field.type}" for field in expected]
    if sorted(have) == sorted(want):
        return "another order"
    return f"not there: {sorted(set(want) - set(have))}, not expected: {sorted(set(have) - set(want))}"
