"""Times of the change stream, and their RFC 3339 texts. Most are close together, so the texts of seconds are cached."""

from functools import lru_cache
from typing import Final, NewType

from shared.contracts.timestamps import Nanoseconds, format_timestamp

Microseconds = NewType("Microseconds", int)
"""Since 1970-01-01 in UTC. Bigtable truncates the times of change streams to microseconds."""

_MILLION: Final = 1_000_000


def instant(microseconds: int) -> str:
    """Return the canonical text of an instant; ValueError or OverflowError outside the years 0001 to 9999."""
    seconds, fraction = divmod(microseconds, _MILLION)
    if not fraction:
        return f"{_second(seconds)}Z"
    return f"{_second(seconds)}.{fraction:06d}".rstrip("0") + "Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return format_timestamp(Nanoseconds(seconds * 1_000_000_000))[:-1]
