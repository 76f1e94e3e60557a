"""What the partition table says of all readers, whether or not one runs; shown by `status`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TextIO

import msgspec

from services.bigtable_reader.core.partitions import Piece, Survey, overlapping, uncovered
from services.bigtable_reader.core.records import Microseconds
from services.bigtable_reader.core.resync import cure
from services.bigtable_reader.core.sharing import low_watermark, unread
from services.bigtable_reader.snapshot_status import summary_lines
from shared.contracts.timestamps import Nanoseconds, format_timestamp

NOT_STARTED: Final = "not started yet"
NOBODY: Final = "nobody reads"
READING: Final = "reading"
PAUSED: Final = "paused"

READY: Final = "READY"
"""It may be read, and nobody has it."""
RUNNING: Final = "RUNNING"
CLOSING: Final = "CLOSING"
"""Its end is recorded, its children are not pieces yet."""
WAITING: Final = "WAITING"
"""For the other parts of a merge, or without a token."""
STATES: Final = (READY, RUNNING, CLOSING, WAITING)

_SECOND: Final = 1_000_000
_LITTLE: Final = 0.5
"""The part of the retention that should be left."""


def state(piece: Piece, survey: Survey) -> str:
    """Return the state of a piece, as it is shown."""
    saved = survey.saved.get(piece.id)
    if not piece.is_readable:
        return WAITING
    if saved is None or (saved.state == "RUNNING" and not saved.owner):
        return READY
    return saved.state


def document(
    source: str,
    survey: Survey,
    retention: timedelta | None,
    now: Microseconds,
    snapshots: Sequence[Mapping[str, Any]] = (),
) -> Mapping[str, Any]:
    """Return everything there is to say, ready for JSON: names, counts and times, no row's values.

    ``snapshots``: how far the latest one is.
    """
    states = Counter(state(piece, survey) for piece in survey.pieces)
    ranges = [piece.range for piece in survey.pieces]
    started = bool(survey.pieces)
    low = low_watermark(survey) if started else now
    lag = max(0, now - low) / _SECOND
    held = Counter(saved.owner for saved in survey.saved.values() if saved.owner and saved.state == RUNNING)
    owners = sorted(survey.readers | held.keys())
    kept = None if retention is None else retention.total_seconds()
    return {
        "service": "bigtable_reader",
        "source": source,
        "state": _state(survey, somebody=bool(owners)),
        "paused_since": None if survey.paused_since is None else _shown(survey.paused_since),
        "now": _shown(now),
        "partitions": {name: states[name] for name in STATES},
        "uncovered": [str(one) for one in uncovered(ranges)] if started else [],
        "covered_twice": [str(one) for _other, one in overlapping(ranges)],
        "unread": [str(one) for one in unread(survey)] if started else [],
        "readers": [{"owner": owner, "partitions": held[owner]} for owner in owners],
        "low_watermark": _shown(low) if started else None,
        "lag_seconds": lag if started else None,
        "retention_seconds": kept,
        "retention_left_seconds": kept - lag if started and kept is not None else None,
        "snapshots": list(snapshots),
        "needs_resync": needs_resync(survey),
    }


def needs_resync(survey: Survey) -> Sequence[Mapping[str, Any]]:
    """Return the table if rows of its mirror may be wrong: since when, why, and what mends it."""
    if (mark := survey.mark) is None:
        return []
    why = [
        {
            "kind": one.kind,
            "families": list(one.families),
            "options": list(one.options),
            "found_at": _shown(one.found_at),
        }
        for one in mark.findings
    ]
    return [{"table": mark.table, "since": _shown(mark.since), "why": why, "cure": cure(mark)}]


def _state(survey: Survey, *, somebody: bool) -> str:
    if not survey.pieces:
        return NOT_STARTED
    if survey.paused_since is not None:
        return PAUSED
    return READING if somebody else NOBODY


def _shown(time: Microseconds) -> str:
    return format_timestamp(Nanoseconds(time * 1_000))


def exit_code(shown: Mapping[str, Any]) -> int:
    """Return 0 if somebody reads, or nobody is to, all keys are covered once, in time, and no re-sync is due; else 1.

    Keys that nobody reads just now are none of that: they are taken within a lease, or fall behind.
    """
    return int(
        shown["state"] not in (READING, PAUSED)
        or _is_late(shown)
        or bool(shown["uncovered"] or shown["covered_twice"] or shown["needs_resync"])
    )


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
    yield "partitions: " + ", ".join(f"{count} {name}" for name, count in shown["partitions"].items())
    if shown["state"] != NOT_STARTED:
        holes, twice = ", ".join(shown["uncovered"]), ", ".join(shown["covered_twice"])
        yield f"keys that no partition covers: {holes or 'none'}; that two cover: {twice or 'none'}"
        yield f"keys that no reader holds now: {', '.join(shown['unread']) or 'none'}"
    for reader in shown["readers"]:
        yield f"  {reader['owner']} reads {reader['partitions']}"
    if shown["low_watermark"] is not None:
        yield f"everything up to {shown['low_watermark']} is published: {_seconds(shown['lag_seconds'])} behind"
    if shown["retention_left_seconds"] is not None:
        left, retention = (_seconds(shown[name]) for name in ("retention_left_seconds", "retention_seconds"))
        yield f"what is behind is kept for {left} more (the stream keeps {retention})"
        if _is_late(shown):
            yield "-> that is less than half: " + (
                "resume before it is over, for what is lost then is lost" if shown["paused_since"] else "start readers"
            )
    for one in shown["snapshots"]:
        yield from summary_lines(one)
    for table in shown["needs_resync"]:
        yield f"{table['table']}: needs re-sync since {table['since']}"
        for why in table["why"]:
            named = [*why["families"], *why["options"]]
            families = f" ({', '.join(named)})" if named else ""
            yield f"  {why['kind'].replace('_', ' ')}{families}, found at {why['found_at']}"
        yield f"  -> {table['cure']}"


def _is_late(shown: Mapping[str, Any]) -> bool:
    left, retention = shown["retention_left_seconds"], shown["retention_seconds"]
    return bool(left is not None and left < retention * _LITTLE)


def _seconds(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 0 else f"-{timedelta(seconds=round(-seconds))}"
