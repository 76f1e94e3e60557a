"""Who reads which key range, and how far all of them have come."""

from collections.abc import Collection, Mapping
from typing import Final

from services.bigtable_reader.core.stream.partitions import (
    BigtablePartitionSurvey,
    Saved,
    StreamRange,
    StreamRangeId,
    uncovered,
)
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds

_NOTHING_MORE: Final[Mapping[StreamRangeId, Microseconds]] = {}


def has_reached(stream_range: StreamRange, survey: BigtablePartitionSurvey, end: Microseconds | None) -> bool:
    """Return whether nothing of a key range is left to read up to ``end`` (inclusive)."""
    return end is not None and _reached(stream_range, survey) > end


def claimable(
    survey: BigtablePartitionSurvey, holding: Collection[StreamRangeId], end: Microseconds | None
) -> list[StreamRange]:
    """Return the key ranges that may be read, are free, and not owned already; those that are furthest behind first."""
    found = [
        stream_range
        for stream_range in survey.stream_ranges
        if stream_range.id not in holding and _is_due(stream_range, survey, end) and _is_free(stream_range, survey)
    ]
    return sorted(found, key=lambda stream_range: (_reached(stream_range, survey), stream_range.range))


def readable(survey: BigtablePartitionSurvey, end: Microseconds | None) -> dict[StreamRangeId, Saved | None]:
    """Return the key ranges that may be read, whichever reader owns them, with what is saved of each."""
    return {
        stream_range.id: survey.saved.get(stream_range.id)
        for stream_range in survey.stream_ranges
        if _is_due(stream_range, survey, end)
    }


def unread(survey: BigtablePartitionSurvey) -> list[KeyRange]:
    """Return the keys that no present reader reads, in their order; for a moment that may be any.

    Their key ranges are free, wait for the rest of a merge or for a token, have ended a moment ago, or are of a reader
    that has not been seen for a lease.
    """
    read = []
    for stream_range in survey.stream_ranges:
        saved = survey.saved.get(stream_range.id)
        if saved is not None and saved.state == "RUNNING" and saved.owner in survey.readers:
            read.append(stream_range.range)
    return uncovered(read)


def low_watermark(
    survey: BigtablePartitionSurvey, unsaved: Mapping[StreamRangeId, Microseconds] = _NOTHING_MORE
) -> Microseconds:
    """Return the time up to which, by estimate, all is confirmed; ``unsaved``: of key ranges, what is not saved yet."""
    return min(unsaved.get(stream_range.id, _reached(stream_range, survey)) for stream_range in survey.stream_ranges)


def _is_due(stream_range: StreamRange, survey: BigtablePartitionSurvey, end: Microseconds | None) -> bool:
    saved = survey.saved.get(stream_range.id)
    is_closed = saved is not None and saved.state != "RUNNING"
    return stream_range.is_readable and not is_closed and not has_reached(stream_range, survey, end)


def _is_free(stream_range: StreamRange, survey: BigtablePartitionSurvey) -> bool:
    saved = survey.saved.get(stream_range.id)
    return saved is None or saved.free


def _reached(stream_range: StreamRange, survey: BigtablePartitionSurvey) -> Microseconds:
    saved = survey.saved.get(stream_range.id)
    return stream_range.low_watermark if saved is None else saved.low_watermark
