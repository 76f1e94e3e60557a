"""Result rows as the REST API writes them: every value a string, rows as ``{"f": [{"v": ..}, ..]}``.

Source: BigQuery REST reference, `jobs.getQueryResults` and `DataFormatOptions`; the forms of DATETIME, TIME, INTERVAL
and RANGE are those that google-cloud-bigquery reads (`_helpers.CellDataParser`).
"""

import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from emulators.bigquery.column_types import END, START, TEXT, UNITS
from emulators.bigquery.decimals import bignumeric_text
from emulators.bigquery.errors import invalid_query
from emulators.bigquery.intervals import Interval
from emulators.bigquery.storage import JSON_COLUMN

_UNBOUNDED: Final = "UNBOUNDED"


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
    columns = [[{"v": value} for value in _values(column.combine_chunks(), timestamps)] for column in rows.columns]
    return [{"f": list(cells)} for cells in zip(*columns, strict=True)]


def _field(field: pa.Field) -> Mapping[str, Any]:
    if pa.types.is_list(field.type):
        element = field.type.value_field
        metadata = element.metadata or field.metadata
        return {**_field(element.with_name(field.name).with_metadata(metadata)), "mode": "REPEATED"}
    type_name = "JSON" if field.metadata == JSON_COLUMN else _type_name(field.type)
    resource: dict[str, Any] = {"name": field.name, "type": type_name, "mode": "NULLABLE"}
    if type_name == "RECORD":
        resource["fields"] = [_field(part) for part in field.type]
    if type_name == "RANGE":
        resource["rangeElementType"] = {"type": _type_name(field.type.field(START).type)}
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
        (lambda t: pa.types.is_timestamp(t) and t.tz is not None, "DATETIME"),  # see column_types
        (pa.types.is_timestamp, "TIMESTAMP"),
        (pa.types.is_time, "TIME"),
        (pa.types.is_interval, "INTERVAL"),
        (lambda t: _has_field(t, UNITS), "BIGNUMERIC"),
        (lambda t: _has_field(t, TEXT), "GEOGRAPHY"),
        (lambda t: _has_field(t, START), "RANGE"),
        (pa.types.is_struct, "RECORD"),
        (pa.types.is_null, "INTEGER"),
    )
    for matches, name in names:
        if matches(arrow):
            return name
    raise invalid_query(f"This stand-in cannot return values of the type {arrow}")


def _has_field(arrow: pa.DataType, name: str) -> bool:
    return bool(pa.types.is_struct(arrow) and arrow.get_field_index(name) >= 0)


def _values(column: pa.Array, timestamps: TimestampFormat) -> Sequence[Any]:
    arrow = column.type
    if pa.types.is_list(arrow):
        return _arrays(column, timestamps)
    match _type_name(arrow):
        case "RECORD":
            parts = [_values(pc.struct_field(column, part.name), timestamps) for part in arrow]
            cells = [{"f": [{"v": value} for value in values]} for values in zip(*parts, strict=True)]
            return [cell if valid else None for cell, valid in zip(cells, column.is_valid().to_pylist(), strict=True)]
        case "RANGE":
            return _ranges(column, timestamps)
        case "BIGNUMERIC":
            units = pc.struct_field(column, UNITS).to_pylist()
            return [None if value is None else bignumeric_text(value) for value in units]
        case "GEOGRAPHY":
            return _texts(pc.struct_field(column, TEXT))
        case "DATETIME":
            texts = _texts(column.cast(pa.timestamp("us")))
            return [None if text is None else text.replace(" ", "T").removesuffix(".000000") for text in texts]
        case "TIME":
            texts = _texts(column.cast(pa.time64("us")))
            return [None if text is None else text.removesuffix(".000000") for text in texts]
        case "INTERVAL":
            parts = column.to_pylist()
            return [None if part is None else str(Interval(part[0], part[1], part[2] // 1_000)) for part in parts]
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


def _arrays(column: pa.Array, timestamps: TimestampFormat) -> Sequence[Any]:
    elements = iter([{"v": value} for value in _values(column.flatten(), timestamps)])
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    return [[next(elements) for _ in range(length)] for length in lengths]


def _ranges(column: pa.Array, timestamps: TimestampFormat) -> Sequence[Any]:
    starts, ends = (_values(pc.struct_field(column, name), timestamps) for name in (START, END))
    return [
        f"[{start or _UNBOUNDED}, {end or _UNBOUNDED})" if valid else None
        for start, end, valid in zip(starts, ends, column.is_valid().to_pylist(), strict=True)
    ]


def _texts(column: pa.Array) -> Sequence[Any]:
    texts: Sequence[Any] = column.cast(pa.string()).to_pylist()
    return texts


def _timestamps(column: pa.Array, timestamps: TimestampFormat) -> Sequence[Any]:
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
