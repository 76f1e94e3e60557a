"""How old an upsert may be that does not come live from the stream: BigQuery forgets deletes.

Source: BigQuery, "Stream table updates with change data capture": what was deleted is remembered for two days.
"""

from datetime import timedelta
from typing import Final

from shared.contracts.timestamps import Nanoseconds, microseconds

SAFE_AGE: Final = timedelta(hours=46)
"""BigQuery remembers a delete for two days; an older upsert could bring the deleted row back. Two hours are margin."""
SNAPSHOT_END_AGE: Final = SAFE_AGE - timedelta(hours=26)
"""How long after it was published the end of a snapshot is believed.

A snapshot row is a day old at most when it is published, and becomes a dead letter where it is older than `SAFE_AGE`
when it is applied. What arrives later than this arrives with rows that may be refused, and two hours are margin.
"""
SAFE_MICROSECONDS: Final = SAFE_AGE // timedelta(microseconds=1)


def oldest_safe(now: Nanoseconds) -> int:
    """Return the commit timestamp, in microseconds, before which an upsert may meet no remembered delete."""
    return microseconds(now) - SAFE_MICROSECONDS
