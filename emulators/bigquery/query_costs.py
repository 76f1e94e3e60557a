"""What a query reads and is billed for: the logical bytes of all values in the columns that it names.

Sources: GoogleSQL, "Data types", section "Data type sizes", and "Data definition language", section "On-demand query
size calculation" (each column of a table once); BigQuery, "Pricing", "On-demand compute pricing" (rounded up to a
mebibyte, ten of each table at least), and "Estimate and control costs", section "Restrict the number of bytes billed
per query". A partition or cluster that a condition passes over is counted all the same: the figure is an upper bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from emulators.bigquery.column_types import TEXT, Column, ColumnType
from emulators.bigquery.errors import ApiError
from emulators.bigquery.sql import Translated
from emulators.bigquery.storage import quoted, view
from emulators.bigquery.warehouse import Warehouse

_MEBIBYTE: Final = 1 << 20
_LEAST: Final = 10 * _MEBIBYTE
_SIZES: Final[Mapping[str, int]] = {
    "BOOL": 1,
    "INT64": 8,
    "FLOAT64": 8,
    "NUMERIC": 16,
    "BIGNUMERIC": 32,
    "DATE": 8,
    "DATETIME": 8,
    "TIME": 8,
    "TIMESTAMP": 8,
    "INTERVAL": 16,
    "RANGE": 16,
}


@dataclass(frozen=True)
class QueryCost:
    """How many bytes a query reads, and is billed for."""

    processed: int = 0
    billed: int = 0

    def check(self, most: int | None) -> None:
        """Refuse a query that would be billed for more bytes than ``most``."""
        if most is not None and self.billed > most:
            raise ApiError(
                "bytesBilledLimitExceeded",
                f"Query exceeded limit for bytes billed: {most}. {self.billed} or higher required.",
            )


FREE: Final = QueryCost()


def query_cost(warehouse: Warehouse, translated: Translated) -> QueryCost:
    """Return what a query costs as the tables are now."""
    processed = billed = 0
    for table in {table.number: table for table in translated.tables}.values():
        names = translated.columns[table.number]
        named = [column for column in table.columns if names is None or column.name.lower() in names]
        sizes = [_size(column, quoted(column.name)) for column in named]
        if not sizes:
            continue
        sums = " + ".join(f"coalesce(sum({size}), 0)" for size in sizes)
        size = int(warehouse.query(f"SELECT {sums} FROM {view(table)}", [table]).column(0)[0].as_py())
        processed += size
        billed += max(_LEAST, -(-size // _MEBIBYTE) * _MEBIBYTE)
    return QueryCost(processed, billed)


def _size(column: Column, value: str) -> str:
    """Return a DuckDB expression for the bytes of a column's value, or of a field's."""
    if column.repeated:
        return f"coalesce(list_sum(list_transform({value}, lambda e: {_size_of_one(column.type, 'e')})), 0)"
    return _size_of_one(column.type, value)


def _size_of_one(kind: ColumnType, value: str) -> str:
    if kind.fields:
        return f"({' + '.join(_size(field, f'{value}.{quoted(field.name)}') for field in kind.fields)})"
    match kind.kind:
        case "STRING":
            return f"coalesce(2 + strlen({value}), 0)"
        case "BYTES":
            return f"coalesce(2 + octet_length({value}), 0)"
        case "JSON":
            return f"coalesce(strlen({value}::VARCHAR), 0)"
        case "GEOGRAPHY":  # the points of a well-known text are parted by commas
            text = f"{value}.{quoted(TEXT)}"
            return f"coalesce(16 + 24 * (1 + strlen({text}) - strlen(replace({text}, ',', ''))), 0)"
        case name:
            return f"CASE WHEN {value} IS NULL THEN 0 ELSE {_SIZES[name]} END"
