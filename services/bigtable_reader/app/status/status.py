"""What the partition table says of all readers, whether or not one runs; shown by `status`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from services.bigtable_reader.app.snapshot.snapshot_status import summary_lines
from services.bigtable_reader.core.schema.resync import fix_of
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, StreamRange
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.core.stream.sharing import low_watermark, unread
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.status import NOT_STARTED, needs_attention, progress_lines, state_lines, state_of

READY: Final = "READY"
"""It may be read, and no reader has it."""
RUNNING: Final = "RUNNING"
CLOSING: Final = "CLOSING"
"""Its end is recorded, its children are not key ranges yet."""
WAITING: Final = "WAITING"
"""For the other parts of a merge, or without a token."""
STATES: Final = (READY, RUNNING, CLOSING, WAITING)

_SECOND: Final = 1_000_000


def state(stream_range: StreamRange, survey: BigtablePartitionSurvey) -> str:
    """Return the state of a key range, as it is shown."""
    saved = survey.saved.get(stream_range.id)
    if not stream_range.is_readable:
        return WAITING
    if saved is None or (saved.state == "RUNNING" and not saved.owner):
        return READY
    return saved.state


def document(
    source: str,
    survey: BigtablePartitionSurvey,
    retention: timedelta | None,
    now: Microseconds,
    snapshots: Sequence[Mapping[str, Any]] = (),
) -> Mapping[str, Any]:
    """Return everything there is to say, ready for JSON: names, counts and times, no row's values.

    ``snapshots``: how far the latest one is.
    """
    states = Counter(state(stream_range, survey) for stream_range in survey.stream_ranges)
    started = bool(survey.stream_ranges)
    low = low_watermark(survey) if started else now
    lag = max(0, now - low) / _SECOND
    leased = Counter(saved.owner for saved in survey.saved.values() if saved.owner and saved.state == RUNNING)
    owners = sorted(survey.readers | leased.keys())
    kept = None if retention is None else retention.total_seconds()
    return {
        "service": "bigtable_reader",
        "source": source,
        "state": state_of(started=started, has_readers=bool(owners), paused=survey.paused_since is not None),
        "paused_since": None if survey.paused_since is None else _shown(survey.paused_since),
        "now": _shown(now),
        "partitions": {name: states[name] for name in STATES},
        "unread": [str(one) for one in unread(survey)] if started else [],
        "readers": [{"owner": owner, "partitions": leased[owner]} for owner in owners],
        "low_watermark": _shown(low) if started else None,
        "lag_seconds": lag if started else None,
        "retention_seconds": kept,
        "retention_left_seconds": kept - lag if started and kept is not None else None,
        "snapshots": list(snapshots),
        "pending_resync": pending_resync(survey),
    }


def pending_resync(survey: BigtablePartitionSurvey) -> Sequence[Mapping[str, Any]]:
    """Return the table if rows of its mirror may be wrong: since when, why, and what fixes it."""
    if (request := survey.resync_request) is None:
        return []
    why = [
        {
            "kind": one.kind,
            "families": list(one.families),
            "options": list(one.options),
            "found_at": _shown(one.found_at),
        }
        for one in request.findings
    ]
    return [{"table": request.table, "since": _shown(request.since), "why": why, "fix": fix_of(request)}]


def _shown(time: Microseconds) -> str:
    return format_timestamp(Nanoseconds(time * 1_000))


def exit_code(shown: Mapping[str, Any]) -> int:
    """Return 0 if a reader reads or none is to, in time, and no resync is due; else 1.

    Keys that no reader reads just now are none of that: they are taken within a lease, or fall behind.
    """
    return int(needs_attention(shown))


def lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """Return a document as text."""
    yield from state_lines(shown)
    if shown["state"] != NOT_STARTED:
        yield f"keys that no reader owns now: {', '.join(shown['unread']) or 'none'}"
    yield from progress_lines(shown)
    for one in shown["snapshots"]:
        yield from summary_lines(one)
    for table in shown["pending_resync"]:
        yield f"{table['table']}: pending resync since {table['since']}"
        for why in table["why"]:
            named = [*why["families"], *why["options"]]
            families = f" ({', '.join(named)})" if named else ""
            yield f"  {why['kind'].replace('_', ' ')}{families}, found at {why['found_at']}"
        yield f"  -> {table['fix']}"
