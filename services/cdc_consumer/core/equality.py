"""Which rows of two columns differ, as the type map defines *equal*; a whole column at once.

NULL equals NULL, NaN equals NaN, an array that is NULL equals an empty one, a NUMERIC is its number, a JSON its value.
Values of JSON are looked at one by one, and only where their texts differ.
"""

import json
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.types import JSON, NUMERIC, ColumnType
from services.cdc_consumer.core.values import normal_numerics

Mask = npt.NDArray[np.bool_]


def differing(kind: ColumnType, left: pa.Array, right: pa.Array) -> Mask:
    """Tell in which places two columns of one type, equally long, differ."""
    if kind.element is None or kind.bigquery == "JSON":  # or an array that is kept as JSON
        return _scalars(kind, left, right)
    ours, theirs = _lengths(left), _lengths(right)
    differ: Mask = ours != theirs
    alike = pa.array(~differ)
    elements = _scalars(kind.element, left.filter(alike).flatten(), right.filter(alike).flatten())
    if elements.any():
        owners = np.repeat(np.flatnonzero(~differ), ours[~differ])
        differ[owners[elements]] = True
    return differ


def _lengths(arrays: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.list_value_length(arrays), 0).to_numpy(zero_copy_only=False)
    return lengths


def _scalars(kind: ColumnType, left: pa.Array, right: pa.Array) -> Mask:
    if kind == NUMERIC:
        left, right = normal_numerics(left), normal_numerics(right)
    same = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same = pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    same = pc.or_kleene(pc.fill_null(same, False), pc.and_(left.is_null(), right.is_null()))
    differ: Mask = ~same.to_numpy(zero_copy_only=False)
    if kind.bigquery == JSON.bigquery:
        for place in np.flatnonzero(differ).tolist():
            differ[place] = not same_json(left[place].as_py(), right[place].as_py())
    return differ


def same_json(left: str | None, right: str | None) -> bool:
    """Tell whether two JSON texts mean the same: order of members and spelling of numbers aside."""
    if left is None or right is None:
        return left is right
    try:
        return _same(json.loads(left), json.loads(right))
    except (ValueError, RecursionError):
        return False


def _same(left: object, right: object) -> bool:
    match left, right:
        case dict(), dict():
            return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
        case list(), list():
            return len(left) == len(right) and all(map(_same, left, right))
        case (bool(), _) | (_, bool()):
            return left is right
        case int(), int():
            return left == right
        case ((int() | float()), (int() | float())):
            return _number(left) == _number(right)
        case _:
            return type(left) is type(right) and left == right


def _number(value: float) -> float:
    """Return a number as BigQuery has it in JSON: a FLOAT64 if it is no whole number of 64 bits, and in range."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        with suppress(OverflowError):
            return float(value)
    return value  # Python compares a whole number with a float exactly
