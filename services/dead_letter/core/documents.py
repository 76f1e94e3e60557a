"""Dead letters, groups and numbers as JSON documents: the one shape that the commands print and the API answers with.

Times are RFC 3339 texts. Fields are added in time, and none is renamed or taken away. Values of rows are there only
where they are asked for.
"""

import base64
from collections.abc import Mapping, Sequence

from services.dead_letter.core.dead_letters import (
    DeadLetterGroup,
    DeadLetterLine,
    DeadLetterStats,
    StoredDeadLetter,
    TrailEntry,
)
from services.dead_letter.core.masking import attributes, detail, payload
from services.dead_letter.core.plan import PlannedReplay
from shared.contracts.timestamps import Nanoseconds, format_timestamp

Document = Mapping[str, object]


def line_document(line: DeadLetterLine, *, values: bool = False) -> Document:
    """Return a dead letter as lists show it."""
    return {
        "id": line.id,
        "state": line.state.value,
        "group": line.group,
        "reason": line.reason.value,
        "detail": detail(line.reason, line.detail, values=values),
        "table": line.table,
        "key": line.key,
        "sequence": line.sequence,
        "commit_timestamp": line.commit_timestamp,
        "ordering_key": line.ordering_key,
        "failed_in": line.failed_in,
        "size": line.size,
        "payload_bytes": line.payload_bytes,
        "attempts": line.attempts,
        "replays": line.replays,
        "first_failed_at": format_timestamp(line.first_failed_at),
        "last_failed_at": format_timestamp(line.last_failed_at),
        "arrived_at": format_timestamp(line.arrived_at),
        "edit_of": line.edit_of,
        "edited_as": line.edited_as,
        "claimed_by": line.claimed_by,
        "claimed_until": _instant(line.claimed_until),
    }


def letter_document(stored: StoredDeadLetter, trail: Sequence[TrailEntry], *, values: bool) -> Document:
    """Return a dead letter with its payload and its trail; ``masked``: whether values of rows are left out."""
    return {
        **line_document(stored.line, values=values),
        "attributes": attributes(stored.letter, values=values),
        "masked": not values,
        "payload": payload(stored.letter, values=values),
        "trail": [trail_document(entry, values=values) for entry in trail],
    }


def export_document(stored: StoredDeadLetter, *, values: bool) -> Document:
    """Return a dead letter as it is exported: with values its very bytes in base64, else their structure."""
    document = {
        **line_document(stored.line, values=values),
        "attributes": attributes(stored.letter, values=values),
        "masked": not values,
    }
    if values:
        return {**document, "data": base64.b64encode(stored.letter.data).decode()}
    return {**document, "payload": payload(stored.letter, values=False)}


def trail_document(entry: TrailEntry, *, values: bool) -> Document:
    """Return a line of a trail; the diff of an edit holds values."""
    more = {name: text if values or name != "diff" else "<masked>" for name, text in entry.more.items()}
    return {
        "at": format_timestamp(entry.at),
        "who": entry.who,
        "action": entry.action.value,
        "result": entry.result,
        "more": more,
    }


def group_document(group: DeadLetterGroup) -> Document:
    """Return a group."""
    return {
        "id": group.id,
        "reason": group.reason.value,
        "table": group.table,
        "detail": group.detail,
        "letters": group.letters,
        "by_state": {state.value: count for state, count in group.by_state.items()},
        "first_failed_at": format_timestamp(group.first_failed_at),
        "last_failed_at": format_timestamp(group.last_failed_at),
        "sample": group.sample,
    }


def stats_document(stats: DeadLetterStats) -> Document:
    """Return what the store holds, in numbers."""
    return {
        "by_state": {state.value: count for state, count in stats.by_state.items()},
        "open_by_reason": {reason.value: count for reason, count in stats.by_reason.items()},
        "open_by_table": dict(stats.by_table),
        "oldest_open": _instant(stats.oldest_open),
        "payload_bytes": stats.payload_bytes,
    }


def planned_document(planned: PlannedReplay) -> Document:
    """Return what a replay does with a dead letter."""
    letter = planned.letter
    return {
        "id": letter.id,
        "table": letter.letter.table,
        "key": letter.letter.key,
        "sequence": letter.letter.sequence,
        "reason": letter.letter.reason.value,
        "verdict": planned.verdict.value,
        "why": planned.why,
    }


def _instant(instant: Nanoseconds | None) -> str | None:
    return None if instant is None else format_timestamp(instant)
