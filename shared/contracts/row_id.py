"""What a change is a change *of*: the canonical key, the bucket and the ordering key made from it.

The same bytes identify a row wherever it comes from (stream, snapshot, replay), so every value has one text form per
type, however its source wrote it.
"""

import base64
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

import msgspec

from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import format_timestamp, parse_timestamp

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,64}(?:\.[0-9]{1,64})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_SINGLE: Final = struct.Struct("<f")
_TEXT_LIMIT: Final = 1024  # bytes; an attribute on the dead-letter topic holds no more
_DECIMAL_DIGITS: Final = 131_072  # PostgreSQL's numeric before its point, the longest of any source
_encode: Final = msgspec.json.Encoder().encode
_key: Final = msgspec.json.Decoder(dict[str, object])


def canonical_key(table: str, key_types: Sequence[tuple[str, str]], key: Mapping[str, object]) -> bytes:
    """Return the canonical bytes of a row id: table, NUL, and the compact JSON array of the key values in key order.

    ``key_types`` holds the name and GoogleSQL type of each key column, in key order; ``key`` the decoded JSON object
    of key values. PoisonRecordError where a column is missing or a value is not of its type.
    """
    values = []
    for name, googlesql in key_types:
        if name not in key:
            raise PoisonRecordError(Reason.BAD_CHANGE, f"key column {name} is missing")
        try:
            values.append(_canonical(googlesql, key[name]))
        except (ValueError, TypeError, ArithmeticError) as error:
            raise PoisonRecordError(
                Reason.VALUE_DOES_NOT_FIT, f"key column {name} of type {googlesql}: {type(error).__name__}"
            ) from error
    return table.encode() + b"\0" + _encode(values)


def key_text(table: str, key_types: Sequence[tuple[str, str]], key: bytes) -> str:
    """Return a change's key, readable: the canonical JSON array of its values, or as it came where it has none."""
    try:
        canonical = canonical_key(table, key_types, _key.decode(key))
    except (PoisonRecordError, msgspec.MsgspecError, RecursionError):
        return key[:_TEXT_LIMIT].decode(errors="ignore")
    return canonical.partition(b"\0")[2].decode()


def bucket_of(canonical: bytes, buckets: int) -> int:
    """Return the bucket of a row: crc32 of its canonical key, modulo the table's number of buckets."""
    return zlib.crc32(canonical) % buckets


def ordering_key(table: str, bucket: int) -> str:
    """Return the Pub/Sub ordering key of a table's bucket."""
    return f"{table}/{bucket}"


def ordered_table(key: str) -> str:
    """Return the table that an ordering key is of, of the stream's changes or of snapshot rows; empty if of none."""
    return key.rpartition("/")[0]


def _canonical(googlesql: str, value: object) -> object:
    if value is None:
        return None
    match googlesql:
        case "INT64" | "ENUM":
            return _integer(value)
        case "BOOL":
            if not isinstance(value, bool):
                raise TypeError("not a boolean")
            return value
        case "FLOAT64":
            return _float(value)
        case "FLOAT32":
            return _float(value, _SINGLE)
        case "NUMERIC":
            return _decimal(value)
        case "TIMESTAMP":
            return format_timestamp(parse_timestamp(_text(value)))
        case "DATE":
            if _DATE.fullmatch(_text(value)) is None:
                raise ValueError("not a date")
            return value
        case "BYTES" | "PROTO":
            return base64.b64encode(base64.b64decode(_text(value), validate=True)).decode()
        case "STRING":
            return _text(value)
        case _:  # a type this version does not know: its JSON is its identity
            return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("not an integer")
    if isinstance(value, str) and _INTEGER.fullmatch(value) is None:
        raise ValueError("not an integer")
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("beyond 64 bits")
    return number


def _float(value: object, rounding: struct.Struct | None = None) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("not a number")
    if isinstance(value, str) and value not in _NO_NUMBERS and _NUMBER.fullmatch(value) is None:
        raise ValueError("not a number")
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if rounding is not None:  # 1.1 and 1.100000023841858 are one value, whichever of them the source writes
        (number,) = rounding.unpack(rounding.pack(number))
    return number + 0.0  # -0.0 and 0.0 are the same key


def _decimal(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("not a decimal number")
    if _DECIMAL.fullmatch(str(value)) is None:
        raise ValueError("not a decimal number")
    number = Decimal(value)
    if abs(number.adjusted()) > _DECIMAL_DIGITS:  # "1e999999999" would fill a gigabyte
        raise ValueError("not a number that a database holds")
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
