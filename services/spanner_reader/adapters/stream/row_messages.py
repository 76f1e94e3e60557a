"""Rows of a change stream query as protobuf messages that mirror their form, so that no value is built unused.

Spanner answers with `google.protobuf.Value`s. Python's protobuf makes an object of each value that is only passed
through, and a record's column types, which it repeats endlessly, have to be made bytes again to be recognized. These
messages are the same on the wire: each level of a row is a message of its own, and what a record does not read
stays bytes.

Source of the fields and their numbers: google/spanner/v1/result_set.proto, google/protobuf/struct.proto.
"""

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE: Final = "millrace.change_stream"


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="millrace/change_stream.proto", package=_PACKAGE, syntax="proto3")

    def message(name: str) -> Any:
        return file.message_type.add(name=name)

    def field(of: Any, name: str, number: int, kind: int, *, repeated: bool = False, one_of: bool = False) -> Any:
        added = of.field.add(name=name, number=number, type=kind)
        added.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if one_of:
            added.oneof_index = 0
        return added

    result = message("Result")
    field(result, "metadata", 1, FieldDescriptorProto.TYPE_BYTES)
    field(result, "values", 2, FieldDescriptorProto.TYPE_BYTES, repeated=True)
    field(result, "chunked_value", 3, FieldDescriptorProto.TYPE_BOOL)

    scalar = message("Scalar")
    scalar.oneof_decl.add(name="kind")
    field(scalar, "number_value", 2, FieldDescriptorProto.TYPE_DOUBLE, one_of=True)
    field(scalar, "string_value", 3, FieldDescriptorProto.TYPE_STRING, one_of=True)
    field(scalar, "bool_value", 4, FieldDescriptorProto.TYPE_BOOL, one_of=True)
    field(scalar, "list_value", 6, FieldDescriptorProto.TYPE_BYTES, one_of=True)

    below = "Scalar"
    for values, value in (("Scalars", "Struct"), ("Structs", "Array"), ("Arrays", "Record"), ("Records", "Row")):
        several = field(message(values), "values", 1, FieldDescriptorProto.TYPE_MESSAGE, repeated=True)
        several.type_name = f".{_PACKAGE}.{below}"
        one = field(message(value), "list_value", 6, FieldDescriptorProto.TYPE_MESSAGE)
        one.type_name = f".{_PACKAGE}.{values}"
        below = value
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = ("Result", "Scalar", "Scalars", "Structs", "Row")
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names}


_classes_by_name: Final = _classes()

Result: Final[Any] = _classes_by_name["Result"]
"""A PartialResultSet, whose metadata and values are bytes."""
Row: Final[Any] = _classes_by_name["Row"]
"""A value of it: records, each a struct of three arrays of structs, whose own lists are bytes."""
Structs: Final[Any] = _classes_by_name["Structs"]
"""The bytes of such a list: an array of structs."""
Scalars: Final[Any] = _classes_by_name["Scalars"]
"""The bytes of such a list: an array of what is no list."""
Scalar: Final[Any] = _classes_by_name["Scalar"]
"""A value whose list, if it is one, is bytes."""
