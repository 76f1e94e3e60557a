"""How far a snapshot is, and what it waits for: what the commands show of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from services.bigtable_reader.core.snapshot.snapshot import PartState, Snapshot, common, min_version_under
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, uncovered
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds
from services.bigtable_reader.core.stream.sharing import has_reached, unread
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.snapshot_watch import Hindrance

_GIVE_UP: Final = "or give the snapshot up: `snapshot --cancel`"
_READERS: Final = f"start readers (again where their END_TIMESTAMP is reached, without it), {_GIVE_UP}"
WAITS: Final = Hindrance("no reader reads the stream of its keys just now: nothing tells what is newer", _READERS)
"""As far as the reader of a part knows."""
_PAUSED: Final = Hindrance("the stream is paused", f"`resume` it, {_GIVE_UP}")
_NO_READER: Final = Hindrance("no reader is there", "start one")
_UNTAKEN: Final = Hindrance(
    "no reader has taken any of it yet",
    "that takes seconds; none does whose tables file watches something else (key_prefixes, families, mode) than the "
    "one that it was asked for with: give the readers that file, or ask again with theirs",
)
_LOW: Final = Hindrance(
    "its rows are to win over all that was published before, and readers' numbers are not above that yet",
    "that takes seconds",
)


LOST: Final = "the topic lost messages since it was asked for, and rows of it may be among them"
ANOTHER: Final = "take another one: `snapshot`; RESYNC=automatic does"


def hindrance(found: Snapshot, survey: BigtablePartitionSurvey, end: Microseconds | None) -> Hindrance | None:
    """Return why some of what is left to read is not read now; ``end``: up to where the stream is read."""
    left = [(part, keys) for part in found.unfinished if (keys := part.left) is not None]
    if not left:
        return None
    if survey.paused_since is not None:
        return _PAUSED
    if not survey.readers:
        return _NO_READER
    low = [
        keys
        for part, keys in left
        if (min_version := min_version_under(survey, keys)) is None or min_version < part.above
    ]
    if low:
        without_reader = [both for hole in unread(survey) for keys in low if (both := common(hole, keys)) is not None]
        return _unread(without_reader, survey, end) if without_reader else _LOW
    return None if any(part.owner in survey.readers for part, _keys in left) else _UNTAKEN


def _unread(keys: Sequence[KeyRange], survey: BigtablePartitionSurvey, end: Microseconds | None) -> Hindrance:
    named = ", ".join(map(str, sorted(keys)))
    over = [stream_range.range for stream_range in survey.stream_ranges if has_reached(stream_range, survey, end)]
    if any(common(one, other) is not None for one in over for other in keys):
        return Hindrance(
            f"the reading of the stream of keys {named} is over at END_TIMESTAMP, and it tells what is newer",
            f"start the readers again without END_TIMESTAMP, or with a later one, {_GIVE_UP}",
        )
    return Hindrance(f"no reader reads the stream of keys {named}, which tells what is newer", _READERS)


def summaries(
    table: str, found: Snapshot | None, survey: BigtablePartitionSurvey, end: Microseconds | None = None
) -> Sequence[Mapping[str, Any]]:
    """Return how far the latest snapshot is; nothing where there never was one."""
    if found is None:
        return []
    left = found.unfinished
    cancelled = any(part.state is PartState.CANCELLED for part in found.parts)
    min_versions = [part.min_version for part in found.parts if part.min_version is not None]
    waits = hindrance(found, survey, end)
    lost = survey.resync_request is not None and found.run <= survey.resync_request.lost_run
    never = lost and found.whole and not (found.announced or cancelled)
    complete = None if never or found.complete_since is None else _time(Microseconds(found.complete_since))
    covered = uncovered(uncovered(part.range for part in found.parts))  # what lies between the holes between the parts
    return [
        {
            "table": table,
            "keys": None if found.whole else list(map(str, covered)),
            "state": "READING" if left else "CANCELLED" if cancelled else "DONE",
            "rows": sum(part.rows for part in found.parts),
            "ranges": len(found.parts),
            "ranges_left": len(left),
            "requested_at": _time(found.requested_at),
            "read_timestamp": _time(Microseconds(min(min_versions))) if min_versions else None,
            "complete_since": complete,
            "announced": found.announced,
            "never_announced": {"why": LOST, "fix": ANOTHER} if never else None,
            "waits": None if waits is None else {"why": waits.why, "fix": waits.fix},
        }
    ]


def summary_lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """Return a summary as text."""
    keys = f", rows {', '.join(shown['keys'])}," if shown["keys"] else ""
    since = f" as of {shown['read_timestamp']}" if shown["read_timestamp"] else ""
    left = f", {shown['ranges_left']} of {shown['ranges']} key ranges left" if shown["ranges_left"] else ""
    empty = ": there was none to read" if shown["state"] == "DONE" and not shown["rows"] else ""
    pending = "" if shown["announced"] else ", which is not announced yet"
    complete = f", complete since {shown['complete_since']}{pending}" if shown["complete_since"] else ""
    yield (
        f"snapshot of {shown['table']}{keys}{since}: {shown['state'].lower()}, "
        f"{shown['rows']} rows{empty}{left}{complete}; asked for at {shown['requested_at']}"
    )
    if (never := shown["never_announced"]) is not None:
        yield f"  it is never announced as complete: {never['why']}"
        yield f"  -> {never['fix']}"
    if shown["waits"] is not None:
        yield f"  it waits: {shown['waits']['why']}"
        yield f"  -> {shown['waits']['fix']}"


def _time(time: Microseconds) -> str:
    return format_timestamp(Nanoseconds(time * 1_000))
