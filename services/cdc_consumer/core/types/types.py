"""The type map: GoogleSQL type -> BigQuery type -> Arrow type on the wire -> protobuf field type.

Source of the pairs: BigQuery, "Supported protocol buffer data types" (Storage Write API): DATE from int32 days since
1970-01-01, TIMESTAMP from int64 microseconds, NUMERIC and JSON from text, a REPEATED column from a repeated field. The
Arrow type is the one that encodes to the protobuf type without another cast.

What BigQuery has no type for has the one that holds it without loss: FLOAT32 is a FLOAT64; UUID and PostgreSQL's
numeric, with its 147,455 digits and its NaN, are text. Google's templates do the same. An ENUM is its number and a
PROTO its bytes, as for Spanner itself, which turns such columns into INT64 and BYTES and back. BigQuery's INTERVAL has
no nanoseconds, so an INTERVAL is its text. PostgreSQL's jsonb has numbers as large as those of its numeric; it is JSON
all the same, and a value with a number that BigQuery's JSON does not hold does not fit.

A type that this version does not know, one that Spanner gets later, is a STRING: a JSON string is its content, any
other value its JSON text. So no column can keep the rest of its table out of BigQuery.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a column's type is called in each place that a value passes through."""

    googlesql: str
    bigquery: str
    wire: pa.DataType
    proto: str
    """The name of a ``FieldDescriptorProto.Type``, such as ``TYPE_INT64``; of an array, that of its elements."""
    element: "ColumnType | None" = None
    """What the elements of an array are; None for what is no array."""


def array_of(element: ColumnType) -> ColumnType:
    """Return the type of arrays. BigQuery's hold no NULL, and neither do those on the wire."""
    items = pa.field("item", element.wire, nullable=False)
    return ColumnType(
        f"ARRAY<{element.googlesql}>", f"ARRAY<{element.bigquery}>", pa.list_(items), element.proto, element
    )


def json_of(array: ColumnType) -> ColumnType:
    """Return the type of an array column that is kept as JSON, where an element may be NULL."""
    return ColumnType(array.googlesql, "JSON", pa.string(), "TYPE_STRING")


BOOL: Final = ColumnType("BOOL", "BOOL", pa.bool_(), "TYPE_BOOL")
INT64: Final = ColumnType("INT64", "INT64", pa.int64(), "TYPE_INT64")
FLOAT64: Final = ColumnType("FLOAT64", "FLOAT64", pa.float64(), "TYPE_DOUBLE")
FLOAT32: Final = ColumnType("FLOAT32", "FLOAT64", pa.float64(), "TYPE_DOUBLE")
NUMERIC: Final = ColumnType("NUMERIC", "NUMERIC", pa.string(), "TYPE_STRING")
STRING: Final = ColumnType("STRING", "STRING", pa.string(), "TYPE_STRING")
BYTES: Final = ColumnType("BYTES", "BYTES", pa.binary(), "TYPE_BYTES")
DATE: Final = ColumnType("DATE", "DATE", pa.int32(), "TYPE_INT32")
TIMESTAMP: Final = ColumnType("TIMESTAMP", "TIMESTAMP", pa.int64(), "TYPE_INT64")
JSON: Final = ColumnType("JSON", "JSON", pa.string(), "TYPE_STRING")
PG_JSONB: Final = ColumnType("PG_JSONB", "JSON", pa.string(), "TYPE_STRING")
PG_NUMERIC: Final = ColumnType("PG_NUMERIC", "STRING", pa.string(), "TYPE_STRING")
PG_JSONB_EXACT: Final = ColumnType("PG_JSONB with exact numbers", "JSON", pa.string(), "TYPE_STRING")
"""The same, where the tables file wants a number that BigQuery's JSON does not hold as a text in the document."""
UUID: Final = ColumnType("UUID", "STRING", pa.string(), "TYPE_STRING")
ENUM: Final = ColumnType("ENUM", "INT64", pa.int64(), "TYPE_INT64")
PROTO: Final = ColumnType("PROTO", "BYTES", pa.binary(), "TYPE_BYTES")
INTERVAL: Final = ColumnType("INTERVAL", "STRING", pa.string(), "TYPE_STRING")

_SCALARS: Final = (
    BOOL,
    INT64,
    FLOAT64,
    FLOAT32,
    NUMERIC,
    STRING,
    BYTES,
    DATE,
    TIMESTAMP,
    JSON,
    PG_JSONB,
    PG_NUMERIC,
    UUID,
    ENUM,
    PROTO,
    INTERVAL,
)
COLUMN_TYPES: Final[Mapping[str, ColumnType]] = {
    kind.googlesql: kind for kind in (*_SCALARS, *(array_of(scalar) for scalar in _SCALARS))
}

BYTES_KEY: Final = ColumnType("BYTES", "STRING", pa.string(), "TYPE_STRING")
"""Padded base64 of the standard alphabet, as `TO_BASE64` writes it."""
PROTO_KEY: Final = ColumnType("PROTO", "STRING", pa.string(), "TYPE_STRING")
"""The same of its bytes."""
FLOAT64_KEY: Final = ColumnType("FLOAT64", "STRING", pa.string(), "TYPE_STRING")
"""The shortest decimal text of a number; ``NaN``, ``Infinity``, ``-Infinity``; zero has no sign."""
FLOAT32_KEY: Final = ColumnType("FLOAT32", "STRING", pa.string(), "TYPE_STRING")
"""As of the FLOAT64 that is the same number."""

KEY_TYPES: Final[Mapping[ColumnType, ColumnType]] = {
    kind: kind for kind in (BOOL, INT64, NUMERIC, STRING, DATE, TIMESTAMP, UUID, ENUM)
} | {BYTES: BYTES_KEY, PROTO: PROTO_KEY, FLOAT64: FLOAT64_KEY, FLOAT32: FLOAT32_KEY}
"""What each type is in a key. BYTES and FLOAT64 are no key types in BigQuery: there they are a text, one per value."""


_ARRAY: Final = re.compile(r"ARRAY<(.*)>", re.DOTALL)
_TYPE_NAME: Final = re.compile(r"[^<>(),\x00-\x1f]{1,300}")


def column_type(googlesql: str) -> ColumnType:
    """Return what a GoogleSQL type becomes, whether it is known or not.

    PoisonRecordError (UNSUPPORTED_TYPE) for what is no name of a column's type: a STRUCT, an array of arrays.
    """
    found = COLUMN_TYPES.get(googlesql)
    if found is not None:
        return found
    array = _ARRAY.fullmatch(googlesql)
    name = googlesql if array is None else array[1]
    if _TYPE_NAME.fullmatch(name) is None:
        known = ", ".join(scalar.googlesql for scalar in _SCALARS)
        raise PoisonRecordError(
            Reason.UNSUPPORTED_TYPE,
            f"type {googlesql[:80]!r} is not the name of a type (such as {known}), nor ARRAY<> with one in it",
        )
    unknown = ColumnType(name, "STRING", pa.string(), "TYPE_STRING")
    return unknown if array is None else array_of(unknown)


def is_known(kind: ColumnType) -> bool:
    """Return whether this version knows what the values of a type mean."""
    return kind.googlesql in COLUMN_TYPES or (kind.element or kind) == PG_JSONB_EXACT


def with_exact_numbers(kind: ColumnType) -> ColumnType:
    """Return the type that keeps each number of a jsonb exact, for it and its arrays; any other type as it is."""
    if kind == PG_JSONB:
        return PG_JSONB_EXACT
    return array_of(PG_JSONB_EXACT) if kind.element == PG_JSONB else kind
