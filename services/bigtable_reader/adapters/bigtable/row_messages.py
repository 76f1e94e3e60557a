"""The answers of ReadRows as messages of our own: the same on the wire, with only the fields that are read.

Python's protobuf makes an object of each message that is asked for within another. The names of families and columns
are such messages, and nearly all of them repeat. Here they stay bytes, by which what was made of them is found again.

Source of the fields and their numbers: google/bigtable/v2/bigtable.proto, google/protobuf/wrappers.proto.
"""

from functools import lru_cache
from typing import Any, Final

from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from shared.streams.own_messages import BOOL, BYTES, INT32, INT64, Field, message_classes

NO_MESSAGE: Final = b"\0"
"""In the place of a family's or a column's name where there is none: no message has these bytes."""
_ESCAPED: Final = r"\000"

Answer: Final[Any] = message_classes(
    "millrace.rows",
    {
        "Chunk": [
            Field(1, "row_key", BYTES),
            Field(2, "family_name", BYTES, default=_ESCAPED),
            Field(3, "qualifier", BYTES, default=_ESCAPED),
            Field(4, "timestamp_micros", INT64),
            Field(6, "value", BYTES),
            Field(7, "value_size", INT32),
            Field(8, "reset_row", BOOL, oneof=True),
            Field(9, "commit_row", BOOL, oneof=True),
        ],
        "Answer": [Field(1, "chunks", "millrace.rows.Chunk", repeated=True), Field(2, "last_scanned_row_key", BYTES)],
    },
    syntax="proto2",  # which has defaults
)["Answer"]
"""A ReadRowsResponse, in whose chunks `family_name` and `qualifier` are the bytes of a message, or `NO_MESSAGE`."""


@lru_cache(maxsize=1_000)
def family_of(family_name: bytes) -> str:
    """Return the name that a chunk's `family_name` says."""
    return str(StringValue.FromString(family_name).value)


def qualifier_of(qualifier: bytes) -> bytes:
    """Return the bytes that a chunk's `qualifier` says."""
    return bytes(BytesValue.FromString(qualifier).value)
