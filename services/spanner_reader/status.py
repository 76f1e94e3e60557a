"""What the partition table says of all readers, whether or not one runs; shown by `status`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TextIO

import msgspec

from services.spanner_reader.core.partitions import State, Survey, low_watermark
from services.spanner_reader.core.pauses import NEVER, Pauses
from services.spanner_reader.core.resync import cure
from services.spanner_reader.core.shapes import Look, Mark
from services.spanner_reader.core.snapshot import SnapshotSurvey
from services.spanner_reader.snapshot_command import summaries, summary_line
from shared.contracts.timestamps import format_timestamp

NOT_STARTED: Final = "not started yet"
NOBODY: Final = "nobody reads"
READING: Final = "reading"
PAUSED: Final = "paused"

_SECOND: Final = 1_000_000_000
_LITTLE: Final = 0.5
"""The part of the retention that should be left."""


def document(
    source: str,
    survey: Survey,
    retention: timedelta,
    look: Look | None,
    marks: Sequence[Mark],
    quote: str,
    snapshots: SnapshotSurvey,
    pauses: Pauses,
) -> Mapping[str, Any]:
    """Return everything there is to say, ready for JSON: names, counts and times, no row's values. Time is Spanner's.

    ``needs_resync`` names the tables whose mirror may differ, since when, why, and what mends it; ``left`` those that
    are not mirrored any more, whose rows BigQuery keeps; ``snapshots`` how far the latest one of each table is;
    ``paused_tables`` those whose changes are dropped.
    """
    states = Counter(partition.state.value for partition in survey.unfinished)
    states[State.FINISHED.value] = survey.finished
    started = bool(survey.unfinished or survey.finished)
    low = low_watermark((partition.watermark for partition in survey.unfinished), survey.now)
    lag = max(0, survey.now - low) / _SECOND
    leased = [p for p in survey.unfinished if p.owner is not None and (p.lease_until or 0) >= survey.now]
    held = Counter(str(partition.owner) for partition in leased)
    owners = sorted(survey.readers | held.keys())
    return {
        "service": "spanner_reader",
        "source": source,
        "state": _state(started=started, somebody=bool(owners), paused=pauses.stream is not None),
        "paused_since": None if pauses.stream is None else format_timestamp(pauses.stream.paused_at),
        "paused_tables": paused_tables(pauses),
        "now": format_timestamp(survey.now),
        "partitions": {state.value: states[state.value] for state in State},
        "readers": [{"owner": owner, "partitions": held[owner]} for owner in owners],
        "low_watermark": format_timestamp(low) if started else None,
        "lag_seconds": lag if started else None,
        "retention_seconds": retention.total_seconds(),
        "retention_left_seconds": retention.total_seconds() - lag if started else None,
        "schema_looked_at": None if look is None else format_timestamp(look.at),
        "needs_resync": [resync(mark, quote) for mark in marks],
        "snapshots": summaries(snapshots, marks),
        "left": [] if look is None else [n for n, t in sorted(look.tables.items()) if t.mirrored and not t.watched],
    }


def _state(*, started: bool, somebody: bool, paused: bool) -> str:
    if not started:
        return NOT_STARTED
    if paused:
        return PAUSED
    return READING if somebody else NOBODY


def paused_tables(pauses: Pauses) -> Sequence[Mapping[str, str]]:
    """Return the tables whose changes are dropped, and since when."""
    return [
        {"table": table, "since": format_timestamp(pause.paused_at)}
        for table, pause in sorted(pauses.paused_tables.items())
    ]


def exit_code(shown: Mapping[str, Any]) -> int:
    """Return 0 if somebody reads, or nobody is to, in time, and no table needs re-sync; else 1."""
    late = left_of(shown) < _LITTLE
    return int(shown["state"] not in (READING, PAUSED) or late or bool(shown["needs_resync"]))


def print_status(shown: Mapping[str, Any], as_json: bool, out: TextIO) -> None:
    """Write a document as one JSON object, or as text."""
    if as_json:
        out.write(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n")
    else:
        out.writelines(f"{line}\n" for line in lines(shown))


def lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """Return a document as text."""
    yield f"{shown['source']}: {shown['state']} at {shown['now']}"
    if shown["paused_since"] is not None:
        yield f"paused since {shown['paused_since']}: nothing is read until `resume`"
    yield "partitions: " + ", ".join(f"{count} {state}" for state, count in shown["partitions"].items())
    for reader in shown["readers"]:
        yield f"  {reader['owner']} reads {reader['partitions']}"
    if shown["low_watermark"] is not None:
        yield f"everything up to {shown['low_watermark']} is published: {_seconds(shown['lag_seconds'])} behind"
        left, retention = (_seconds(shown[name]) for name in ("retention_left_seconds", "retention_seconds"))
        yield f"what is behind is kept for {left} more (the stream keeps {retention})"
        if left_of(shown) < _LITTLE:
            yield "-> that is less than half: " + (
                "resume before it is over, for what is lost then is lost" if shown["paused_since"] else "start readers"
            )
    yield f"schema looked at: {shown['schema_looked_at'] or 'not yet'}"
    for one in shown["snapshots"]:
        yield summary_line(one)
    for table in shown["paused_tables"]:
        name, since = table["table"], table["since"]
        yield f"{name}: paused since {since}; its changes are dropped until `resume {name}`"
    for name in shown["left"]:
        yield f"{name}: not mirrored any more; BigQuery keeps the rows it has"
    for table in shown["needs_resync"]:
        yield f"{table['table']}: needs re-sync since {table['since']}"
        for why in table["why"]:
            columns = f" ({', '.join(why['columns'])})" if why["columns"] else ""
            until = f", between {why['after']} and {why['before']}" if why["before"] else f", since {why['after']}"
            yield f"  {why['kind'].replace('_', ' ')}{columns}{until}"
        yield f"  -> {table['cure']}"
    if not shown["needs_resync"]:
        yield "no table needs re-sync"


def resync(mark: Mark, quote: str) -> Mapping[str, Any]:
    """Return what there is to say of a table that needs re-sync."""
    return {
        "table": mark.table,
        "since": format_timestamp(mark.since),
        "why": [
            {
                "kind": found.kind.value,
                "columns": list(found.columns),
                "after": format_timestamp(found.after),
                "before": None if found.before == NEVER else format_timestamp(found.before),
            }
            for found in mark.findings
        ],
        "cure": cure(mark, quote),
    }


def left_of(shown: Mapping[str, Any]) -> float:
    """Return which part of what the stream keeps is left; 1 where nothing was read yet."""
    left = shown["retention_left_seconds"]
    return 1.0 if left is None else float(left / shown["retention_seconds"])


def _seconds(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 0 else f"-{timedelta(seconds=round(-seconds))}"
