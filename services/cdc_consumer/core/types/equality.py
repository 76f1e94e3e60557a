"""Which rows of two columns differ, as the type map defines *equal*; a whole column at once.

NULL equals NULL, NaN equals NaN, an array that is NULL equals an empty one, a NUMERIC is its number, a JSON its value.
Values of JSON are inspected one by one, and only where their texts differ.
"""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.types.types import JSON, NUMERIC, ColumnType
from services.cdc_consumer.core.types.values import normal_numerics

_DIGITS_OF_FLOAT64: Final = 17


def _first_of_each(members: Sequence[tuple[str, object]]) -> Mapping[str, object]:
    """Return an object as BigQuery keeps it: of two members of one name the first (GoogleSQL, "JSON type")."""
    return dict(reversed(members))


_decode: Final = json.JSONDecoder(object_pairs_hook=_first_of_each, parse_int=Decimal, parse_float=Decimal).decode

Mask = npt.NDArray[np.bool_]


def differing(kind: ColumnType, left: pa.Array, right: pa.Array) -> Mask:
    """Return in which places two columns of one type, equally long, differ."""
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
    """Return whether two JSON texts mean the same: order of members and spelling of numbers aside.

    Numbers are compared exactly. BigQuery may write a FLOAT64 with up to 17 digits, of which fewer mean the same; a
    number with more digits than that is no FLOAT64.
    """
    if left is None or right is None:
        return left is right
    try:
        return _same(_decode(left), _decode(right))
    except (ValueError, ArithmeticError, RecursionError):
        return False


def _same(left: object, right: object) -> bool:
    match left, right:
        case dict(), dict():
            return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
        case list(), list():
            return len(left) == len(right) and all(map(_same, left, right))
        case (bool(), _) | (_, bool()):
            return left is right
        case Decimal(), Decimal():
            return left == right or _same_float(left, right)
        case _:
            return type(left) is type(right) and left == right


def _same_float(left: Decimal, right: Decimal) -> bool:
    """Return whether two numbers are spellings of one FLOAT64; a whole number of 64 bits is none."""
    if any(_is_whole(number) or _digits(number) > _DIGITS_OF_FLOAT64 for number in (left, right)):
        return False
    return float(left) == float(right) and math.isfinite(float(left))


def _is_whole(number: Decimal) -> bool:
    return number.as_tuple().exponent == 0 and -(2**63) <= number < 2**64


def _digits(number: Decimal) -> int:
    return len("".join(map(str, number.as_tuple().digits)).strip("0"))
