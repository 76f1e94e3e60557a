"""How old an upsert may be, and how long a live one may be outstanding: BigQuery forgets deletes.

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
OLDEST_PUBLISHED: Final = timedelta(hours=26)
"""How old a snapshot row may be when it is published, by the publish time that Pub/Sub gives the message.

A reader begins to read rows that are 23 hours old at most, and publishes what it has read before it reads on. What is
older than a day and a margin of two hours when it is published was forged, or delayed: it says nothing of a snapshot.
"""
MAX_OUTSTANDING_AGE: Final = SAFE_AGE - timedelta(hours=26)
"""How long a reader may hold a live change before it publishes it, and must read it again.

Who takes over from a reader that is cut off publishes what came after, deletes too. A day is left in which what was
outstanding at the other may wait for the consumer, and two hours are margin.
"""
MOST_AHEAD: Final = timedelta(days=1)
"""How much later than its message was published a change may have been committed, by its own word.

Pub/Sub says when it was published, so no clock of the consumer decides. What claims more is forged or broken: applied
to a mirror it would win over every change of its row for as long as it claims to be ahead.
"""
SAFE_MICROSECONDS: Final = SAFE_AGE // timedelta(microseconds=1)


def oldest_safe(now: Nanoseconds) -> int:
    """Return the commit timestamp, in microseconds, before which an upsert may meet no remembered delete."""
    return microseconds(now) - SAFE_MICROSECONDS
