"""The ends of snapshots among messages: which of them can be believed."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa
from msgspec import UnsetType

from services.cdc_consumer.core.types.values import LAST_MICROSECOND
from shared.contracts.change_batch import ChangeBatch
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.safe_age import MOST_AHEAD, SNAPSHOT_END_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds


class End(NamedTuple):
    """The end of a snapshot: each row that its source had is published."""

    since: int
    """With a sequence of this time or a later one, in microseconds. Of Bigtable it is no time, but a number that rises
    as time does, and may be ahead of all clocks."""
    read_since: int
    """A time before any of these rows was read: what is compared with times of the consumer's."""


class Ends(NamedTuple):
    """Since when tables are complete, as messages say that have come."""

    believed: Mapping[int, End]
    """By the message."""
    late: Collection[tuple[str, str]]
    """Source tables, and times (RFC 3339) that were announced too long ago to be believed."""
    forged: Collection[int] = ()
    """Messages that name a time more than `MOST_AHEAD` after they were published."""


def ends_of_snapshots(batches: Mapping[int, ChangeBatch], messages: pa.Table, now: Nanoseconds) -> Ends:
    """Return which tables are said to be complete: not by what has changes, too, for that says nothing of it."""
    found = {
        index: _end(parse_sequence(since).sections[0], batch.header.read_since)
        for index, batch in batches.items()
        if isinstance(since := batch.header.complete_since, str) and not len(batch)
    }
    if not found:
        return Ends({}, ())
    published = messages.column("publish_time").cast(pa.int64())
    oldest = microseconds(now) - SNAPSHOT_END_AGE // timedelta(microseconds=1)
    ahead = MOST_AHEAD // timedelta(microseconds=1)
    forged = {
        index
        for index, end in found.items()
        if end.read_since > LAST_MICROSECOND
        or end.since > LAST_MICROSECOND
        or (published[index].is_valid and end.read_since > published[index].as_py() + ahead)
    }
    found = {index: end for index, end in found.items() if index not in forged}
    believed = {index: end for index, end in found.items() if (published[index].as_py() or 0) >= oldest}
    late = {
        (batches[index].header.table, format_timestamp(Nanoseconds(end.since * 1_000)))
        for index, end in found.items()
        if index not in believed
    }
    return Ends(believed, late, forged)


def _end(since: int, read_since: int | UnsetType) -> End:
    return End(since, since if isinstance(read_since, UnsetType) else min(since, read_since))
