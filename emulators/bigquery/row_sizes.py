"""How many logical bytes the values of a row have, as DuckDB expressions.

Source: GoogleSQL, "Data types", section "Data type sizes".
"""

from collections.abc import Mapping, Sequence
from typing import Final

from emulators.bigquery.column_types import TEXT, Column, ColumnType
from emulators.bigquery.storage import quoted

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


def bytes_of(columns: Sequence[Column]) -> str:
    """Return a DuckDB expression for the bytes of all values in some columns, there being at least one."""
    return " + ".join(f"coalesce(sum({_size(column, quoted(column.name))}), 0)" for column in columns)


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
