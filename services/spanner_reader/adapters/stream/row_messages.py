"""Rows of a change stream query as protobuf messages that mirror their form, so that no value is built unused.

Spanner answers with `google.protobuf.Value`s. Python's protobuf makes an object of each value that is only passed
through, and a record's column types, which it repeats endlessly, have to be made bytes again to be recognized. These
messages are the same on the wire: each level of a row is a message of its own, and what a record does not read
stays bytes.

Source of the fields and their numbers: google/spanner/v1/result_set.proto, google/protobuf/struct.proto.
"""

from typing import Any, Final

from shared.streams.own_messages import BOOL, BYTES, DOUBLE, STRING, Field, message_classes

_PACKAGE: Final = "millrace.change_stream"


def _level(below: str, values: str, value: str) -> dict[str, list[Field]]:
    """Return a list of what is below it, and a value that is such a list."""
    return {
        values: [Field(1, "values", f"{_PACKAGE}.{below}", repeated=True)],
        value: [Field(6, "list_value", f"{_PACKAGE}.{values}")],
    }


_classes_by_name: Final = message_classes(
    _PACKAGE,
    {
        "Result": [
            Field(1, "metadata", BYTES),
            Field(2, "values", BYTES, repeated=True),
            Field(3, "chunked_value", BOOL),
        ],
        "Scalar": [
            Field(2, "number_value", DOUBLE, oneof=True),
            Field(3, "string_value", STRING, oneof=True),
            Field(4, "bool_value", BOOL, oneof=True),
            Field(6, "list_value", BYTES, oneof=True),
        ],
        **_level("Scalar", "Scalars", "Struct"),
        **_level("Struct", "Structs", "Array"),
        **_level("Array", "Arrays", "Record"),
        **_level("Record", "Records", "Row"),
    },
)

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
