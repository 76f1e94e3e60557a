"""INTERVALs as the API writes them: ``0-0 0 0:10:0`` is years-months days hours:minutes:seconds."""

import re
from typing import Final

from deploy.local.bigquery.errors import invalid

_INTERVAL: Final = re.compile(r"(\d+)-(\d+) (\d+) (\d+):(\d+):(\d+)(?:\.(\d{1,6}))?", re.ASCII)
_UNIT_SECONDS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600}


def interval_microseconds(text: str) -> int:
    """Return the length of an interval; ApiError where the text is none. A month counts as 30 days."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise invalid(f"Invalid value for an interval: {text}")
    years, months, days, hours, minutes, seconds = (int(part) for part in match.groups()[:6])
    whole = (((years * 12 + months) * 30 + days) * 24 + hours) * 3600 + minutes * 60 + seconds
    return whole * 1_000_000 + int((match[7] or "0").ljust(6, "0"))


def interval_text(amount: int, unit: str) -> str:
    """Return ``INTERVAL amount unit`` as the API writes it; ApiError for a unit that is not served."""
    if unit == "DAY":
        return f"0-0 {amount} 0:0:0"
    if unit not in _UNIT_SECONDS:
        raise invalid(f"Invalid unit of an interval, or not served: {unit}")
    minutes, seconds = divmod(amount * _UNIT_SECONDS[unit], 60)
    return f"0-0 0 {minutes // 60}:{minutes % 60}:{seconds}"
