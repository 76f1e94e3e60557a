"""Durations as people write them: ``500ms``, ``10s``, ``5m``, ``2h``, ``7d``."""

import re
from datetime import timedelta
from typing import Final

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTHS: Final = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
)

_LONGEST: Final = timedelta(days=36_500)
"""A time so far from now is still one that every store and client takes."""


def parse_duration(text: str) -> timedelta:
    """Return the duration that a text such as ``500ms`` or ``10s`` means; ValueError if it has no unit or is longer
    than a hundred years.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("not a duration; write a number and a unit: 500ms, 10s, 5m, 2h, 7d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"longer than {format_duration(_LONGEST)}, which is the most")
    return timedelta(seconds=seconds)


def format_duration(duration: timedelta) -> str:
    """Return a duration as it is written, in the largest unit that it is a whole number of."""
    for unit, length in _LENGTHS:
        if duration % length == timedelta():
            return f"{duration // length}{unit}"
    return f"{duration / timedelta(milliseconds=1):.3f}ms"
