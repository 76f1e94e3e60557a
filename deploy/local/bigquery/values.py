"""Values from a protobuf type to a column type, a column at a time; what does not fit is named by its row.

Bounds: BigQuery, "Introduction to the Storage Write API" (DATE as days), "Data types" (NUMERIC, TIMESTAMP, JSON).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from deploy.local.bigquery.column_types import DATE as DATE_TYPE
from deploy.local.bigquery.column_types import NUMERIC as NUMERIC_TYPE
from deploy.local.bigquery.column_types import TIMESTAMP as TIMESTAMP_TYPE
from deploy.local.bigquery.column_types import ColumnType

DATE_BOUNDS: Final = (-719_162, 2_932_896)  # 0001-01-01 to 9999-12-31
TIMESTAMP_BOUNDS: Final = (DATE_BOUNDS[0] * 86_400_000_000, (DATE_BOUNDS[1] + 1) * 86_400_000_000 - 1)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NUMERIC_UNITS: Final = 10**38  # NUMERIC has 38 digits, 9 of them after the point
_SCALE: Final = 10**9


@dataclass(frozen=True)
class Converted:
    """A column's values, and what is wrong with those that did not fit (null in ``values``), by row."""

    values: pa.Array
    errors: Mapping[int, str] = field(default_factory=dict)


def convert(array: pa.Array, column_type: ColumnType) -> Converted:
    """Return the values as the column holds them. ``array`` is of the Arrow type of an allowed protobuf type."""
    match column_type.googlesql:
        case "BOOL" if not pa.types.is_boolean(array.type):
            return Converted(pc.not_equal(array, 0))
        case "DATE":
            return _bounded(array, DATE_BOUNDS, "DATE", lambda days: days.cast(pa.int32()).cast(DATE_TYPE.arrow))
        case "TIMESTAMP":
            return _bounded(array, TIMESTAMP_BOUNDS, "TIMESTAMP", lambda micros: micros.cast(TIMESTAMP_TYPE.arrow))
        case "NUMERIC":
            return _numeric(array)
        case "JSON":
            return _one_by_one(array, _json, column_type)
        case _:
            return Converted(array.cast(column_type.arrow))


def _bounded(array: pa.Array, bounds: tuple[int, int], what: str, cast: Callable[[pa.Array], pa.Array]) -> Converted:
    numbers = array.cast(pa.int64())
    lowest, highest = bounds
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is None or (extremes["min"] >= lowest and extremes["max"] <= highest):
        return Converted(cast(numbers))
    fits = pc.and_(pc.greater_equal(numbers, lowest), pc.less_equal(numbers, highest))
    outside = pc.indices_nonzero(pc.invert(fits)).to_pylist()
    errors = {index: f"{what} out of range: {numbers[index]}" for index in outside}
    return Converted(cast(pc.if_else(fits, numbers, pa.scalar(None, pa.int64()))), errors)


def _numeric(array: pa.Array) -> Converted:
    if pa.types.is_integer(array.type) or pa.types.is_string(array.type):
        try:
            return Converted(array.cast(NUMERIC_TYPE.arrow))
        except pa.ArrowInvalid:
            pass  # at least one does not fit: find out which
    return _one_by_one(array, _decimal, NUMERIC_TYPE)


def _one_by_one(array: pa.Array, converter: Callable[[object], object], column_type: ColumnType) -> Converted:
    values: list[object] = []
    errors = {}
    for index, value in enumerate(array.to_pylist()):
        try:
            values.append(None if value is None else converter(value))
        except (ValueError, RecursionError) as error:
            values.append(None)
            errors[index] = f"Invalid {column_type.googlesql} value: {error}"
    return Converted(pa.array(values, column_type.arrow), errors)


def _decimal(value: object) -> Decimal:
    if isinstance(value, bytes):  # BigDecimalByteStringEncoder: units of 10^-9, little-endian two's complement
        units = int.from_bytes(value, "little", signed=True)
        if abs(units) >= _NUMERIC_UNITS:
            raise ValueError("out of range")
        return Decimal(units).scaleb(-9)
    text = repr(value) if isinstance(value, float) else str(value)
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError("not a number")
    numerator, denominator = Decimal(text).as_integer_ratio()
    if isinstance(value, float):  # rounded, as a cast from FLOAT64 is; text must be exact
        return Decimal(_in_range(round(numerator * _SCALE / denominator))).scaleb(-9)
    units, rest = divmod(numerator * _SCALE, denominator)
    if rest:
        raise ValueError("more than 9 digits after the decimal point")
    return Decimal(_in_range(units)).scaleb(-9)


def _in_range(units: int) -> int:
    if abs(units) >= _NUMERIC_UNITS:
        raise ValueError("out of range")
    return units


def _json(value: object) -> str:
    # BigQuery keeps the value, not its text: no spaces, and no promise about the order of members.
    try:
        return msgspec.json.encode(msgspec.json.decode(str(value)), order="sorted").decode()
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
