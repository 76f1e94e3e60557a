"""How stale a table's answers may be, as BigQuery's API writes it."""

import re
from datetime import timedelta
from typing import Final

from google.cloud import bigquery

_INTERVAL: Final = re.compile(r"0-0 (\d+) (\d+):(\d+):(\d+)", re.ASCII)


def interval_text(duration: timedelta) -> str:
    """Return a duration as BigQuery's API writes an INTERVAL: ``0-0 0 0:15:0`` is a quarter of an hour."""
    minutes, seconds = divmod(duration // timedelta(seconds=1), 60)
    return f"0-0 0 {minutes // 60}:{minutes % 60}:{seconds}"


def staleness_of(found: bigquery.Table) -> timedelta:
    """Return of how long ago a table's answers may be."""
    return interval_of(found.max_staleness or "")


def interval_of(text: str) -> timedelta:
    """Return the duration of an INTERVAL of days and less; nothing of any other text."""
    match = _INTERVAL.fullmatch(text)
    days, hours, minutes, seconds = (int(part) for part in match.groups()) if match else (0, 0, 0, 0)
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def as_stale(found: bigquery.Table, wanted: timedelta | None) -> bool:
    """Return whether a table is as stale as it should be; where nothing is said of it, any is right."""
    return wanted is None or (bool(found.max_staleness) and staleness_of(found) == wanted)
