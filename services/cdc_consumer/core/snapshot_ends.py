"""The ends of snapshots among messages: which of them can be believed."""

from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa

from shared.contracts.change_batch import ChangeBatch
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.safe_age import SNAPSHOT_END_AGE
from shared.contracts.timestamps import Nanoseconds, microseconds


def ends_of_snapshots(batches: Mapping[int, ChangeBatch], messages: pa.Table, now: Nanoseconds) -> Mapping[int, int]:
    """Return since when tables are complete, in microseconds, by the message that says so.

    What has changes, too, says nothing of it, and neither does what was under way for too long.
    """
    found = {
        index: parse_sequence(since).sections[0]
        for index, batch in batches.items()
        if isinstance(since := batch.header.complete_since, str) and not len(batch)
    }
    if not found:
        return found
    published = messages.column("publish_time").cast(pa.int64())
    oldest = microseconds(now) - SNAPSHOT_END_AGE // timedelta(microseconds=1)
    return {index: since for index, since in found.items() if (published[index].as_py() or 0) >= oldest}
