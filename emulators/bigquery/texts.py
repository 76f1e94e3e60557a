"""Values in text, as GoogleSQL writes them: for CAST AS STRING, FORMAT, TO_JSON_STRING and TO_JSON.

Each value comes as DuckDB has it: the name of its type there, and its text there, None for NULL. The functions are
called in DuckDB by their names in `FUNCTIONS`.

Sources: GoogleSQL, "Conversion functions", section "CAST AS STRING"; "String functions", section "FORMAT" with "%t and
%T behavior"; "JSON functions", section "JSON encodings"; googlesql, RoundTripDoubleToString and `Type::FormatValue`
(a FLOAT64 has 15 digits, or 17 where 15 do not identify it).
"""

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from duckdb.sqltypes import BOOLEAN, VARCHAR, DuckDBPyType

from emulators.bigquery.intervals import Interval

TEXT_OF: Final = "googlesql_text"
FORMATTED: Final = "googlesql_format"
JSON_OF: Final = "googlesql_json"

_INTEGERS: Final = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "UHUGEINT"})
_FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
_DECIMAL: Final = re.compile(r"DECIMAL\(\d+,\s*\d+\)")
_PLAIN: Final = frozenset({"VARCHAR", "BOOLEAN", "DATE"})
_DATETIME: Final = "TIMESTAMP WITH TIME ZONE"
_EXACT: Final = 2**53
_INTERVAL: Final = re.compile(
    r"(?:(-?\d+) years? ?)?(?:(-?\d+) months? ?)?(?:(-?\d+) days? ?)?(?:(-?)(\d+):(\d+):(\d+)(?:\.(\d+))?)?"
)
_BYTE: Final = re.compile(r"\\x([0-9A-F]{2})")
_SPECIFIER: Final = re.compile(
    r"%(?P<flags>[-+ #0']*)(?P<width>\d+|\*)?(?:\.(?P<precision>\d+|\*))?(?P<kind>.)?", re.DOTALL
)
_AS_LITERAL: Final = {"DATE": "DATE", "TIMESTAMP": "TIMESTAMP", _DATETIME: "DATETIME", "TIME": "TIME"}
_INEXACT_JSON: Final = ("TIMESTAMP", "BLOB", "DECIMAL", "DOUBLE", "FLOAT", "INTERVAL", "TIME", "<")


def text_of(kind: str, text: str | None) -> str | None:
    """Return a value as STRING; ValueError for a type that is not cast to it, or not served."""
    if text is None:
        return None
    if kind in _PLAIN or kind in _INTEGERS:
        return text
    if kind in _FLOATS:
        return _float(float(text))
    if _DECIMAL.fullmatch(kind):
        return text.rstrip("0").rstrip(".") if "." in text else text
    match kind:
        case "TIMESTAMP":
            return f"{_seconds(text)}+00"
        case "TIMESTAMP WITH TIME ZONE":
            return _seconds(text.removesuffix("+00"))
        case "TIME":
            return _seconds(text)
        case "INTERVAL":
            return _interval(text)
        case "BLOB":
            try:
                return _bytes(text).decode()
            except UnicodeDecodeError:
                raise ValueError("Invalid cast of bytes to UTF8 string") from None
        case _:
            raise ValueError(f"Invalid cast to STRING, or not served: {_name(kind)}")


def formatted(form: str | None, kinds: Sequence[str], texts: Sequence[str | None]) -> str | None:
    """Return what FORMAT makes of a format and its arguments; ValueError for a specifier that is none, or not served.

    NULL where the format or an argument is, but for ``%t`` and ``%T``, which write it.
    """
    if form is None:
        return None
    arguments = iter(zip(kinds, texts, strict=True))
    parts: list[str | None] = []
    end = 0
    for found in _SPECIFIER.finditer(form):
        parts += [form[end : found.start()], _specified(found, arguments)]
        end = found.end()
    parts.append(form[end:])
    if next(arguments, None) is not None:
        raise ValueError("Too many arguments to FORMAT for pattern")
    return None if None in parts else "".join(part or "" for part in parts)


def json_of(kind: str, text: str | None, nested: str | None, *, numbers: bool) -> str:
    """Return a value as JSON; ``nested`` is DuckDB's JSON of it. ValueError for a type that is not served.

    ``numbers``: write every number as one (TO_JSON); otherwise one that a double does not hold as a string
    (TO_JSON_STRING).
    """
    if text is None or nested is None:
        return "null"
    if kind in _INTEGERS:
        return text if numbers or abs(int(text)) <= _EXACT else f'"{text}"'
    if kind in _FLOATS:
        value = float(text)
        return _float(value) if math.isfinite(value) else json.dumps(_JSON_FLOATS[str(value)])
    if _DECIMAL.fullmatch(kind):
        number = text_of(kind, text) or ""
        return number if numbers or ("." not in number and abs(int(number)) <= _EXACT) else f'"{number}"'
    match kind:
        case "TIMESTAMP":
            return f'"{_seconds(text).replace(" ", "T")}Z"'
        case "TIMESTAMP WITH TIME ZONE":
            return f'"{_seconds(text.removesuffix("+00")).replace(" ", "T")}"'
        case "TIME":
            return f'"{_seconds(text)}"'
        case "BLOB":
            return f'"{b64encode(_bytes(text)).decode()}"'
        case "VARCHAR" | "BOOLEAN" | "DATE" | "JSON":
            return nested
        case _ if not any(word in kind for word in _INEXACT_JSON):
            return nested if numbers else _wide_numbers_as_strings(nested)
        case _:
            raise ValueError(f"This stand-in does not serve JSON of {_name(kind)}")


_JSON_FLOATS: Final = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def _float(value: float) -> str:
    if value == 0 or math.isnan(value):
        return "nan" if math.isnan(value) else "0"  # neither has a sign
    short = f"{value:.15g}"
    return short if float(short) == value else f"{value:.17g}"


def _seconds(text: str) -> str:
    """Return a time of day, or what ends with one, with no digit of a second, three or six."""
    whole, _, fraction = text.partition(".")
    digits = fraction.ljust(6, "0").removesuffix("000")
    return whole if digits in ("", "000") else f"{whole}.{digits}"


def _interval(text: str) -> str:
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise ValueError(f"not an INTERVAL: {text}")
    years, months, days, sign, hours, minutes, seconds, fraction = found.groups()
    clock = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    micros = clock * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return str(Interval(int(years or 0) * 12 + int(months or 0), int(days or 0), -micros if sign else micros))


def _bytes(text: str) -> bytes:
    return _BYTE.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1")


def _specified(found: re.Match[str], arguments: Any) -> str | None:
    """Return the text of one specifier, with its width; None where its argument is NULL."""
    kind = found["kind"]
    if kind == "%" and found[0] == "%%":
        return "%"
    if kind is None or kind not in "diuoxXfFeEgGstT":
        raise ValueError(f"Invalid format specifier, or not served: {found[0]!r}")
    if "*" in (found["width"], found["precision"]) or "'" in found["flags"]:
        raise ValueError(f"This stand-in does not serve the format specifier {found[0]!r}")
    argument = next(arguments, None)
    if argument is None:
        raise ValueError("Too few arguments to FORMAT for pattern")
    stored_as, text = argument
    if kind in "tT":
        return _padded(found, "NULL" if text is None else _printed(stored_as, text, literal=kind == "T"))
    if text is None:
        return None
    if kind == "s" and stored_as == "VARCHAR":
        return _padded(found, text)
    if kind in "diuoxX" and stored_as in _INTEGERS:
        return f"%{found['flags']}{found['width'] or ''}{_precision(found)}{'d' if kind in 'iu' else kind}" % int(text)
    if kind in "fFeEgG" and stored_as in _FLOATS:
        return f"%{found['flags']}{found['width'] or ''}{_precision(found)}{kind}" % float(text)
    raise ValueError(f"Invalid type for the format specifier {found[0]!r}, or not served: {_name(stored_as)}")


def _precision(found: re.Match[str]) -> str:
    return "" if found["precision"] is None else f".{found['precision']}"


def _padded(found: re.Match[str], text: str) -> str:
    text = text if found["precision"] is None else text[: int(found["precision"])]
    width = int(found["width"] or 0)
    return text.ljust(width) if "-" in found["flags"] else text.rjust(width)


def _printed(kind: str, text: str, *, literal: bool) -> str:
    """Return a value as ``%t`` writes it or, as a literal, ``%T``."""
    if kind in _FLOATS:
        value = float(text)
        number = _float(value)
        if not math.isfinite(value):
            return f'CAST("{number}" AS FLOAT64)' if literal else number
        return number if "." in number or "e" in number else f"{number}.0"
    if kind == "BLOB":
        escaped = "".join(_escaped_byte(byte) for byte in _bytes(text))
        return f'b"{escaped}"' if literal else escaped
    if kind == "JSON":
        return f"JSON {_quoted(text)}" if literal else text
    plain = text_of(kind, text) or ""
    if not literal or kind in _INTEGERS or kind == "BOOLEAN":
        return plain
    if kind == "VARCHAR":
        return _quoted(plain)
    if kind == "INTERVAL":
        return f'INTERVAL "{plain}" YEAR TO SECOND'
    return f'{_AS_LITERAL.get(kind, "NUMERIC")} "{plain}"'


def _escaped_byte(byte: int) -> str:
    character = chr(byte)
    if character in "\\\"'":
        return f"\\{character}"
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return named.get(character) or (character if " " <= character <= "~" else f"\\x{byte:02x}")


def _quoted(text: str) -> str:
    quote = "'" if '"' in text and "'" not in text else '"'
    body = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"{quote}{body.replace(quote, chr(92) + quote)}{quote}"


def _wide_numbers_as_strings(text: str) -> str:
    def whole(digits: str) -> Any:
        return int(digits) if abs(int(digits)) <= _EXACT else digits

    return json.dumps(json.loads(text, parse_int=whole), separators=(",", ":"), ensure_ascii=False)


def _name(kind: str) -> str:
    """Return GoogleSQL's name of a type, as far as it is needed in a refusal."""
    if kind.endswith("[]"):
        return "ARRAY"
    for marker, name in (("<bignumeric", "BIGNUMERIC"), ("<geography", "GEOGRAPHY"), ("<range", "RANGE")):
        if marker in kind:
            return name
    if kind in _FLOATS:
        return "FLOAT64"
    names = {"VARCHAR": "STRING", "BLOB": "BYTES", _DATETIME: "DATETIME", "BOOLEAN": "BOOL"}
    if kind in _INTEGERS:
        return "INT64"
    return names.get(kind, kind.partition("(")[0].replace("DECIMAL", "NUMERIC"))


def _json_of(kind: str, text: str | None, nested: str | None, numbers: bool) -> str:
    return json_of(kind, text, nested, numbers=numbers)


_TEXTS: Final = DuckDBPyType("VARCHAR[]")
FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Sequence[DuckDBPyType]]]] = {
    TEXT_OF: (text_of, [VARCHAR, VARCHAR]),
    FORMATTED: (formatted, [VARCHAR, _TEXTS, _TEXTS]),
    JSON_OF: (_json_of, [VARCHAR, VARCHAR, VARCHAR, BOOLEAN]),
}
"""The functions that return text, by the names that DuckDB calls them by, with the types of their arguments."""
