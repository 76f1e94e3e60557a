"""What `status` of every reader shows: its state, how far all readers are, and whether that is in time."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

NOT_STARTED: Final = "not started yet"
NOT_READ: Final = "no reader"
READING: Final = "reading"
PAUSED: Final = "paused"

_LITTLE: Final = 0.5
"""The part of the retention that should be left."""


def state_of(*, started: bool, has_readers: bool, paused: bool) -> str:
    """Return the state of all readers together."""
    if not started:
        return NOT_STARTED
    if paused:
        return PAUSED
    return READING if has_readers else NOT_READ


def needs_attention(shown: Mapping[str, Any]) -> bool:
    """Return whether no reader runs though one should, progress is late, or a table is pending resync."""
    return shown["state"] not in (READING, PAUSED) or is_late(shown) or bool(shown["pending_resync"])


def is_late(shown: Mapping[str, Any]) -> bool:
    """Return whether less than half of what the stream keeps is left; nothing is late where nothing was read yet."""
    left, retention = shown["retention_left_seconds"], shown["retention_seconds"]
    return bool(left is not None and left < retention * _LITTLE)


def state_lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """Return the state, and the partitions by theirs."""
    yield f"{shown['source']}: {shown['state']} at {shown['now']}"
    if shown["paused_since"] is not None:
        yield f"paused since {shown['paused_since']}: nothing is read until `resume`"
    yield "partitions: " + ", ".join(f"{count} {state}" for state, count in shown["partitions"].items())


def progress_lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """Return the readers, how far all of them are, and for how long the rest is kept."""
    for reader in shown["readers"]:
        yield f"  {reader['owner']} reads {reader['partitions']}"
    if shown["low_watermark"] is not None:
        yield f"everything up to {shown['low_watermark']} is published: {_seconds(shown['lag_seconds'])} behind"
    if shown["retention_left_seconds"] is not None:
        left, retention = (_seconds(shown[name]) for name in ("retention_left_seconds", "retention_seconds"))
        yield f"what is behind is kept for {left} more (the stream keeps {retention})"
        if is_late(shown):
            yield "-> that is less than half: " + (
                "resume before it is over, for what is lost then is lost" if shown["paused_since"] else "start readers"
            )


def _seconds(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 0 else f"-{timedelta(seconds=round(-seconds))}"
