"""Result rows as the REST API writes them: every value a string, rows as ``{"f": [{"v": ..}, ..]}``.

Source: BigQuery REST reference, `jobs.getQueryResults` and `DataFormatOptions`.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from deploy.local.bigquery.errors import invalid_query
from deploy.local.bigquery.storage import JSON_COLUMN


class TimestampFormat(Enum):
    """How a TIMESTAMP is written."""

    FLOAT64 = "seconds, as a float: what a request gets that asks for nothing else"
    INT64 = "integer microseconds"
    ISO8601_STRING = "ISO 8601 with Z"


def timestamp_format(options: Mapping[str, Any]) -> TimestampFormat:
    """Return the format that a request's ``formatOptions`` ask for."""
    asked = str(options.get("timestampOutputFormat") or "TIMESTAMP_OUTPUT_FORMAT_UNSPECIFIED")
    if asked in TimestampFormat.__members__:
        return TimestampFormat[asked]
    as_integer = str(options.get("useInt64Timestamp", "")).lower() == "true"
    return TimestampFormat.INT64 if as_integer else TimestampFormat.FLOAT64


def result_schema(schema: pa.Schema) -> Sequence[Mapping[str, Any]]:
    """Return the fields of a query's result."""
    return [_field(field) for field in schema]


def result_rows(rows: pa.Table, timestamps: TimestampFormat) -> Sequence[Mapping[str, Any]]:
    """Return rows as the API writes them."""
    columns = [[{"v": value} for value in _values(column, timestamps)] for column in rows.columns]
    return [{"f": list(cells)} for cells in zip(*columns, strict=True)]


def _field(field: pa.Field) -> Mapping[str, Any]:
    if pa.types.is_list(field.type):
        element = field.type.value_field.with_name(field.name).with_metadata(field.metadata)
        return {**_field(element), "mode": "REPEATED"}
    type_name = "JSON" if field.metadata == JSON_COLUMN else _type_name(field.type)
    resource: dict[str, Any] = {"name": field.name, "type": type_name, "mode": "NULLABLE"}
    if pa.types.is_struct(field.type):
        resource["fields"] = [_field(field.type.field(index)) for index in range(field.type.num_fields)]
    return resource


def _type_name(arrow: pa.DataType) -> str:
    names: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
        (pa.types.is_boolean, "BOOLEAN"),
        (pa.types.is_integer, "INTEGER"),
        (pa.types.is_floating, "FLOAT"),
        (lambda t: pa.types.is_decimal(t) and t.scale == 0, "INTEGER"),  # a SUM of INT64 is a HUGEINT in DuckDB
        (pa.types.is_decimal, "NUMERIC"),
        (pa.types.is_string, "STRING"),
        (pa.types.is_large_string, "STRING"),
        (pa.types.is_binary, "BYTES"),
        (pa.types.is_large_binary, "BYTES"),
        (pa.types.is_date, "DATE"),
        (pa.types.is_timestamp, "TIMESTAMP"),
        (pa.types.is_time, "TIME"),
        (pa.types.is_struct, "RECORD"),
        (pa.types.is_null, "INTEGER"),
    )
    for holds, name in names:
        if holds(arrow):
            return name
    raise invalid_query(f"This stand-in cannot return values of the type {arrow}")


def _values(column: pa.ChunkedArray, timestamps: TimestampFormat) -> Sequence[Any]:
    arrow = column.type
    match _type_name(arrow) if not pa.types.is_list(arrow) else "REPEATED":
        case "REPEATED":
            return [
                [{"v": value} for value in _values_of(values or [], arrow, timestamps)] for values in column.to_pylist()
            ]
        case "RECORD":
            fields = [arrow.field(index).name for index in range(arrow.num_fields)]
            parts = [_values(pc.struct_field(column, name), timestamps) for name in fields]
            cells = [{"f": [{"v": value} for value in values]} for values in zip(*parts, strict=True)]
            return [cell if valid else None for cell, valid in zip(cells, column.is_valid().to_pylist(), strict=True)]
        case "BOOLEAN" | "INTEGER" | "TIME" | "DATE":
            return _texts(column)
        case "FLOAT":
            return [None if value is None else _float(value) for value in column.to_pylist()]
        case "NUMERIC":
            return [None if value is None else _decimal(f"{value:f}") for value in column.to_pylist()]
        case "BYTES":
            return [None if value is None else b64encode(value).decode() for value in column.to_pylist()]
        case "TIMESTAMP":
            return _timestamps(column.cast(pa.timestamp("us")), timestamps)
        case _:
            return _texts(column)


def _values_of(values: Sequence[Any], arrow: pa.DataType, timestamps: TimestampFormat) -> Sequence[Any]:
    return _values(pa.chunked_array([pa.array(values, arrow.value_type)]), timestamps)


def _texts(column: pa.ChunkedArray) -> Sequence[Any]:
    texts: Sequence[Any] = column.cast(pa.string()).to_pylist()
    return texts


def _timestamps(column: pa.ChunkedArray, timestamps: TimestampFormat) -> Sequence[Any]:
    if timestamps is TimestampFormat.ISO8601_STRING:
        return [None if text is None else text.replace(" ", "T") + "Z" for text in column.cast(pa.string()).to_pylist()]
    micros = column.cast(pa.int64())
    if timestamps is TimestampFormat.INT64:
        return _texts(micros)
    return [None if value is None else f"{value / 1_000_000:.6f}" for value in micros.to_pylist()]


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _decimal(text: str) -> str:
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
