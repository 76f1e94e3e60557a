"""Up to when BigQuery has applied, in the background, what was written to a dataset's tables.

Source: BigQuery, "Stream table updates with change data capture", section "Monitor table upsert operation progress".
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from google.cloud import bigquery

_NO_RETRY: Final[Any] = None  # retries are not nested: the next reading is the retry


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
