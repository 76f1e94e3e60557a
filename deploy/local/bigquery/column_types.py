"""The column types that the stand-in serves: their names in GoogleSQL, REST and DuckDB, and how Arrow holds them.

A TIMESTAMP is a DuckDB TIMESTAMP in UTC: DuckDB's type with a time zone needs its ICU extension for most of what one
does with it, and not every build of DuckDB has that built in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from deploy.local.bigquery.errors import invalid


@dataclass(frozen=True)
class ColumnType:
    """A column type: GoogleSQL's name, the REST API's older name, DuckDB's, and the Arrow type that holds values."""

    googlesql: str
    rest: str
    duckdb: str
    arrow: pa.DataType
    in_primary_key: bool = True

    @property
    def in_clustering(self) -> bool:
        """Tell whether a table can be clustered by it (BigQuery, "Clustered tables"; the same types as in a key)."""
        return self.in_primary_key


BOOL: Final = ColumnType("BOOL", "BOOLEAN", "BOOLEAN", pa.bool_())
INT64: Final = ColumnType("INT64", "INTEGER", "BIGINT", pa.int64())
FLOAT64: Final = ColumnType("FLOAT64", "FLOAT", "DOUBLE", pa.float64(), in_primary_key=False)
NUMERIC: Final = ColumnType("NUMERIC", "NUMERIC", "DECIMAL(38, 9)", pa.decimal128(38, 9))
STRING: Final = ColumnType("STRING", "STRING", "VARCHAR", pa.string())
BYTES: Final = ColumnType("BYTES", "BYTES", "BLOB", pa.binary(), in_primary_key=False)
DATE: Final = ColumnType("DATE", "DATE", "DATE", pa.date32())
TIMESTAMP: Final = ColumnType("TIMESTAMP", "TIMESTAMP", "TIMESTAMP", pa.timestamp("us"))
JSON: Final = ColumnType("JSON", "JSON", "JSON", pa.string(), in_primary_key=False)

ALL: Final = (BOOL, INT64, FLOAT64, NUMERIC, STRING, BYTES, DATE, TIMESTAMP, JSON)
_BY_NAME: Final[Mapping[str, ColumnType]] = {name: t for t in ALL for name in (t.googlesql, t.rest)} | {
    "INT": INT64,
    "BIGINT": INT64,
    "SMALLINT": INT64,
    "TINYINT": INT64,
    "BYTEINT": INT64,
    "DECIMAL": NUMERIC,
}


def column_type(name: str) -> ColumnType:
    """Return the type of that name, GoogleSQL's or REST's; ApiError for one that does not exist or is not served."""
    try:
        return _BY_NAME[name.upper()]
    except KeyError:
        raise invalid(f"Invalid value for type: {name} is not a type that this stand-in serves") from None
