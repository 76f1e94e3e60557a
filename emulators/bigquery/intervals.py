"""INTERVALs in GoogleSQL's canonical form, ``[sign]Y-M [sign]D [sign]H:M:S[.F]``, and their three parts.

Source: GoogleSQL, "Data types", section "Interval type": months, days and a time of day, each with a sign of its own,
which never turn into one another. This stand-in holds times up to 2,562,047 hours (Arrow counts nanoseconds in 64
bits); BigQuery's bound is 87,840,000, and what lies between is refused here.
"""

import re
from dataclasses import dataclass
from typing import Final

from emulators.bigquery.errors import invalid

_INTERVAL: Final = re.compile(
    r"([+-]?)(\d{1,5})-(\d{1,2}) ([+-]?)(\d{1,7}) ([+-]?)(\d{1,8}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?", re.ASCII
)
_MONTHS: Final = 10_000 * 12
_DAYS: Final = 3_660_000
_MICROSECONDS: Final = 2_562_047 * 3_600_000_000
_DAY_MICROSECONDS: Final = 86_400_000_000
_PARTS: Final = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")
_UNIT_MONTHS: Final = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
_UNIT_DAYS: Final = {"WEEK": 7, "DAY": 1}
_UNIT_MICROSECONDS: Final = {
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
    "MILLISECOND": 1_000,
    "MICROSECOND": 1,
}


@dataclass(frozen=True)
class Interval:
    """An interval; ValueError for one that is out of range."""

    months: int = 0
    days: int = 0
    microseconds: int = 0

    def __post_init__(self) -> None:
        if abs(self.months) > _MONTHS or abs(self.days) > _DAYS or abs(self.microseconds) > _MICROSECONDS:
            raise ValueError("out of range")

    def __str__(self) -> str:
        years, months = divmod(abs(self.months), 12)
        seconds, fraction = divmod(abs(self.microseconds), 1_000_000)
        clock = f"{seconds // 3600}:{seconds // 60 % 60}:{seconds % 60}"
        if fraction:
            digits = f"{fraction:06}"
            clock += f".{digits.removesuffix('000')}"
        calendar_sign, time_sign = ("-" if part < 0 else "" for part in (self.months, self.microseconds))
        return f"{calendar_sign}{years}-{months} {self.days} {time_sign}{clock}"


def parse_interval(text: str) -> Interval:
    """Return the interval in a text of the canonical form; ValueError where there is none."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError("not an INTERVAL literal")
    calendar_sign, years, months, day_sign, days, time_sign, hours, minutes, seconds, fraction = match.groups()
    clock = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return Interval(
        _signed(calendar_sign, int(years) * 12 + int(months)),
        _signed(day_sign, int(days)),
        _signed(time_sign, clock * 1_000_000 + int((fraction or "").ljust(6, "0"))),
    )


def parse_span(text: str, first: str, last: str) -> Interval:
    """Return ``INTERVAL text first TO last``, such as ``'1-2 3' YEAR TO DAY``; ValueError where it is none."""
    if first not in _PARTS or last not in _PARTS or _PARTS.index(first) >= _PARTS.index(last):
        raise ValueError(f"no span of an interval: {first} TO {last}")
    span = _PARTS[_PARTS.index(first) : _PARTS.index(last) + 1]
    calendar, days, clock = (
        separator.join(rf"(?P<{part}>\d+)" for part in parts if part in span)
        for parts, separator in ((_PARTS[:2], "-"), (_PARTS[2:3], ""), (_PARTS[3:], ":"))
    )
    if "SECOND" in span:
        clock += r"(?:\.(?P<fraction>\d{1,6}))?"
    signed = ((calendar, "calendar"), (days, "day"), (clock, "time"))
    form = " ".join(f"(?P<{name}_sign>[+-]?){group}" for group, name in signed if group)
    match = re.fullmatch(form, text, re.ASCII)
    if match is None:
        raise ValueError("not an INTERVAL literal")
    found = match.groupdict()
    year, month, day, hour, minute, second = (int(found.get(part) or 0) for part in _PARTS)
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((found.get("fraction") or "").ljust(6, "0"))
    return Interval(
        _signed(found.get("calendar_sign"), year * 12 + month),
        _signed(found.get("day_sign"), day),
        _signed(found.get("time_sign"), micros),
    )


def interval_of(amount: int, unit: str) -> Interval:
    """Return ``INTERVAL amount unit``; ValueError for a unit that there is not, or an interval out of range."""
    if unit in _UNIT_MONTHS:
        return Interval(months=amount * _UNIT_MONTHS[unit])
    if unit in _UNIT_DAYS:
        return Interval(days=amount * _UNIT_DAYS[unit])
    if unit in _UNIT_MICROSECONDS:
        return Interval(microseconds=amount * _UNIT_MICROSECONDS[unit])
    raise ValueError(f"no unit of an interval: {unit}")


def interval_microseconds(text: str) -> int:
    """Return the length of an interval; ApiError where the text is none. A month counts as 30 days."""
    try:
        interval = parse_interval(text)
    except ValueError as error:
        raise invalid(f"Invalid value for an interval: {text}: {error}") from error
    return (interval.months * 30 + interval.days) * _DAY_MICROSECONDS + interval.microseconds


def interval_text(amount: int, unit: str) -> str:
    """Return ``INTERVAL amount unit`` as the API writes it; ApiError for a unit that is not served."""
    try:
        return str(interval_of(amount, unit))
    except ValueError as error:
        raise invalid(f"Invalid interval, or unit that is not served: {amount} {unit}") from error


def _signed(sign: str | None, number: int) -> int:
    return -number if sign == "-" else number
