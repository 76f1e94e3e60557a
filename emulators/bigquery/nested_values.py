"""Values of a column with all that is in it: arrays, the fields of a STRUCT, the two ends of a RANGE.

Source: BigQuery, "Introduction to the Storage Write API", section "Data type conversions" (RANGE, REPEATED, RECORD).
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from emulators.bigquery.column_types import BOUNDED, END, START, Column, ColumnType
from emulators.bigquery.values import Converted, convert

RANGE_START, RANGE_END = "start", "end"
"""What the fields of a writer's message for a RANGE are called."""

_MISSING: Final = "value is NULL or missing, but it is required"


def convert_column(array: pa.Array, column: Column, path: str = "") -> Converted:
    """Return a column's values as it holds them; what is wrong names the field by its whole path."""
    path += column.name
    if not column.repeated:
        return _convert_single(array, column.type, path)
    lengths = pc.fill_null(pc.list_value_length(array), 0)  # BigQuery knows no NULL array, only []
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    converted = _convert_single(array.flatten(), column.type, path)
    errors: dict[int, str] = {}
    if converted.errors:
        rows = pc.list_parent_indices(array)
        for element, error in converted.errors.items():
            errors.setdefault(rows[element].as_py(), error)
    return Converted(pa.ListArray.from_arrays(offsets, converted.values), errors)


def required_but_missing(path: str) -> str:
    """Return the error of a row without a value that it must have."""
    return f"Field {path}: {_MISSING}"


def _convert_single(array: pa.Array, column_type: ColumnType, path: str) -> Converted:
    if column_type.fields:
        return _convert_struct(array, column_type, path)
    if column_type.element is not None:
        return _convert_range(array, column_type, column_type.element, path)
    converted = convert(array, column_type)
    if not converted.errors:
        return converted
    return Converted(converted.values, {index: f"Field {path}: {error}" for index, error in converted.errors.items()})


def _convert_struct(array: pa.Array, column_type: ColumnType, path: str) -> Converted:
    errors: dict[int, str] = {}
    parts = []
    for field in column_type.fields:
        there = pa.types.is_struct(array.type) and array.type.get_field_index(field.name) >= 0
        values = pc.struct_field(array, field.name) if there else pa.nulls(len(array), field.arrow)
        converted = convert_column(values, field, f"{path}.")
        _gather(errors, converted.errors)
        if field.mode == "REQUIRED":
            missing = pc.and_(pc.is_null(converted.values), pc.is_valid(array))
            for index in pc.indices_nonzero(missing).to_pylist():
                errors.setdefault(index, required_but_missing(f"{path}.{field.name}"))
        parts.append(converted.values)
    values = pa.StructArray.from_arrays(parts, fields=list(column_type.arrow), mask=pc.is_null(array))
    return Converted(values, errors)


def _convert_range(array: pa.Array, column_type: ColumnType, element: ColumnType, path: str) -> Converted:
    errors: dict[int, str] = {}
    ends = []
    for name in (RANGE_START, RANGE_END):
        there = pa.types.is_struct(array.type)
        converted = _convert_single(
            pc.struct_field(array, name) if there else pa.nulls(len(array), element.arrow), element, f"{path}.{name}"
        )
        _gather(errors, converted.errors)
        ends.append(converted.values)
    start, end = ends
    for index in pc.indices_nonzero(pc.greater_equal(start, end)).to_pylist():
        errors.setdefault(index, f"Field {path}: Invalid RANGE value: its start must be earlier than its end")
    parts = {BOUNDED: pc.is_valid(start), START: start, END: end}
    values = pa.StructArray.from_arrays(
        [parts[field.name] for field in column_type.arrow], fields=list(column_type.arrow), mask=pc.is_null(array)
    )
    return Converted(values, errors)


def _gather(errors: dict[int, str], more: Mapping[int, str]) -> None:
    for index, error in more.items():
        errors.setdefault(index, error)
