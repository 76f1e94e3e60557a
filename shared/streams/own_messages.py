"""Messages of our own that are the same on the wire as those of a service, with only the fields that are read."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

BYTES: Final = FieldDescriptorProto.TYPE_BYTES
STRING: Final = FieldDescriptorProto.TYPE_STRING
INT32: Final = FieldDescriptorProto.TYPE_INT32
INT64: Final = FieldDescriptorProto.TYPE_INT64
DOUBLE: Final = FieldDescriptorProto.TYPE_DOUBLE
BOOL: Final = FieldDescriptorProto.TYPE_BOOL


class Field(NamedTuple):
    """A field of a message; ``kind`` is one of the above, or the full name of a message."""

    number: int
    name: str
    kind: "FieldDescriptorProto.Type.ValueType | str"
    repeated: bool = False
    default: str | None = None
    oneof: bool = False
    """Whether it is one of those of which at most one is there."""


def message_classes(
    package: str, messages: Mapping[str, Sequence[Field]], *, syntax: str = "proto3", of: Sequence[Any] = ()
) -> Mapping[str, Any]:
    """Return the classes of some messages by their names; ``of`` are descriptors of other messages that they have."""
    file = FileDescriptorProto(name=f"{package.replace('.', '/')}.proto", package=package, syntax=syntax)
    file.dependency.extend({descriptor.file.name for descriptor in of})
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields:
            added = message.field.add(number=field.number, name=field.name, default_value=field.default)
            added.label = FieldDescriptorProto.LABEL_REPEATED if field.repeated else FieldDescriptorProto.LABEL_OPTIONAL
            if isinstance(field.kind, str):
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{field.kind}"
            else:
                added.type = field.kind
            if field.oneof:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="kind")
                added.oneof_index = 0
    pool: Any = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
