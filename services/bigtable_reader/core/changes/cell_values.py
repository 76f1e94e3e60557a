"""Cell values as values of the wire, by the type and the encoding that are declared for their column.

A function takes the bytes of a cell and returns JSON; ValueError (or msgspec's) with what a value has to be. NUMERIC,
DATE and TIMESTAMP are passed on as text: the consumer knows their bounds, and makes the same dead letter. A NUMERIC may
be written as a FLOAT64 may.
"""

import math
import re
import struct
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(rb"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?")
_NO_NUMBERS: Final = {b"nan": '"NaN"', b"infinity": '"Infinity"', b"-infinity": '"-Infinity"', b"inf": '"Infinity"'} | {
    b"-inf": '"-Infinity"'
}
_BOOLEANS: Final = {b"true": "true", b"false": "false"}
_BYTE_BOOLEANS: Final = {b"\x00": "false", b"\x01": "true", b"\xff": "true"}  # HBase writes -1 for true
_double: Final = struct.Struct(">d").unpack
_single: Final = struct.Struct(">f").unpack
_json: Final = msgspec.json.Encoder().encode
_document: Final = msgspec.json.Decoder(msgspec.Raw).decode


def _text(value: bytes) -> str:
    return _json(value.decode()).decode()


def _bytes(value: bytes) -> str:
    return f'"{b2a_base64(value, newline=False).decode()}"'


def _integer_text(value: bytes) -> str:
    if _INTEGER.fullmatch(value) is None:
        raise ValueError("not a whole number in decimal digits")
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("beyond 64 bits")
    return f'"{number}"'


def _integer_big_endian(value: bytes) -> str:
    if len(value) != 8:
        raise ValueError("not 8 bytes, big-endian")
    return f'"{int.from_bytes(value, "big", signed=True)}"'


def _number_text(value: bytes) -> str:
    if _NUMBER.fullmatch(value) is None:
        try:
            return _NO_NUMBERS[value.lower()]
        except KeyError:
            raise ValueError("not a number in decimal digits") from None
    number = float(value)
    if math.isinf(number):
        raise ValueError("beyond 64 bits")
    return _number(number)


def _double_big_endian(value: bytes) -> str:
    if len(value) != 8:
        raise ValueError("not the 8 bytes of a number, big-endian")
    return _number(_double(value)[0])


def _single_big_endian(value: bytes) -> str:
    if len(value) != 4:
        raise ValueError("not the 4 bytes of a number, big-endian")
    return _number(_single(value)[0])


def _decimal_text(value: bytes) -> str:
    if _NUMBER.fullmatch(value) is None:
        return _text(value)
    digits, minus = value.decode().lstrip("+-"), value.startswith(b"-")
    return f'"{"-" if minus else ""}{"0" if digits.startswith(".") else ""}{digits}"'


def _number(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _boolean_text(value: bytes) -> str:
    try:
        return _BOOLEANS[value.lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def _boolean_byte(value: bytes) -> str:
    try:
        return _BYTE_BOOLEANS[value]
    except KeyError:
        raise ValueError("not one byte of 00, 01 or FF") from None


def _json_text(value: bytes) -> str:
    try:
        _document(value)
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError("not a JSON text") from None
    return _text(value)


CELL_VALUES: Final[Mapping[tuple[str, str], Callable[[bytes], str]]] = {
    ("STRING", "text"): _text,
    ("BYTES", "bytes"): _bytes,
    ("INT64", "text"): _integer_text,
    ("INT64", "big_endian"): _integer_big_endian,
    ("FLOAT64", "text"): _number_text,
    ("FLOAT64", "big_endian"): _double_big_endian,
    ("FLOAT32", "text"): _number_text,
    ("FLOAT32", "big_endian"): _single_big_endian,
    ("BOOL", "text"): _boolean_text,
    ("BOOL", "big_endian"): _boolean_byte,
    ("NUMERIC", "text"): _decimal_text,
    ("DATE", "text"): _text,
    ("TIMESTAMP", "text"): _text,
    ("JSON", "text"): _json_text,
}
