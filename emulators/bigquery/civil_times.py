"""DATETIME and TIME: from a literal's text or a packed integer to microseconds, without any time zone.

A TIMESTAMP's text with its zone as well.

Sources: GoogleSQL, "Data types", sections "Datetime type" and "Time type" (canonical formats and bounds); RFC 3339;
CivilTimeEncoder of java-bigquerystorage (packed 64-bit integers: 20 bits of microseconds, 6 of seconds, 6 of minutes,
5 of hours and, of a DATETIME, 5 of the day, 4 of the month and 14 of the year).
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIME: Final = r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{0,6}))?"
_TIME_LITERAL: Final = re.compile(_TIME, re.ASCII)
_DATETIME_LITERAL: Final = re.compile(rf"(\d{{4}})-(\d{{1,2}})-(\d{{1,2}})(?:[ Tt]{_TIME})?", re.ASCII)
_TIMESTAMP_LITERAL: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d(?::?\d\d)?)", re.ASCII
)
_SHIFTS: Final = ((46, 14), (42, 4), (37, 5), (32, 5), (26, 6), (20, 6), (0, 20))
"""Where year, month, day, hour, minute, second and microsecond lie in a packed integer, and how many bits they have."""


def datetime_microseconds(value: object) -> int:
    """Return a DATETIME in microseconds after 1970-01-01 00:00:00; ValueError for what is none."""
    if isinstance(value, int):
        return _after_epoch(*_unpacked(value))
    match = _DATETIME_LITERAL.fullmatch(str(value))
    if match is None:
        raise ValueError("not a DATETIME literal")
    year, month, day = (int(part) for part in match.groups()[:3])
    return _after_epoch(year, month, day, *_clock(match.groups()[3:]))


def time_microseconds(value: object) -> int:
    """Return a TIME in microseconds after midnight; ValueError for what is none."""
    if isinstance(value, int):
        year, month, day, *clock = _unpacked(value)
        if year or month or day:
            raise ValueError("not a packed TIME")
        return _after_epoch(1970, 1, 1, *clock)
    match = _TIME_LITERAL.fullmatch(str(value))
    if match is None:
        raise ValueError("not a TIME literal")
    return _after_epoch(1970, 1, 1, *_clock(match.groups()))


def timestamp_microseconds(text: str) -> int:
    """Return an RFC 3339 timestamp with its zone in microseconds since the epoch; ValueError for what is none.

    Digits after the sixth are cut off, as BigQuery does.
    """
    if _TIMESTAMP_LITERAL.fullmatch(text) is None:
        raise ValueError("not an RFC 3339 timestamp with a zone")
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND


def _unpacked(value: int) -> tuple[int, ...]:
    if value < 0 or value >> 60:
        raise ValueError("not a packed integer")
    return tuple(value >> shift & (1 << bits) - 1 for shift, bits in _SHIFTS)


def _clock(parts: tuple[str | None, ...]) -> tuple[int, ...]:
    hour, minute, second = (int(part or 0) for part in parts[:3])
    return hour, minute, second, int((parts[3] or "").ljust(6, "0"))


def _after_epoch(*parts: int) -> int:
    year, month, day, hour, minute, second, microsecond = parts
    moment = datetime(year, month, day, hour, minute, second, microsecond, tzinfo=UTC)  # ValueError where out of range
    return (moment - _EPOCH) // _MICROSECOND
