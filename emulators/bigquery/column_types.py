"""The column types that the stand-in serves: their names in GoogleSQL, REST and DuckDB, and how Arrow holds them.

Three choices need a reason. A TIMESTAMP is a DuckDB TIMESTAMP in UTC, for DuckDB's type with a time zone needs its ICU
extension for most of what one does with it; a DATETIME, which is rarer, is that other type, read in UTC, so that the
two differ in every result. And what DuckDB has no type for (BIGNUMERIC, RANGE, GEOGRAPHY) is a STRUCT whose
fields have names that no column can have: values compare and sort as they should, and any operation that would be wrong
on what is inside is refused by DuckDB itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from emulators.bigquery.errors import ApiError, invalid

Mode = Literal["NULLABLE", "REQUIRED", "REPEATED"]

UNITS: Final = "<bignumeric>"
"""Of a BIGNUMERIC: its units of 10^-38 as 32 bytes that sort as the numbers do (see `decimals`)."""
TEXT: Final = "<geography>"
"""Of a GEOGRAPHY: its well-known text (see `geographies`)."""
BOUNDED, START, END = "<range bounded>", "<range start>", "<range end>"
"""Of a RANGE: whether it has a start (an unbounded one sorts first), start, and end (NULL: unbounded, sorts last)."""

RANGE_ELEMENTS: Final = ("DATE", "DATETIME", "TIMESTAMP")


@dataclass(frozen=True)
class ColumnType:
    """A column type: GoogleSQL's name, the REST API's older name, DuckDB's, and the Arrow type that holds values.

    ``fields`` are a STRUCT's, ``element`` is a RANGE's.
    """

    googlesql: str
    rest: str
    duckdb: str
    arrow: pa.DataType
    in_primary_key: bool = True
    fields: tuple["Column", ...] = ()
    element: "ColumnType | None" = None

    @property
    def in_clustering(self) -> bool:
        """Return whether a table can be clustered by it (BigQuery, "Clustered tables": those of a key, and RANGE)."""
        return self.in_primary_key or self.element is not None

    @property
    def kind(self) -> str:
        """Return GoogleSQL's name without what is in angle brackets."""
        return self.googlesql.partition("<")[0]


@dataclass(frozen=True)
class Column:
    """A column of a table, or a field of a STRUCT."""

    name: str
    type: ColumnType
    mode: Mode = "NULLABLE"
    description: str = ""

    @property
    def repeated(self) -> bool:
        """Return whether it is an ARRAY of its type."""
        return self.mode == "REPEATED"

    @property
    def arrow(self) -> pa.DataType:
        """Return the Arrow type of its values."""
        return pa.list_(self.type.arrow) if self.repeated else self.type.arrow

    @property
    def duckdb(self) -> str:
        """Return DuckDB's type of its values."""
        return f"{self.type.duckdb}[]" if self.repeated else self.type.duckdb

    @property
    def data_type(self) -> str:
        """Return its type as GoogleSQL writes it."""
        return f"ARRAY<{self.type.googlesql}>" if self.repeated else self.type.googlesql


BOOL: Final = ColumnType("BOOL", "BOOLEAN", "BOOLEAN", pa.bool_())
INT64: Final = ColumnType("INT64", "INTEGER", "BIGINT", pa.int64())
FLOAT64: Final = ColumnType("FLOAT64", "FLOAT", "DOUBLE", pa.float64(), in_primary_key=False)
NUMERIC: Final = ColumnType("NUMERIC", "NUMERIC", "DECIMAL(38, 9)", pa.decimal128(38, 9))
BIGNUMERIC: Final = ColumnType("BIGNUMERIC", "BIGNUMERIC", f'STRUCT("{UNITS}" BLOB)', pa.struct([(UNITS, pa.binary())]))
STRING: Final = ColumnType("STRING", "STRING", "VARCHAR", pa.string())
BYTES: Final = ColumnType("BYTES", "BYTES", "BLOB", pa.binary(), in_primary_key=False)
DATE: Final = ColumnType("DATE", "DATE", "DATE", pa.date32())
DATETIME: Final = ColumnType("DATETIME", "DATETIME", "TIMESTAMPTZ", pa.timestamp("us", "UTC"))
TIME: Final = ColumnType("TIME", "TIME", "TIME", pa.time64("us"), in_primary_key=False)
TIMESTAMP: Final = ColumnType("TIMESTAMP", "TIMESTAMP", "TIMESTAMP", pa.timestamp("us"))
INTERVAL: Final = ColumnType("INTERVAL", "INTERVAL", "INTERVAL", pa.month_day_nano_interval(), in_primary_key=False)
GEOGRAPHY: Final = ColumnType("GEOGRAPHY", "GEOGRAPHY", f'STRUCT("{TEXT}" VARCHAR)', pa.struct([(TEXT, pa.string())]))
JSON: Final = ColumnType("JSON", "JSON", "JSON", pa.string(), in_primary_key=False)

ALL: Final = (
    BOOL,
    INT64,
    FLOAT64,
    NUMERIC,
    BIGNUMERIC,
    STRING,
    BYTES,
    DATE,
    DATETIME,
    TIME,
    TIMESTAMP,
    INTERVAL,
    GEOGRAPHY,
    JSON,
)
"""The types that stand for themselves; STRUCT and RANGE are made of others."""

_BY_NAME: Final[Mapping[str, ColumnType]] = {name: t for t in ALL for name in (t.googlesql, t.rest)} | {
    "INT": INT64,
    "BIGINT": INT64,
    "SMALLINT": INT64,
    "TINYINT": INT64,
    "BYTEINT": INT64,
    "DECIMAL": NUMERIC,
    "BIGDECIMAL": BIGNUMERIC,
}


def column_type(name: str) -> ColumnType:
    """Return the type of that name, GoogleSQL's or REST's; ApiError for one that does not exist or is not served."""
    try:
        return _BY_NAME[name.upper()]
    except KeyError:
        raise invalid(f"Invalid value for type: {name} is not a type that this stand-in serves") from None


def range_type(element: ColumnType) -> ColumnType:
    """Return RANGE<element>; ApiError where there is none."""
    if element.googlesql not in RANGE_ELEMENTS:
        raise invalid(f"Unsupported element type for RANGE: {element.googlesql}; {', '.join(RANGE_ELEMENTS)} are")
    return ColumnType(
        f"RANGE<{element.googlesql}>",
        "RANGE",
        f'STRUCT("{BOUNDED}" BOOLEAN, "{START}" {element.duckdb}, "{END}" {element.duckdb})',
        pa.struct([(BOUNDED, pa.bool_()), (START, element.arrow), (END, element.arrow)]),
        in_primary_key=False,
        element=element,
    )


def struct_type(fields: Sequence[Column]) -> ColumnType:
    """Return STRUCT of these fields; ApiError where there are none."""
    if not fields:
        raise invalid("A RECORD must have at least one field")
    for field in fields:
        if not field.name:
            raise ApiError("notImplemented", "This stand-in does not serve columns with STRUCT fields without a name")
    googlesql = ", ".join(f"{field.name} {field.data_type}" for field in fields)
    duckdb = ", ".join(f'"{field.name}" {field.duckdb}' for field in fields)
    return ColumnType(
        f"STRUCT<{googlesql}>",
        "RECORD",
        f"STRUCT({duckdb})",
        pa.struct([(field.name, field.arrow) for field in fields]),
        in_primary_key=False,
        fields=tuple(fields),
    )
