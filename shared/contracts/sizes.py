"""Sizes in bytes as people write them: ``1000000``, ``500MB``, ``1.5 TB``, ``2TiB``."""

import re
from decimal import Decimal
from typing import Final

_UNITS: Final = {"B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kMGTP", 1)
    for suffix, base in (("B", 1_000), ("iB", 1_024))
}
_BY_CASE: Final = {unit.lower(): size for unit, size in _UNITS.items()}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)|(\d+)", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return how many bytes a text such as ``500MB`` means; ValueError where it means none."""
    match = _SIZE.fullmatch(text.strip())
    if match is not None and match[3]:
        return int(match[3])
    if match is None or match[2].lower() not in _BY_CASE:
        raise ValueError("not a size; write a number of bytes, or one with a unit: 500MB, 1.5TB, 2TiB")
    return int(Decimal(match[1]) * _BY_CASE[match[2].lower()])


def format_size(size: int) -> str:
    """Return a size with three digits and a unit; below a thousand bytes, all of them."""
    if size < 1_000:
        return f"{size} B"
    value, unit = float(size), "B"
    for unit in ("kB", "MB", "GB", "TB", "PB"):  # noqa: B007  the last one reached
        value /= 1_000
        if value < 999.95:
            break
    return f"{value:.1f} {unit}"
