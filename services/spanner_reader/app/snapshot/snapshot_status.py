"""How far snapshots are: what the commands show of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.spanner_reader.core.schema.shapes import SpannerResyncRequest
from services.spanner_reader.core.snapshot.snapshot import (
    UNFINISHED,
    RangeState,
    SnapshotRange,
    SnapshotSurvey,
    by_run,
    complete_snapshots,
    lost_until,
)
from shared.contracts.timestamps import Nanoseconds, format_timestamp


def summaries(
    survey: SnapshotSurvey, requests: Sequence[SpannerResyncRequest], tables: Sequence[str] = ()
) -> Sequence[Mapping[str, Any]]:
    """Return how far the latest snapshot of each table is, and of keys of it; of all tables if none is named.

    ``requests``: the resync requests of the tables.
    """
    runs = by_run(one for one in survey.ranges if not tables or one.table in tables)
    return [_summary(table, ranges, requests) for (table, _run), ranges in runs.items()]


def _summary(
    table: str, ranges: Sequence[SnapshotRange], requests: Sequence[SpannerResyncRequest]
) -> Mapping[str, Any]:
    left = [one for one in ranges if one.state in UNFINISHED]
    cancelled = any(one.state is RangeState.CANCELLED for one in ranges)
    first, read_at = ranges[0], Nanoseconds(min(one.first_read_at for one in ranges))
    lost = None if first.number or cancelled else lost_until(table, read_at, requests)
    complete = [] if lost is not None else [one.since for one in complete_snapshots(ranges)]
    return {
        "table": table,
        "keys": {"after": first.after, "until": first.until} if first.number else None,
        "state": "READING" if left else "CANCELLED" if cancelled else "DONE",
        "rows": sum(one.rows for one in ranges),
        "ranges": len(ranges),
        "ranges_left": len(left),
        "read_timestamp": format_timestamp(read_at),
        "complete_since": next(map(format_timestamp, complete), None),
        "never_announced": None if lost is None else _never_announced(table, lost),
    }


def _never_announced(table: str, until: Nanoseconds) -> Mapping[str, str]:
    """Return why the end of a snapshot is never announced, and what to do."""
    lost = format_timestamp(until)
    return {
        "why": f"the topic lost messages until {lost}, and rows that were read before may be among them",
        "fix": f"take another one after that time: `snapshot {table}`; RESYNC=automatic does",
    }


def summary_lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """Return a summary as text."""
    left = f", {shown['ranges_left']} of {shown['ranges']} key ranges left" if shown["ranges_left"] else ""
    complete = f", complete since {shown['complete_since']}" if shown["complete_since"] else ""
    if (never := shown["never_announced"]) is not None:
        complete = f", never announced as complete: {never['why']} -> {never['fix']}"
    empty = ": there was none to read" if shown["state"] == "DONE" and not shown["rows"] else ""
    keys = f", rows {between(**shown['keys'])}," if shown["keys"] else ""
    yield (
        f"snapshot of {shown['table']}{keys} as of {shown['read_timestamp']}: {shown['state'].lower()}, "
        f"{shown['rows']} rows{empty}{left}{complete}"
    )


def between(after: str | None, until: str | None) -> str:
    """Return in words between which keys."""
    parts = [f"behind {after}"] if after is not None else []
    return " ".join([*parts, f"up to {until}"] if until is not None else parts)
