"""Microseconds as RFC 3339 texts. Most times of a stream are close together, so their seconds are remembered."""

from functools import lru_cache
from typing import Final

from shared.contracts.timestamps import Nanoseconds, format_timestamp

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
