"""Values of every type as a source writes them in JSON, and as they have to arrive: an oracle in plain Python."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from hypothesis import strategies as st

SCALARS = {
    "b": "BOOL", "i": "INT64", "f": "FLOAT64", "g": "FLOAT32", "n": "NUMERIC", "s": "STRING", "y": "BYTES",
    "d": "DATE", "t": "TIMESTAMP", "j": "JSON", "q": "PG_JSONB", "p": "PG_NUMERIC", "u": "UUID", "e": "ENUM",
    "o": "PROTO", "v": "INTERVAL", "x": "TIME",
}  # fmt: skip
"""TIME stands for any type that is not known."""
COLUMNS = SCALARS | {f"a{name}": f"ARRAY<{googlesql}>" for name, googlesql in SCALARS.items()}
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Written:
    """A value as a source writes it in JSON, and as it has to arrive."""

    json: object
    arrives: object


def timestamps() -> st.SearchStrategy[Written]:
    def write(day: date, second: int, nanos: int, digits: int, offset: int) -> Written:
        """Write an instant in local time of an offset in minutes, with so many digits; what is cut is cut."""
        shown = nanos // 10 ** (9 - digits) * 10 ** (9 - digits)
        local = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        fraction = f".{shown:09d}"[: digits + 1] if digits else ""
        sign = "-" if offset < 0 else "+"
        zone = f"{sign}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}" if offset else "Z"
        seconds = (day - EPOCH) // timedelta(seconds=1) + second - offset * 60
        return Written(f"{day.isoformat()}T{local}{fraction}{zone}", seconds * 1_000_000 + shown // 1_000)

    inside = st.dates(date(1, 1, 2), date(9999, 12, 30))
    seconds, nanos, digits = st.integers(0, 86_399), st.integers(0, 999_999_999), st.integers(0, 9)
    return st.one_of(
        st.builds(write, inside, seconds, nanos, digits, st.integers(-1439, 1439)),
        st.builds(write, st.dates(), seconds, nanos, digits, st.just(0)),
        st.builds(write, st.just(date(1969, 12, 31)), seconds, nanos, st.just(9), st.just(0)),
    )


def numerics() -> st.SearchStrategy[Written]:
    def write(unscaled: int, scale: int) -> Written:
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        whole, fraction = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
        text = ("-" if unscaled < 0 else "") + whole + ("." + fraction if fraction else "")
        return Written(text, text)

    return st.integers(0, 9).flatmap(
        lambda scale: st.builds(write, st.integers(-(10 ** (29 + scale)) + 1, 10 ** (29 + scale) - 1), st.just(scale))
    )


def floats() -> st.SearchStrategy[Written]:
    def write(number: float) -> Written:
        if math.isnan(number):
            return Written("NaN", number)
        if math.isinf(number):
            return Written("Infinity" if number > 0 else "-Infinity", number)
        return Written(number, number)

    return st.floats().map(write) | st.integers(-(2**80), 2**80).map(lambda whole: Written(whole, float(whole)))


def singles() -> st.SearchStrategy[Written]:
    def write(number: float, digits: str) -> Written:
        if math.isnan(number) or math.isinf(number):
            return Written(str(number).replace("nan", "NaN").replace("inf", "Infinity"), number)
        # Nine digits are enough to tell any two numbers of 32 bits apart, and 17 write one to its end.
        return Written(float(format(number, digits)), number)

    return st.builds(write, st.floats(width=32), st.sampled_from([".9g", ".17g"]))


def pg_numerics() -> st.SearchStrategy[Written]:
    digits = st.from_regex(r"-?[0-9]{1,200}(\.[0-9]{1,200})?|NaN", fullmatch=True)
    return digits.map(lambda text: Written(text, text))


def json_values(whole_numbers: st.SearchStrategy[int]) -> st.SearchStrategy[object]:
    return st.recursive(
        st.none() | st.booleans() | whole_numbers | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )


def json_texts() -> st.SearchStrategy[Written]:
    # The whole numbers that JSON has in Spanner and in BigQuery (GoogleSQL, "JSON type").
    return json_values(st.integers(-(2**63), 2**64 - 1)).map(json.dumps).map(lambda text: Written(text, text))


def intervals() -> st.SearchStrategy[Written]:
    def write(*parts: int) -> Written:
        months, days, seconds, nanos = parts
        text = (
            f"P{months // 12}Y{months % 12}M{days}DT{seconds // 3600}H{seconds // 60 % 60}M{seconds % 60}.{nanos:09d}S"
        )
        return Written(text, text)

    return st.builds(
        write,
        st.integers(-120_000, 120_000),
        st.integers(-3_660_000, 3_660_000),
        st.integers(0, 10**9),
        st.integers(0, 999_999_999),
    )


OF_SCALARS: Mapping[str, st.SearchStrategy[Written]] = {
    "b": st.booleans().map(lambda value: Written(value, value)),
    "i": st.integers(-(2**63), 2**63 - 1).flatmap(
        lambda number: st.sampled_from([Written(str(number), number), Written(number, number)])
    ),
    "f": floats(),
    "g": singles(),
    "n": numerics(),
    "s": st.text().map(lambda text: Written(text, text)),
    "y": st.binary().map(lambda content: Written(base64.b64encode(content).decode(), content)),
    "d": st.dates().map(lambda day: Written(day.isoformat(), (day - EPOCH).days)),
    "t": timestamps(),
    "j": json_texts(),
    "q": json_texts(),
    "p": pg_numerics(),
    "u": st.uuids().map(lambda value: Written(str(value), str(value))),
    "e": st.integers(-(2**31), 2**31 - 1).map(lambda number: Written(str(number), number)),
    "o": st.binary().map(lambda content: Written(base64.b64encode(content).decode(), content)),
    "v": intervals(),
    "x": st.text().map(lambda text: Written(text, text)),
}


def arrays(elements: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    def write(values: Sequence[Written]) -> Written:
        # BigQuery knows no array that is NULL: an empty one and none are the same.
        return Written([value.json for value in values], [value.arrives for value in values] or None)

    return st.lists(elements, max_size=4).map(write)


VALUES = {**OF_SCALARS, **{f"a{name}": arrays(values) for name, values in OF_SCALARS.items()}}
