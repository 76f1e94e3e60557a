"""What the partition table says of all readers, whether or not one runs; shown by `status`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from services.spanner_reader.app.snapshot.snapshot_status import summaries, summary_lines
from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.core.schema.resync import fix_of
from services.spanner_reader.core.schema.shapes import NEVER, SchemaInspection, SpannerResyncRequest
from services.spanner_reader.core.snapshot.snapshot import SnapshotSurvey
from services.spanner_reader.core.stream.partitions import PartitionState, SpannerPartitionSurvey, low_watermark
from shared.contracts.timestamps import format_timestamp
from shared.reading.status import needs_attention, progress_lines, state_lines, state_of

_SECOND: Final = 1_000_000_000


def document(
    source: str,
    survey: SpannerPartitionSurvey,
    retention: timedelta,
    inspection: SchemaInspection | None,
    requests: Sequence[SpannerResyncRequest],
    quote: str,
    snapshots: SnapshotSurvey,
    pauses: Pauses,
) -> Mapping[str, Any]:
    """Return everything there is to say, ready for JSON: names, counts and times, no row's values. Time is Spanner's.

    ``pending_resync`` names the tables whose mirror may differ, since when, why, and what fixes it; ``left`` those that
    are no longer mirrored, whose rows BigQuery keeps; ``snapshots`` how far the latest one of each table is;
    ``paused_tables`` those whose changes are dropped.
    """
    states = Counter(partition.state.value for partition in survey.unfinished)
    states[PartitionState.FINISHED.value] = survey.finished
    started = bool(survey.unfinished or survey.finished)
    low = low_watermark((partition.watermark for partition in survey.unfinished), survey.now)
    lag = max(0, survey.now - low) / _SECOND
    leased = [p for p in survey.unfinished if p.owner is not None and (p.lease_until or 0) >= survey.now]
    counted = Counter(str(partition.owner) for partition in leased)
    owners = sorted(survey.readers | counted.keys())
    return {
        "service": "spanner_reader",
        "source": source,
        "state": state_of(started=started, has_readers=bool(owners), paused=pauses.stream is not None),
        "paused_since": None if pauses.stream is None else format_timestamp(pauses.stream.paused_at),
        "paused_tables": paused_tables(pauses),
        "now": format_timestamp(survey.now),
        "partitions": {state.value: states[state.value] for state in PartitionState},
        "readers": [{"owner": owner, "partitions": counted[owner]} for owner in owners],
        "low_watermark": format_timestamp(low) if started else None,
        "lag_seconds": lag if started else None,
        "retention_seconds": retention.total_seconds(),
        "retention_left_seconds": retention.total_seconds() - lag if started else None,
        "schema_inspected_at": None if inspection is None else format_timestamp(inspection.at),
        "pending_resync": [resync(request, quote) for request in requests],
        "snapshots": summaries(snapshots, requests),
        "left": []
        if inspection is None
        else [n for n, t in sorted(inspection.tables.items()) if t.mirrored and not t.watched],
    }


def paused_tables(pauses: Pauses) -> Sequence[Mapping[str, str]]:
    """Return the tables whose changes are dropped, and since when."""
    return [
        {"table": table, "since": format_timestamp(pause.paused_at)}
        for table, pause in sorted(pauses.paused_tables.items())
    ]


def exit_code(shown: Mapping[str, Any]) -> int:
    """Return 0 if a reader reads or none is to, in time, and no table is pending resync; else 1."""
    return int(needs_attention(shown))


def lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """Return a document as text."""
    yield from state_lines(shown)
    yield from progress_lines(shown)
    yield f"schema inspected: {shown['schema_inspected_at'] or 'not yet'}"
    for one in shown["snapshots"]:
        yield from summary_lines(one)
    for table in shown["paused_tables"]:
        name, since = table["table"], table["since"]
        yield f"{name}: paused since {since}; its changes are dropped until `resume {name}`"
    for name in shown["left"]:
        yield f"{name}: no longer mirrored; BigQuery keeps the rows it has"
    for table in shown["pending_resync"]:
        yield f"{table['table']}: pending resync since {table['since']}"
        for why in table["why"]:
            columns = f" ({', '.join(why['columns'])})" if why["columns"] else ""
            until = f", between {why['after']} and {why['before']}" if why["before"] else f", since {why['after']}"
            yield f"  {why['kind'].replace('_', ' ')}{columns}{until}"
        yield f"  -> {table['fix']}"
    if not shown["pending_resync"]:
        yield "no table is pending resync"


def resync(request: SpannerResyncRequest, quote: str) -> Mapping[str, Any]:
    """Return what there is to say of a table that is pending resync."""
    return {
        "table": request.table,
        "since": format_timestamp(request.since),
        "why": [
            {
                "kind": found.kind.value,
                "columns": list(found.columns),
                "after": format_timestamp(found.after),
                "before": None if found.before == NEVER else format_timestamp(found.before),
            }
            for found in request.findings
        ],
        "fix": fix_of(request, quote),
    }
