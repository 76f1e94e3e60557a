"""How stale a table's answers may be, as BigQuery's API writes it, and up to when BigQuery has applied what is written.

Source: BigQuery, "Stream table updates with change data capture", section "Monitor table upsert operation progress".
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from google.cloud import bigquery

_NO_RETRY: Final[Any] = None  # retries are not nested: the next reading is the retry
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


def read_watermarks(client: bigquery.Client, dataset: str, timeout: float) -> Mapping[str, datetime]:
    """Return the watermarks of the tables that have one, by the tables' names. ``dataset`` is with its project.

    The client's errors; futures.TimeoutError after ``timeout`` seconds.
    """
    query = (
        f"SELECT table_name, upsert_stream_apply_watermark FROM `{dataset}`.INFORMATION_SCHEMA.TABLES "  # noqa: S608
        "WHERE upsert_stream_apply_watermark IS NOT NULL"
    )
    rows = client.query_and_wait(query, retry=_NO_RETRY, api_timeout=timeout, wait_timeout=timeout)
    return {row["table_name"]: row["upsert_stream_apply_watermark"] for row in rows}
