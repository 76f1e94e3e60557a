"""The answers of ReadRows as messages of our own: the same on the wire, with only the fields that are read.

Python's protobuf makes an object of each message that is asked for within another. The names of families and columns
are such messages, and nearly all of them repeat. Here they stay bytes, by which what was made of them is found again.

Source of the fields and their numbers: google/bigtable/v2/bigtable.proto, google/protobuf/wrappers.proto.
"""

from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.wrappers_pb2 import BytesValue, StringValue

NO_MESSAGE: Final = b"\0"
"""In the place of a family's or a column's name where there is none: no message has these bytes."""
_PACKAGE: Final = "millrace.rows"


def _answer() -> Any:
    file = FileDescriptorProto(name="millrace/rows.proto", package=_PACKAGE, syntax="proto2")

    def field(of: Any, number: int, name: str, kind: int, default: str | None = None) -> Any:
        return of.field.add(
            name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL, default_value=default
        )

    chunk = file.message_type.add(name="Chunk")
    field(chunk, 1, "row_key", FieldDescriptorProto.TYPE_BYTES)
    field(chunk, 2, "family_name", FieldDescriptorProto.TYPE_BYTES, r"\000")
    field(chunk, 3, "qualifier", FieldDescriptorProto.TYPE_BYTES, r"\000")
    field(chunk, 4, "timestamp_micros", FieldDescriptorProto.TYPE_INT64)
    field(chunk, 6, "value", FieldDescriptorProto.TYPE_BYTES)
    field(chunk, 7, "value_size", FieldDescriptorProto.TYPE_INT32)
    chunk.oneof_decl.add(name="row_status")
    field(chunk, 8, "reset_row", FieldDescriptorProto.TYPE_BOOL).oneof_index = 0
    field(chunk, 9, "commit_row", FieldDescriptorProto.TYPE_BOOL).oneof_index = 0
    answer = file.message_type.add(name="Answer")
    chunks = field(answer, 1, "chunks", FieldDescriptorProto.TYPE_MESSAGE)
    chunks.label, chunks.type_name = FieldDescriptorProto.LABEL_REPEATED, f".{_PACKAGE}.Chunk"
    field(answer, 2, "last_scanned_row_key", FieldDescriptorProto.TYPE_BYTES)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Answer"))


Answer: Final[Any] = _answer()
"""A ReadRowsResponse, in whose chunks `family_name` and `qualifier` are the bytes of a message, or `NO_MESSAGE`."""


@lru_cache(maxsize=1_000)
def family_of(family_name: bytes) -> str:
    """Return the name that a chunk's `family_name` says."""
    return str(StringValue.FromString(family_name).value)


def qualifier_of(qualifier: bytes) -> bytes:
    """Return the bytes that a chunk's `qualifier` says."""
    return bytes(BytesValue.FromString(qualifier).value)
