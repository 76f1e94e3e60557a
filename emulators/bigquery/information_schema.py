"""INFORMATION_SCHEMA, as far as it is served: a dataset's tables, columns, keys and options, and a region's jobs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from emulators.bigquery.catalog import Table, TableName
from emulators.bigquery.column_types import Column
from emulators.bigquery.errors import not_found
from emulators.bigquery.job_history import PastJob
from emulators.bigquery.reservations import VIEWS
from emulators.bigquery.staleness import Staleness

_TIME: Final = pa.timestamp("us")


def _texts(*names: str) -> Sequence[tuple[str, pa.DataType]]:
    """Return fields that hold text."""
    return [(name, pa.string()) for name in names]


_TABLE_NAME: Final = _texts("table_catalog", "table_schema", "table_name")
"""The fields that name the table in each view of a dataset."""
_JOB: Final = _texts("project_id", "user_email", "job_id", "job_type", "statement_type")
"""The fields of a job that both views of jobs have."""
_TABLES: Final = pa.schema(
    [
        *_TABLE_NAME,
        *_texts("table_type", "is_insertable_into"),
        ("creation_time", _TIME),
        ("upsert_stream_apply_watermark", _TIME),
    ]
)
_TABLE_OPTIONS: Final = pa.schema([*_TABLE_NAME, *_texts("option_name", "option_type", "option_value")])
_VIEWS: Final = pa.schema([*_TABLE_NAME, *_texts("view_definition", "use_standard_sql")])
_COLUMNS: Final = pa.schema(
    [
        *_TABLE_NAME,
        *_texts("column_name"),
        ("ordinal_position", pa.int64()),
        *_texts("is_nullable", "data_type", "is_partitioning_column"),
        ("clustering_ordinal_position", pa.int64()),
    ]
)
_COLUMN_FIELD_PATHS: Final = pa.schema([*_TABLE_NAME, *_texts("column_name", "field_path", "data_type", "description")])
_TABLE_CONSTRAINTS: Final = pa.schema(
    [
        *_texts("constraint_catalog", "constraint_schema", "constraint_name"),
        *_TABLE_NAME,
        *_texts("constraint_type", "enforced"),
    ]
)
_KEY_COLUMN_USAGE: Final = pa.schema(
    [*_texts("constraint_name"), *_TABLE_NAME, *_texts("column_name"), ("ordinal_position", pa.int64())]
)
_TABLE_REFERENCE: Final = pa.struct(_texts("project_id", "dataset_id", "table_id"))
_JOBS: Final = pa.schema(
    [
        ("creation_time", _TIME),
        *_JOB,
        ("start_time", _TIME),
        ("end_time", _TIME),
        *_texts("query", "state"),
        ("error_result", pa.struct(_texts("reason", "location", "message"))),
        ("total_bytes_processed", pa.int64()),
        ("total_bytes_billed", pa.int64()),
        ("total_slot_ms", pa.int64()),
        ("destination_table", _TABLE_REFERENCE),
        ("referenced_tables", pa.list_(_TABLE_REFERENCE)),
    ]
)
_JOBS_TIMELINE: Final = pa.schema(
    [
        ("period_start", _TIME),
        ("period_slot_ms", pa.int64()),
        *_JOB,
        ("job_creation_time", _TIME),
        ("job_start_time", _TIME),
        ("job_end_time", _TIME),
        *_texts("state"),
    ]
)


def dataset_view(view: str, tables: Sequence[Table], staleness: Staleness) -> pa.Table:
    """Return a view of a dataset's tables; ApiError for one that is not served."""
    if view == "TABLES":
        return _table(_TABLES, [_tables(table, staleness) for table in tables])
    if view not in _OF_TABLES:
        raise not_found(f"INFORMATION_SCHEMA.{view} (this stand-in serves TABLES, {', '.join(sorted(_OF_TABLES))})")
    schema, rows = _OF_TABLES[view]
    return _table(schema, [row for table in tables for row in rows(table)])


def region_view(view: str, jobs: Sequence[PastJob], reserved: pa.Table | None) -> pa.Table:
    """Return a view of a project's jobs in a region, or what is reserved there; ApiError for one that is not served."""
    if reserved is not None:
        return reserved
    match view.removesuffix("_BY_PROJECT"):
        case "JOBS":
            return _table(_JOBS, [_job(job) for job in jobs])
        case "JOBS_TIMELINE":
            return _table(_JOBS_TIMELINE, [row for job in jobs for row in _timeline(job)])
        case _:
            raise not_found(
                f"INFORMATION_SCHEMA.{view} (of a region this stand-in serves JOBS, JOBS_TIMELINE, {', '.join(VIEWS)})"
            )


def _table(schema: pa.Schema, rows: Sequence[Sequence[object]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _described(job: PastJob) -> Sequence[object]:
    return job.project, job.user, job.job_id, "QUERY", job.statement_type


def _job(job: PastJob) -> Sequence[object]:
    return (
        job.created,
        *_described(job),
        job.created,
        job.ended,
        job.query,
        "DONE",
        None,  # one that failed is not kept
        job.processed,
        job.billed,
        job.slot_milliseconds,
        None if job.destination is None else _reference(job.destination),
        [_reference(name) for name in job.read],
    )


def _reference(name: TableName) -> Mapping[str, str]:
    return {"project_id": name.project, "dataset_id": name.dataset, "table_id": name.table}


def _timeline(job: PastJob) -> Iterator[Sequence[object]]:
    for start, slot_milliseconds in job.periods():
        yield (
            start,
            slot_milliseconds,
            *_described(job),
            job.created,
            job.created,
            job.ended,
            "DONE",
        )


def _tables(table: Table, staleness: Staleness) -> Sequence[object]:
    kind, writable = ("VIEW", "NO") if table.query else ("BASE TABLE", "YES")
    return (*_name(table), kind, writable, table.created, staleness.watermark(table))


def _table_options(table: Table) -> Iterator[Sequence[object]]:
    for key, (option, option_type) in _OPTIONS.items():
        value = table.properties.get(key)
        if isinstance(value, Mapping):
            pairs = ", ".join(f"STRUCT({_literal(k)}, {_literal(v)})" for k, v in value.items())
            yield (*_name(table), option, option_type, f"[{pairs}]")
        elif value is not None:
            yield (*_name(table), option, option_type, str(value) if option_type == "INTERVAL" else _literal(value))


def _literal(value: object) -> str:
    return msgspec.json.encode(str(value)).decode()


def _views(table: Table) -> Sequence[Sequence[object]]:
    return [(*_name(table), table.query, "YES")] if table.query else []


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


def _column_field_paths(table: Table) -> Iterator[Sequence[object]]:
    for column in table.columns:
        for path, field in _paths(column, column.name):
            yield (*_name(table), column.name, path, field.data_type, field.description or None)


def _paths(column: Column, path: str) -> Iterator[tuple[str, Column]]:
    yield path, column
    for field in column.type.fields:
        yield from _paths(field, f"{path}.{field.name}")


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


_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "maxStaleness": ("max_staleness", "INTERVAL"),
    "description": ("description", "STRING"),
    "friendlyName": ("friendly_name", "STRING"),
    "labels": ("labels", "ARRAY<STRUCT<STRING, STRING>>"),
}
_OF_TABLES: Final[Mapping[str, tuple[pa.Schema, Callable[[Table], Iterable[Sequence[object]]]]]] = {
    "COLUMNS": (_COLUMNS, _columns),
    "COLUMN_FIELD_PATHS": (_COLUMN_FIELD_PATHS, _column_field_paths),
    "TABLE_CONSTRAINTS": (_TABLE_CONSTRAINTS, _table_constraints),
    "KEY_COLUMN_USAGE": (_KEY_COLUMN_USAGE, _key_column_usage),
    "TABLE_OPTIONS": (_TABLE_OPTIONS, _table_options),
    "VIEWS": (_VIEWS, _views),
}
