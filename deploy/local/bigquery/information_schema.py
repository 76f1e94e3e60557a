"""INFORMATION_SCHEMA, as far as it is served: tables, columns and primary keys."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from deploy.local.bigquery.catalog import Table
from deploy.local.bigquery.errors import not_found

_TABLES: Final = pa.schema(
    [
        ("table_catalog", pa.string()),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("table_type", pa.string()),
        ("creation_time", pa.timestamp("us")),
    ]
)
_COLUMNS: Final = pa.schema(
    [
        ("table_catalog", pa.string()),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("column_name", pa.string()),
        ("ordinal_position", pa.int64()),
        ("is_nullable", pa.string()),
        ("data_type", pa.string()),
        ("is_partitioning_column", pa.string()),
        ("clustering_ordinal_position", pa.int64()),
    ]
)
_TABLE_CONSTRAINTS: Final = pa.schema(
    [
        ("constraint_catalog", pa.string()),
        ("constraint_schema", pa.string()),
        ("constraint_name", pa.string()),
        ("table_catalog", pa.string()),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("constraint_type", pa.string()),
        ("enforced", pa.string()),
    ]
)
_KEY_COLUMN_USAGE: Final = pa.schema(
    [
        ("constraint_name", pa.string()),
        ("table_catalog", pa.string()),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("column_name", pa.string()),
        ("ordinal_position", pa.int64()),
    ]
)


def information_schema(view: str, tables: Sequence[Table]) -> pa.Table:
    """Return a view of a dataset's tables; ApiError for one that is not served."""
    if view not in _VIEWS:
        raise not_found(f"INFORMATION_SCHEMA.{view} (this stand-in serves {', '.join(sorted(_VIEWS))})")
    schema, rows = _VIEWS[view]
    return pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for table in tables for row in rows(table)], schema
    )


def _tables(table: Table) -> Sequence[Sequence[object]]:
    return [(*_name(table), "VIEW" if table.query else "BASE TABLE", table.created)]


def _columns(table: Table) -> Sequence[Sequence[object]]:
    partitioned_by = table.partitioning.column if table.partitioning is not None else None
    clustering = {name: position for position, name in enumerate(table.clustering, 1)}
    return [
        (
            *_name(table),
            column.name,
            position,
            "NO" if column.mode == "REQUIRED" else "YES",
            column.data_type,
            "YES" if partitioned_by == column.name else "NO",
            clustering.get(column.name),
        )
        for position, column in enumerate(table.columns, 1)
    ]


def _table_constraints(table: Table) -> Sequence[Sequence[object]]:
    if not table.primary_key:
        return []
    project, dataset, name = _name(table)
    return [(project, dataset, f"{name}.pk$", project, dataset, name, "PRIMARY KEY", "NO")]


def _key_column_usage(table: Table) -> Sequence[Sequence[object]]:
    constraint = f"{table.name.table}.pk$"
    return [(constraint, *_name(table), column, position) for position, column in enumerate(table.primary_key, 1)]


def _name(table: Table) -> tuple[str, str, str]:
    return table.name.project, table.name.dataset, table.name.table


_VIEWS: Final[Mapping[str, tuple[pa.Schema, Callable[[Table], Sequence[Sequence[object]]]]]] = {
    "TABLES": (_TABLES, _tables),
    "COLUMNS": (_COLUMNS, _columns),
    "TABLE_CONSTRAINTS": (_TABLE_CONSTRAINTS, _table_constraints),
    "KEY_COLUMN_USAGE": (_KEY_COLUMN_USAGE, _key_column_usage),
}
