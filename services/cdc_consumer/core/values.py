"""Text to a column's wire type: what a value means, and whether its type can hold it.

Per type there is a fast way over a whole array, which takes all of it or refuses, and an exact one for a single text,
which is the arbiter. An array that the fast way refuses is halved down to the few texts that only the exact one can
judge, so one bad value costs little and is found alone.
"""

import binascii
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

from services.cdc_consumer.core.base64_array import decode_base64
from services.cdc_consumer.core.halving import by_halves
from services.cdc_consumer.core.types import BYTES, DATE, INT64, JSON, NUMERIC, TIMESTAMP, ColumnType
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
_LONGEST_IN_MICROSECONDS: Final = len("2024-01-02T03:04:05.123456Z")
_SHORTEST_INSTANT: Final = len("2024-01-02T03:04:05Z")
_BEFORE_SECONDS: Final = len("2024-01-02T03:04")

_validate_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def wire_values(kind: ColumnType, texts: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    """Return an array in its column's wire type, and the indices of the texts that do not fit it (NULL in the array).

    BOOL, FLOAT64 and STRING need no more than they are.
    """
    fitting = _FITTINGS.get(kind)
    if fitting is None:
        return texts, ()
    misfits: list[int] = []

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
                misfits.append(index)
        return pa.array(values, kind.wire)

    pieces = list(by_halves(0, len(texts), fast, exact))
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), misfits


def limit_of(kind: ColumnType) -> str:
    """Say, for a dead letter's detail, what a text of a type has to be."""
    return _FITTINGS[kind].limit


def beyond_microseconds(texts: pa.Array) -> pa.BooleanArray:
    """Tell which timestamps have digits below the microsecond that are not zero: as a key they would be cut."""
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


def exact_json(text: str) -> str:
    """Return a JSON text as it is; ValueError (msgspec's) if it is none."""
    _validate_json(text)
    return text


def _whole_numbers(texts: pa.Array) -> pa.Array | None:
    # `cast` alone would take "0x10" for 16; of what has no letters it takes whole numbers of 64 bits only.
    characters = _characters(texts)[1]
    if characters.size and characters.max() > ord("9"):
        return None
    return pc.cast(texts, pa.int64())


def _numerics(texts: pa.Array) -> pa.Array | None:
    return texts if _all_match(texts, _PLAIN_NUMERIC) else None


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


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"), min_count=0).as_py())


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


_FITTINGS: Final[Mapping[ColumnType, _Fitting]] = {
    INT64: _Fitting(_whole_numbers, exact_whole_number, "not a whole number of 64 bits"),
    NUMERIC: _Fitting(_numerics, exact_numeric, "not a decimal number of 38 digits, 9 of them after the point"),
    DATE: _Fitting(_days, exact_day, "not a date from 0001-01-01 to 9999-12-31"),
    TIMESTAMP: _Fitting(_instants, exact_microsecond, "not an RFC 3339 timestamp from 0001-01-01 to 9999-12-31"),
    BYTES: _Fitting(decode_base64, exact_bytes, "not base64"),
    JSON: _Fitting(_documents, exact_json, "not a JSON text"),
}
