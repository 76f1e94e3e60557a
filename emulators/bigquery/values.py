"""Values from a protobuf type to a column type, a column at a time; what does not fit is named by its row.

Bounds: BigQuery, "Introduction to the Storage Write API" (DATE as days), "Data types" (NUMERIC, TIMESTAMP, JSON).
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from emulators.bigquery import decimals
from emulators.bigquery.civil_times import datetime_microseconds, time_microseconds
from emulators.bigquery.column_types import DATE, NUMERIC, TEXT, TIMESTAMP, UNITS, ColumnType
from emulators.bigquery.geographies import geography_text
from emulators.bigquery.intervals import Interval, parse_interval

DATE_BOUNDS: Final = (-719_162, 2_932_896)  # 0001-01-01 to 9999-12-31
TIMESTAMP_BOUNDS: Final = (DATE_BOUNDS[0] * 86_400_000_000, (DATE_BOUNDS[1] + 1) * 86_400_000_000 - 1)


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
            return _bounded(array, DATE_BOUNDS, "DATE", lambda days: days.cast(pa.int32()).cast(DATE.arrow))
        case "TIMESTAMP":
            return _bounded(array, TIMESTAMP_BOUNDS, "TIMESTAMP", lambda micros: micros.cast(TIMESTAMP.arrow))
        case "NUMERIC":
            return _numeric(array)
        case kind if kind in _ONE_BY_ONE:
            return _one_by_one(array, _ONE_BY_ONE[kind], column_type)
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
            return Converted(array.cast(NUMERIC.arrow))
        except pa.ArrowInvalid:
            pass  # at least one does not fit: find out which
    return _one_by_one(array, _decimal, NUMERIC)


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
    return Decimal(decimals.NUMERIC.units(value)).scaleb(-decimals.NUMERIC.scale)


def _bignumeric(value: object) -> Mapping[str, bytes]:
    return {UNITS: decimals.sortable(decimals.BIGNUMERIC.units(value))}


def _interval(value: object) -> tuple[int, int, int]:
    # A Duration comes in microseconds, and is a time of day: days and months are none of its own.
    interval = Interval(microseconds=value) if isinstance(value, int) else parse_interval(str(value))
    return interval.months, interval.days, interval.microseconds * 1_000


def _geography(value: object) -> Mapping[str, str]:
    return {TEXT: geography_text(str(value))}


def _json(value: object) -> str:
    # BigQuery keeps the value, not its text: no spaces, no promise about the order of members, and of two members of
    # one name the first. It has whole numbers from INT64's least to UINT64's largest (GoogleSQL, "JSON type").
    try:
        msgspec.json.decode(str(value), type=msgspec.Raw)
        return msgspec.json.encode(_decode_json(str(value)), order="sorted").decode()
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _json_integer(text: str) -> int:
    number = int(text)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{text} is beyond 64 bits")
    return number


def _json_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond FLOAT64")
    return number


_decode_json: Final = json.JSONDecoder(
    object_pairs_hook=lambda members: dict(reversed(members)), parse_int=_json_integer, parse_float=_json_float
).decode


_ONE_BY_ONE: Final[Mapping[str, Callable[[object], object]]] = {
    "BIGNUMERIC": _bignumeric,
    "DATETIME": datetime_microseconds,
    "TIME": time_microseconds,
    "INTERVAL": _interval,
    "GEOGRAPHY": _geography,
    "JSON": _json,
}
