"""Row messages for the write API: a descriptor made from names and protobuf types, and rows serialized by it."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2

CHANGE = {"_CHANGE_TYPE": "string", "_CHANGE_SEQUENCE_NUMBER": "string"}
_Field = descriptor_pb2.FieldDescriptorProto


def row_message(fields: Mapping[str, str], *, repeated: Sequence[str] = ()) -> descriptor_pb2.DescriptorProto:
    """Return the descriptor of a row message from names and protobuf types; an ``enum`` has BLUE = 0 and RED = 1."""
    message = descriptor_pb2.DescriptorProto(name="Row")
    for number, (name, proto_type) in enumerate(fields.items(), 1):
        label = _Field.LABEL_REPEATED if name in repeated else _Field.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, label=label)
        if proto_type == "enum":
            field.type, field.type_name = _Field.TYPE_ENUM, "Row.Colour"
        elif "." in proto_type:
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{proto_type}"
        else:
            field.type = _Field.Type.Value(f"TYPE_{proto_type.upper()}")
    if "enum" in fields.values():
        colour = message.enum_type.add(name="Colour")
        colour.value.add(name="BLUE", number=0)
        colour.value.add(name="RED", number=1)
    return message


def serialized(descriptor: descriptor_pb2.DescriptorProto, rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return rows as messages; a column that a row does not name is not set."""
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", syntax="proto2", message_type=[descriptor])
    pool = descriptor_pool.DescriptorPool()
    for known in (wrappers_pb2, timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        file.dependency.append(known.DESCRIPTOR.name)
    pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))
    return [message(**row).SerializeToString() for row in rows]


def change(change_type: str, sequence: str, **columns: Any) -> dict[str, Any]:
    """Return a row that is a change."""
    return {**columns, "_CHANGE_TYPE": change_type, "_CHANGE_SEQUENCE_NUMBER": sequence}
