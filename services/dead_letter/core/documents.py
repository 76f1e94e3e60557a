"""Dead letters, groups and numbers as JSON documents: the one shape that the commands print and the API answers with.

Times are RFC 3339 texts. Fields are added in time, and none is renamed or taken away. Values of rows are there only
where they are asked for.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Final

from services.dead_letter.core.dead_letters import (
    DeadLetterGroup,
    DeadLetterLine,
    DeadLetterStats,
    StoredDeadLetter,
    TrailEntry,
)
from services.dead_letter.core.masking import attributes, detail, payload
from services.dead_letter.core.plan import PlannedReplay
from shared.contracts.timestamps import format_timestamp

Document = Mapping[str, object]

_LINE: Final = tuple(field.name for field in fields(DeadLetterLine))
_TIMES: Final = {"at", "first_failed_at", "last_failed_at", "arrived_at", "claimed_until", "oldest_open"}


def line_document(line: DeadLetterLine, *, values: bool = False) -> Document:
    """Return a dead letter as lists show it."""
    return {**_document(line, _LINE), "detail": detail(line.reason, line.detail, values=values)}


def dead_letter_document(stored: StoredDeadLetter, trail: Sequence[TrailEntry], *, values: bool) -> Document:
    """Return a dead letter with its payload and its trail."""
    return {
        **_whole(stored, values=values),
        "payload": payload(stored.dead_letter, values=values),
        "trail": [trail_document(entry, values=values) for entry in trail],
    }


def export_document(stored: StoredDeadLetter, *, values: bool) -> Document:
    """Return a dead letter as it is exported: with values its very bytes in base64, else their structure."""
    if values:
        return {**_whole(stored, values=True), "data": base64.b64encode(stored.data).decode()}
    return {**_whole(stored, values=False), "payload": payload(stored.dead_letter, values=False)}


def _whole(stored: StoredDeadLetter, *, values: bool) -> Document:
    """Return all but what its bytes hold; ``masked``: whether values of rows are left out."""
    shown = attributes(stored.dead_letter, values=values)
    return {**line_document(stored, values=values), "attributes": shown, "masked": not values}


def trail_document(entry: TrailEntry, *, values: bool) -> Document:
    """Return a line of a trail; the diff of an edit holds values."""
    more = {name: text if values or name != "diff" else "<masked>" for name, text in entry.more.items()}
    return {**_document(entry, ("at", "who", "action", "result")), "more": more}


def group_document(group: DeadLetterGroup) -> Document:
    """Return a group."""
    return _document(group, tuple(field.name for field in fields(group)))


def stats_document(stats: DeadLetterStats) -> Document:
    """Return what the store holds, in numbers."""
    return {
        "by_state": _plain(stats.by_state),
        "open_by_reason": _plain(stats.by_reason),
        "open_by_table": _plain(stats.by_table),
        **_document(stats, ("oldest_open", "payload_bytes")),
    }


def planned_document(planned: PlannedReplay) -> Document:
    """Return what a replay does with a dead letter."""
    return {
        **_document(planned.dead_letter, ("id", "table", "key", "sequence", "reason")),
        **_document(planned, ("verdict", "why")),
    }


def _document(of: object, names: Iterable[str]) -> dict[str, object]:
    found = {name: getattr(of, name) for name in names}
    return {
        name: format_timestamp(value) if name in _TIMES and value is not None else _plain(value)
        for name, value in found.items()
    }


def _plain(value: Any) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(_plain(name)): count for name, count in value.items()}
    return value
