"""What was parsed to a column's wire type: what a value means, and whether its type can hold it.

Per type there is a fast way over a whole array, which takes all of it or refuses, and an exact one for a single text,
which is the arbiter. An array that the fast way refuses is halved down to the few texts that only the exact one can
judge, so one bad value costs little and is found alone. An array column is the column of all its elements.
"""

import binascii
import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.types.arrays import by_halves, decode_base64
from services.cdc_consumer.core.types.types import (
    BYTES,
    BYTES_KEY,
    DATE,
    ENUM,
    FLOAT32,
    FLOAT32_KEY,
    FLOAT64_KEY,
    INT64,
    INTERVAL,
    JSON,
    NUMERIC,
    PG_JSONB,
    PG_JSONB_EXACT,
    PG_NUMERIC,
    PROTO,
    PROTO_KEY,
    TIMESTAMP,
    UUID,
    ColumnType,
)
from shared.contracts.timestamps import microseconds, parse_timestamp

FIRST_DAY: Final = -719_162
"""0001-01-01, the first day of BigQuery's DATE and TIMESTAMP, in days since 1970-01-01."""
LAST_DAY: Final = 2_932_896
"""9999-12-31, the last."""
FIRST_MICROSECOND: Final = FIRST_DAY * 86_400_000_000
LAST_MICROSECOND: Final = (LAST_DAY + 1) * 86_400_000_000 - 1

_WHOLE_DIGITS: Final = 29  # NUMERIC: 38 digits, 9 of them after the point
_SCALE: Final = 9

# For RE2 (pyarrow) and for Python alike; \z and fullmatch: a line break at the end is no part of a value.
_WHOLE_NUMBER: Final = re.compile(r"(-?)0*([0-9]{1,19})", re.ASCII)
_PLAIN_NUMERIC: Final = r"-?(?:0|[1-9][0-9]{0,28})(?:\.[0-9]{1,9})?"
_NORMAL_NUMERIC: Final = r"(?:0|-?[1-9][0-9]*|-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9])"
_ANY_NUMERIC: Final = re.compile(r"-?[0-9]{1,1000}(?:\.[0-9]{0,1000})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII)
# The one base64 text of its bytes: the bits that pad the last character are zero.
_NORMAL_BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PG_NUMERIC: Final = r"-?[0-9]+(?:\.[0-9]+)?|NaN"
# ISO 8601, as Spanner writes it; each part has a sign of its own. `_IS_DURATION` refuses "P" and "P1YT".
_DURATION: Final = (
    r"P(?:-?[0-9]+Y)?(?:-?[0-9]+M)?(?:-?[0-9]+D)?(?:T(?:-?[0-9]+H)?(?:-?[0-9]+M)?(?:-?[0-9]+(?:\.[0-9]{1,9})?S)?)?"
)
_IS_DURATION: Final = r".*[YMDHS]"
# Any number with fewer characters, and a shorter exponent, is read back from a FLOAT64 as it was written.
_WIDE_NUMBER: Final = r"[0-9][0-9.]{15}|[eE][+-]?[0-9]{3}"
# A JSON document's texts, its members' names among them, and its numbers.
_JSON_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*', re.ASCII)
_LONGEST_IN_MICROSECONDS: Final = len("2024-01-02T03:04:05.123456Z")
_SHORTEST_INSTANT: Final = len("2024-01-02T03:04:05Z")
_BEFORE_SECONDS: Final = len("2024-01-02T03:04")

_validate_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def wire_values(kind: ColumnType, parsed: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    """Return a parsed column in its wire type, and the indices of the values that do not fit it.

    Parsed are BOOL as such, FLOAT64 and FLOAT32 as numbers of 64 bits, all else as text, arrays as arrays of those.
    What does not fit is NULL in the result; of an array, each element that does not fit is. NULL fits as a value, and
    as an element it is for `holding_null` to tell.
    """
    if kind.element is None:
        return _scalars(kind, parsed)
    values, invalid = _scalars(kind.element, parsed.flatten())
    offsets = _element_offsets(parsed)
    mask = parsed.is_null() if parsed.null_count else None
    arrays = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind.wire, mask=mask)
    return arrays, _owners(offsets, invalid)


def holding_null(arrays: pa.ListArray) -> Sequence[int]:
    """Return the indices of the arrays that have a NULL among their elements."""
    elements = arrays.flatten()
    return _owners(_element_offsets(arrays), _places(elements.is_null())) if elements.null_count else ()


def _element_offsets(arrays: pa.ListArray) -> npt.NDArray[np.int64]:
    """Return where in the flattened elements each array starts (and the last ends), whatever it is a slice of."""
    lengths = pc.fill_null(pc.list_value_length(arrays), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _owners(offsets: npt.NDArray[np.int64], elements: Sequence[int]) -> list[int]:
    """Return the indices of the arrays that elements are in. Of arrays that start together only the last has any."""
    owners: list[int] = (np.searchsorted(offsets, np.array(elements, np.int64), side="right") - 1).tolist()
    return sorted(set(owners))


def _places(mask: pa.BooleanArray) -> list[int]:
    found: list[int] = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist()
    return found


def _scalars(kind: ColumnType, parsed: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    if kind in (FLOAT32, FLOAT32_KEY):
        # However many digits its source writes, a FLOAT32 is the number of 32 bits that is meant.
        single = parsed.cast(pa.float32()).cast(pa.float64())
        beyond = _places(pc.and_(pc.is_finite(parsed), pc.is_inf(single)))
        return _float_texts(single) if kind == FLOAT32_KEY else single, beyond
    if kind == FLOAT64_KEY:
        return _float_texts(parsed), ()
    return _from_texts(kind, parsed)


def _float_texts(numbers: pa.Array) -> pa.Array:
    """Return numbers as the texts by which a key tells them apart."""
    distinct = pc.dictionary_encode(numbers)
    texts = pa.array([None if number is None else float_text(number) for number in distinct.dictionary.to_pylist()])
    return texts.cast(pa.string()).take(distinct.indices)


def float_text(number: float) -> str:
    """Return the one text of a number in a key: the shortest from which it can be read back."""
    if math.isfinite(number):
        return repr(number + 0.0)  # -0.0 and 0.0 are the same key
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _from_texts(kind: ColumnType, texts: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    fitting = _FITTINGS.get(kind)
    if fitting is None:  # BOOL, FLOAT64, STRING and what is not known need no more than they are
        return texts, ()
    invalid: list[int] = []

    def fast(start: int, stop: int) -> pa.Array | None:
        try:
            return fitting.fast(texts.slice(start, stop - start))
        except pa.ArrowInvalid:
            return None

    def exact(start: int, stop: int) -> pa.Array:
        values: list[object] = []
        for index, text in enumerate(texts.slice(start, stop - start).to_pylist(), start):
            try:
                values.append(None if text is None else fitting.exact(text))
            except (ValueError, RecursionError):
                values.append(None)
                invalid.append(index)
        return pa.array(values, kind.wire)

    parts = list(by_halves(0, len(texts), fast, exact))
    return (parts[0] if len(parts) == 1 else pa.concat_arrays(parts)), invalid


def limit_of(kind: ColumnType) -> str:
    """Say, for a dead letter's detail, what a value of a type has to be."""
    if kind.element is not None:
        return f"an element is {limit_of(kind.element)}"
    if kind in (FLOAT32, FLOAT32_KEY):
        return "not a number of 32 bits"
    return _FITTINGS[kind].limit


def beyond_microseconds(texts: pa.Array) -> pa.BooleanArray:
    """Return which timestamps have digits below the microsecond that are not zero: as a key they would be cut."""
    return pc.match_substring_regex(texts, r"\.[0-9]{6}[0-9]*[1-9]")


def normal_numerics(numerics: pa.Array) -> pa.Array:
    """Return NUMERIC values in their one normal text, so that 1, 1.0 and 1.00 are the same key."""
    normal = pc.fill_null(pc.match_substring_regex(numerics, rf"\A{_NORMAL_NUMERIC}\z"), True)
    if pc.all(normal, min_count=0).as_py():
        return numerics
    others = [normal_numeric(text) for text in numerics.filter(pc.invert(normal)).to_pylist()]
    return pc.replace_with_mask(numerics, pc.invert(normal), pa.array(others, numerics.type))


def exact_whole_number(text: str) -> int:
    """Return what an INT64 text means; ValueError for signs, spaces, hexadecimal or more than 64 bits."""
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None:
        raise ValueError("not a whole number")
    number = int(match[1] + match[2])
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("beyond 64 bits")
    return number


def exact_numeric(text: str) -> str:
    """Return a NUMERIC as it is where it is plain, else in its normal text; ValueError where it does not fit."""
    return text if re.fullmatch(_PLAIN_NUMERIC, text, re.ASCII) else normal_numeric(text)


def normal_numeric(text: str) -> str:
    """Return a NUMERIC's one normal text; ValueError beyond 29 digits before the point or 9 after it."""
    if _ANY_NUMERIC.fullmatch(text) is None:
        raise ValueError("not a decimal number")
    # copy_abs, not abs: arithmetic rounds to the context's 28 digits.
    whole, _, fraction = f"{Decimal(text).copy_abs():f}".partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if len(whole) > _WHOLE_DIGITS or len(fraction) > _SCALE:
        raise ValueError("beyond 38 digits, 9 after the point")
    if not whole and not fraction:
        return "0"
    sign = "-" if text.startswith("-") else ""
    return f"{sign}{whole or '0'}{'.' if fraction else ''}{fraction}"


def exact_day(text: str) -> int:
    """Return a DATE in days since 1970-01-01; ValueError for anything but ``YYYY-MM-DD``."""
    if _DAY.fullmatch(text) is None:
        raise ValueError("not a date")
    return date.fromisoformat(text).toordinal() - 1 + FIRST_DAY


def exact_microsecond(text: str) -> int:
    """Return a TIMESTAMP in microseconds since the epoch, cut towards minus infinity; ValueError if it is none."""
    instant = microseconds(parse_timestamp(text))
    if not FIRST_MICROSECOND <= instant <= LAST_MICROSECOND:
        raise ValueError("outside the years 0001 to 9999")
    return instant


def exact_bytes(text: str) -> bytes:
    """Return what a base64 text means; ValueError unless it is of the standard alphabet and padded."""
    if _BASE64.fullmatch(text) is None:
        raise ValueError("not base64")
    return binascii.a2b_base64(text)


def exact_bytes_text(text: str) -> str:
    """Return the one base64 text of the bytes that a base64 text means; ValueError as of `exact_bytes`."""
    return binascii.b2a_base64(exact_bytes(text), newline=False).decode()


def exact_pg_numeric(text: str) -> str:
    """Return a PostgreSQL numeric as it is; ValueError unless it is decimal digits, or NaN."""
    if re.fullmatch(_PG_NUMERIC, text, re.ASCII) is None:
        raise ValueError("not a decimal number")
    return text


def exact_uuid(text: str) -> str:
    """Return a UUID in its one normal text, in lower case; ValueError unless it is one with its four hyphens."""
    if re.fullmatch(_UUID, text.lower(), re.ASCII) is None or not text.isascii():
        raise ValueError("not a UUID")
    return text.lower()


def exact_interval(text: str) -> str:
    """Return an INTERVAL's text as it is; ValueError unless it is an ISO 8601 duration as Spanner writes it."""
    if re.fullmatch(_DURATION, text, re.ASCII) is None or re.fullmatch(_IS_DURATION, text) is None:
        raise ValueError("not an ISO 8601 duration")
    return text


def exact_json(text: str) -> str:
    """Return a JSON text as it is; ValueError (msgspec's) if it is none."""
    _validate_json(text)
    return text


def exact_pg_jsonb(text: str) -> str:
    """Return a JSON text as it is; ValueError if it is none, or has a number that BigQuery's JSON does not hold."""
    exact_json(text)
    if re.search(_WIDE_NUMBER, text, re.ASCII) is not None:
        _exact_numbers.decode(text)
    return text


def exact_pg_jsonb_numbers(text: str) -> str:
    """Return a JSON text with each number that BigQuery's JSON does not hold as a text; ValueError if it is none."""
    exact_json(text)
    return text if re.search(_WIDE_NUMBER, text, re.ASCII) is None else _JSON_TOKENS.sub(_exact_or_quoted, text)


def _exact_or_quoted(token: re.Match[str]) -> str:
    if token[0].startswith('"'):
        return token[0]
    try:
        _require_exact(token[0])
    except ValueError:
        return f'"{token[0]}"'
    return token[0]


def _require_exact(number: str) -> None:
    """Raise ValueError unless an INT64, a UINT64 or a FLOAT64 is read back as the same number."""
    if number.lstrip("-").isdigit() and len(number) <= len(str(-(1 << 63))) and -(1 << 63) <= int(number) < 1 << 64:
        return
    parsed = float(number)
    try:
        same = math.isfinite(parsed) and Decimal(repr(parsed)) == Decimal(number)
    except ArithmeticError:  # an exponent that no Decimal has
        same = False
    if not same:
        raise ValueError("a number that no FLOAT64 holds")


_exact_numbers: Final = json.JSONDecoder(parse_int=_require_exact, parse_float=_require_exact)


def _whole_numbers(texts: pa.Array) -> pa.Array | None:
    # `cast` alone would take "0x10" for 16; of what has no letters it takes whole numbers of 64 bits only.
    characters = _characters(texts)[1]
    if characters.size and characters.max() > ord("9"):
        return None
    return pc.cast(texts, pa.int64())


def _days(texts: pa.Array) -> pa.Array | None:
    return _within(pc.cast(texts, pa.date32()).cast(pa.int32()), FIRST_DAY, LAST_DAY)


def _instants(texts: pa.Array) -> pa.Array | None:
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if lengths["min"] is None:
        return texts.cast(pa.int64())
    # `cast` takes RFC 3339 and, beside it, only times without minutes or seconds: those are seen by their length, or
    # by what stands where the colon before the seconds should.
    offsets, characters = _characters(texts.drop_null())
    if lengths["min"] < _SHORTEST_INSTANT or (characters[offsets[:-1] + _BEFORE_SECONDS] != ord(":")).any():
        return None
    if lengths["max"] > _LONGEST_IN_MICROSECONDS:
        # Nanoseconds since the epoch cannot hold the years 0001 and 9999, so digits are cut from the text. A fraction
        # is always added to the second before it: cutting it is cutting towards minus infinity, before 1970 too.
        texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]{1,3}", r"\1")
    instants = pc.cast(texts, pa.timestamp("us", "UTC")).cast(pa.int64())
    return _within(instants, FIRST_MICROSECOND, LAST_MICROSECOND)


def _documents(texts: pa.Array) -> pa.Array | None:
    try:
        deque(map(_validate_json, texts.drop_null().to_pylist()), maxlen=0)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return texts


def _pg_documents(texts: pa.Array) -> pa.Array | None:
    if _documents(texts) is None:
        return None
    try:
        deque(map(exact_pg_jsonb, texts.filter(pc.match_substring_regex(texts, _WIDE_NUMBER)).to_pylist()), maxlen=0)
    except (ValueError, RecursionError):
        return None
    return texts


def _pg_documents_exact(texts: pa.Array) -> pa.Array | None:
    if _documents(texts) is None:
        return None
    wide = pc.fill_null(pc.match_substring_regex(texts, _WIDE_NUMBER), False)
    exact = pa.array([exact_pg_jsonb_numbers(text) for text in texts.filter(wide).to_pylist()], pa.string())
    return pc.replace_with_mask(texts, wide, exact) if len(exact) else texts


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"), min_count=0).as_py())


def _matching(*patterns: str) -> Callable[[pa.Array], pa.Array | None]:
    return lambda texts: texts if all(_all_match(texts, pattern) for pattern in patterns) else None


def _characters(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the bytes of all texts, one after the other, and where in them each text starts (and the last ends)."""
    _, offsets_buffer, data_buffer = texts.buffers()
    if len(texts) == 0 or data_buffer is None:
        return np.zeros(len(texts) + 1, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    return offsets - offsets[0], np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]


def _within(values: pa.Array, least: int, most: int) -> pa.Array | None:
    bounds = pc.min_max(values).as_py()
    fits = bounds["min"] is None or (least <= bounds["min"] and bounds["max"] <= most)
    return values if fits else None


@dataclass(frozen=True, slots=True)
class _Fitting:
    """How texts become values of a type. ``fast`` refuses with None or `pa.ArrowInvalid`, ``exact`` by ValueError."""

    fast: Callable[[pa.Array], pa.Array | None]
    exact: Callable[[str], object]
    limit: str


_WHOLE_NUMBER_FITTING: Final = _Fitting(_whole_numbers, exact_whole_number, "not a whole number of 64 bits")
_BYTES_FITTING: Final = _Fitting(decode_base64, exact_bytes, "not base64")
_BYTES_KEY_FITTING: Final = _Fitting(_matching(_NORMAL_BASE64), exact_bytes_text, "not base64")
_FITTINGS: Final[Mapping[ColumnType, _Fitting]] = {
    INT64: _WHOLE_NUMBER_FITTING,
    ENUM: _WHOLE_NUMBER_FITTING,
    NUMERIC: _Fitting(
        _matching(_PLAIN_NUMERIC), exact_numeric, "not a decimal number of 38 digits, 9 of them after the point"
    ),
    DATE: _Fitting(_days, exact_day, "not a date from 0001-01-01 to 9999-12-31"),
    TIMESTAMP: _Fitting(_instants, exact_microsecond, "not an RFC 3339 timestamp from 0001-01-01 to 9999-12-31"),
    BYTES: _BYTES_FITTING,
    PROTO: _BYTES_FITTING,
    BYTES_KEY: _BYTES_KEY_FITTING,
    PROTO_KEY: _BYTES_KEY_FITTING,
    INTERVAL: _Fitting(_matching(_DURATION, _IS_DURATION), exact_interval, "not an ISO 8601 duration"),
    UUID: _Fitting(_matching(_UUID), exact_uuid, "not a UUID"),
    PG_NUMERIC: _Fitting(_matching(_PG_NUMERIC), exact_pg_numeric, "neither a decimal number nor NaN"),
    JSON: _Fitting(_documents, exact_json, "not a JSON text"),
    PG_JSONB: _Fitting(
        _pg_documents,
        exact_pg_jsonb,
        "not a JSON text, or it has a number that INT64, UINT64 and FLOAT64 do not hold (jsonb_numbers in the tables "
        "file)",
    ),
    PG_JSONB_EXACT: _Fitting(_pg_documents_exact, exact_pg_jsonb_numbers, "not a JSON text"),
}
