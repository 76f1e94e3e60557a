"""The type map: GoogleSQL type -> BigQuery type -> Arrow type on the wire -> protobuf field type.

Source of the pairs: BigQuery, "Supported protocol buffer data types" (Storage Write API): DATE from int32 days since
1970-01-01, TIMESTAMP from int64 microseconds, NUMERIC and JSON from text. The Arrow type is the one that encodes to
the protobuf type without another cast.
"""

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
    """The name of a ``FieldDescriptorProto.Type``, such as ``TYPE_INT64``."""


BOOL: Final = ColumnType("BOOL", "BOOL", pa.bool_(), "TYPE_BOOL")
INT64: Final = ColumnType("INT64", "INT64", pa.int64(), "TYPE_INT64")
FLOAT64: Final = ColumnType("FLOAT64", "FLOAT64", pa.float64(), "TYPE_DOUBLE")
NUMERIC: Final = ColumnType("NUMERIC", "NUMERIC", pa.string(), "TYPE_STRING")
STRING: Final = ColumnType("STRING", "STRING", pa.string(), "TYPE_STRING")
BYTES: Final = ColumnType("BYTES", "BYTES", pa.binary(), "TYPE_BYTES")
DATE: Final = ColumnType("DATE", "DATE", pa.int32(), "TYPE_INT32")
TIMESTAMP: Final = ColumnType("TIMESTAMP", "TIMESTAMP", pa.int64(), "TYPE_INT64")
JSON: Final = ColumnType("JSON", "JSON", pa.string(), "TYPE_STRING")

COLUMN_TYPES: Final[Mapping[str, ColumnType]] = {
    kind.googlesql: kind for kind in (BOOL, INT64, FLOAT64, NUMERIC, STRING, BYTES, DATE, TIMESTAMP, JSON)
}

KEY_TYPES: Final = frozenset({BOOL, INT64, NUMERIC, STRING, DATE, TIMESTAMP})
"""What a BigQuery key column can be without loss. FLOAT64, BYTES and JSON are no key types there."""


def column_type(googlesql: str) -> ColumnType:
    """Return what a GoogleSQL type becomes; PoisonRecordError (UNSUPPORTED_TYPE) for one that is not applied yet."""
    found = COLUMN_TYPES.get(googlesql)
    if found is None:
        known = ", ".join(COLUMN_TYPES)
        raise PoisonRecordError(Reason.UNSUPPORTED_TYPE, f"type {googlesql} is not applied (known: {known})")
    return found
