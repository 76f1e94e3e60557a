"""Exact instants: integer nanoseconds since the epoch, RFC 3339 as text. Never a datetime, which cuts digits off."""

import re
from datetime import date, timedelta
from functools import lru_cache
from typing import Final, NewType

Nanoseconds = NewType("Nanoseconds", int)
"""An instant, in nanoseconds since 1970-01-01T00:00:00Z; negative before it."""

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_SECOND: Final = 1_000_000_000
_RFC_3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d(?::?\d\d)?)", re.ASCII
)
_SECONDS_END: Final = len("2026-11-22T08:00:00")
_BEFORE_FRACTION: Final = _SECONDS_END + 1
_TENS: Final = [_SECOND // 10**digits for digits in range(10)]


def parse_timestamp(text: str) -> Nanoseconds:
    """Return the instant that an RFC 3339 text names, all its digits kept; ValueError if it names none.

    Takes what Spanner and its documents write: ``Z``, ``+00:00`` and ``-00`` as zones, a space for the ``T``.
    """
    digits = len(text) - _BEFORE_FRACTION - 1
    if 1 <= digits <= 9 and text[-1] == "Z" and text[_SECONDS_END] == ".":  # as nearly all are
        fraction = text[_BEFORE_FRACTION:-1]
        if fraction.isascii() and fraction.isdigit():
            return Nanoseconds(_second_of(text[:_SECONDS_END]) + int(fraction) * _TENS[digits])
    return _parse(text)


@lru_cache(maxsize=4096)  # what comes together is of few seconds
def _second_of(text: str) -> Nanoseconds:
    return _parse(f"{text}Z")


def _parse(text: str) -> Nanoseconds:
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 timestamp with a zone (such as 2026-11-22T08:00:00Z): {text!r}")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        raise ValueError(f"not a time of day: {text!r}")
    days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    seconds = days * 86_400 + int(hour) * 3_600 + int(minute) * 60 + int(second)
    if zone != "Z":
        offset = int(zone[1:3]) * 3_600 + int(zone[-2:]) * 60 * (len(zone) > 3)
        seconds -= offset if zone[0] == "+" else -offset
    return Nanoseconds(seconds * _SECOND + int((fraction or "").ljust(9, "0")))


def format_timestamp(instant: Nanoseconds) -> str:
    """Return the one canonical text of an instant: UTC, ``Z``, no trailing zeros in the fraction."""
    seconds, fraction = divmod(instant, _SECOND)
    if not fraction:
        return f"{_text_of(seconds)}Z"
    return f"{_text_of(seconds)}.{fraction:09d}".rstrip("0") + "Z"


def format_microseconds(instant: int) -> str:
    """Return the same text of an instant in microseconds since 1970-01-01T00:00:00Z."""
    seconds, fraction = divmod(instant, 1_000_000)
    if not fraction:
        return f"{_text_of(seconds)}Z"
    return f"{_text_of(seconds)}.{fraction:06d}".rstrip("0") + "Z"


@lru_cache(maxsize=4096)
def _text_of(seconds: int) -> str:
    days, second_of_day = divmod(seconds, 86_400)
    day = date.fromordinal(days + _EPOCH_DAY).isoformat()
    hour, rest = divmod(second_of_day, 3_600)
    return f"{day}T{hour:02d}:{rest // 60:02d}:{rest % 60:02d}"


def nanoseconds(duration: timedelta) -> Nanoseconds:
    """Return the nanoseconds of a duration."""
    return Nanoseconds(duration // timedelta(microseconds=1) * 1_000)


def microseconds(instant: Nanoseconds) -> int:
    """Cut an instant to microseconds, towards minus infinity (what BigQuery's TIMESTAMP holds)."""
    return instant // 1_000
