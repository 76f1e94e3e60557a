"""The key ranges of the key space, what their readers save of them, and an inspection of all of it.

A *stream range* is a key range with a position: the shape of the stream. A *partition* is one that a reader owns.
"""

from collections.abc import Iterable
from typing import Final, Literal, NewType

import msgspec

from services.bigtable_reader.core.schema.resync import BigtableResyncRequest
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds, Position
from shared.contracts.errors import MisconfiguredError

RESTART: Final = "Stop every reader of this CHANGE_STREAM_NAME first; then begin under another"
"""The fix for what cannot go on: versions of two names are in no order while both are read."""

RESTART_WITH_ALL_ROWS: Final = (
    f"{RESTART}, with SNAPSHOT=initial, which brings every row, and delete the missing rows after it"
)
"""Where the position is lost."""

RESTART_AFTER_LOST_CHANGES: Final = (
    f"{RESTART} (which skips the changes in between), with SNAPSHOT=initial, which brings every row, and delete the "
    "missing rows after it: a mirror is then complete, a change log keeps a gap"
)
"""Where changes are lost to the stream."""


StreamRangeId = NewType("StreamRangeId", str)
"""Names a key range; never used twice, also where a range comes back after a split and a merge."""


class StreamRange(msgspec.Struct, frozen=True, kw_only=True, rename={"min_version": "floor"}):
    """A part of the key space. ``min_version``: every version that is made for it is above.

    ``target`` is the partition that it is to be a part of, once the others have come; None: it may be read as it is.
    ``position`` is None where the service named no token for it; it is read from a time, if it comes to that.
    ``reconciled``: it waited too long, and is read as it is; ``again``, how often it was put back to wait since.
    """

    id: StreamRangeId
    range: KeyRange
    position: Position | None
    min_version: int
    low_watermark: Microseconds
    target: KeyRange | None = None
    reconciled: bool = False
    again: int = 0

    @property
    def is_readable(self) -> bool:
        """Return whether it may be read as it is: it has a position, and waits for nothing."""
        return self.position is not None and self.target is None


class BigtablePartition(msgspec.Struct, frozen=True, kw_only=True):
    """A key range as its reader holds it: where to go on, above which version, and in the name of which fence."""

    stream_range: StreamRange
    position: Position
    low_watermark: Microseconds
    min_version: int
    reserved_up_to: int
    """No version above it is made before a higher one is saved. At the claim it is the minimum: no room yet."""
    fence: int
    owner: str
    load: int = 0
    """Records per second."""


class BigtableProgress(msgspec.Struct, frozen=True):
    """How far an owned partition has been read and confirmed; and the reserved upper limit that it asks for."""

    partition: BigtablePartition
    position: Position
    low_watermark: Microseconds
    reserved_up_to: int
    min_version: int = 0
    """Every version that is made from now on is above it."""
    load: int = 0
    """Records per second."""


class Saved(msgspec.Struct, frozen=True):
    """What a partition's row says, to every reader."""

    owner: str
    """Empty: released."""
    fence: int
    state: Literal["RUNNING", "CLOSING"]
    low_watermark: Microseconds
    free: bool
    """Whether the one who surveys may claim it: released, unchanged for a lease, or in its own name already."""
    min_version: int = 0
    """Every version that is made after the inspection is above it."""
    reserved_up_to: int = 0
    """No version that was made before the inspection is above it."""
    load: int = 0
    """Records per second."""


class BigtablePartitionSurvey(msgspec.Struct, frozen=True):
    """The key ranges, what is saved of those that were ever taken, and who is present."""

    stream_ranges: tuple[StreamRange, ...]
    saved: dict[StreamRangeId, Saved]
    readers: frozenset[str]
    now: Microseconds = Microseconds(0)
    """Bigtable's clock at the survey."""
    paused_since: Microseconds | None = None
    """By Bigtable's clock; None: it is not paused."""
    resync_request: BigtableResyncRequest | None = None
    """What needs all rows to be read again; None: nothing does."""


def _check_not_forgotten(stream: str, survey: BigtablePartitionSurvey) -> None:
    """Raise MisconfiguredError, with the fix, where a stream was read and its key ranges are gone."""
    if survey.saved and not survey.stream_ranges:
        raise MisconfiguredError(
            "stream-row-missing",
            f"the partition table no longer knows {stream}: its row was deleted. {RESTART_WITH_ALL_ROWS}",
        )


def check_known(table: str, stream: str, survey: BigtablePartitionSurvey) -> None:
    """Raise MisconfiguredError, with the fix, where no reader has begun the stream, or it was forgotten since."""
    _check_not_forgotten(stream, survey)
    if not survey.stream_ranges:
        raise MisconfiguredError(
            "stream-never-read",
            f"no reader of table {table} has ever started under the name {stream}: are BIGTABLE_TABLE and "
            "CHANGE_STREAM_NAME right? If they are, start the reader first",
        )


Resume = Literal["new", "resume-or-new", "resume-or-fail"]
"""What a start does about key ranges that are known, or not, under the name of the stream."""


def begins(resume: Resume, survey: BigtablePartitionSurvey, stream: str) -> bool:
    """Return whether a start is the first one of a stream; MisconfiguredError if it may not be what it would be.

    Where the stream was read already, and its key ranges are gone, another beginning would skip changes: also after the
    restart of a reader that has ended because of it.
    """
    _check_not_forgotten(stream, survey)
    known = bool(survey.stream_ranges)
    if known and resume == "new":
        raise MisconfiguredError(
            "stream-known-already",
            f"change stream {stream} is known already, and RESUME=new begins one: choose another CHANGE_STREAM_NAME, "
            "or continue it with RESUME=resume-or-new",
        )
    if not known and resume == "resume-or-fail":
        raise MisconfiguredError(
            "stream-not-known",
            f"nothing is known of change stream {stream}, and RESUME=resume-or-fail only continues a stream: fix "
            "CHANGE_STREAM_NAME or PARTITION_TABLE, or begin it with RESUME=resume-or-new",
        )
    return not known


def uncovered(ranges: Iterable[KeyRange], whole: KeyRange = ALL_KEYS) -> list[KeyRange]:
    """Return the parts of a key range that none of the ranges covers, in the order of keys."""
    holes = []
    at = whole.start
    for one in sorted(ranges):
        if whole.end and one.start >= whole.end:
            break
        if one.start > at:
            holes.append(KeyRange(at, one.start))
        if not one.end:
            return holes
        at = max(at, one.end)
    if not whole.end or at < whole.end:
        holes.append(KeyRange(at, whole.end))
    return holes


def overlapping(ranges: Iterable[KeyRange]) -> list[tuple[KeyRange, KeyRange]]:
    """Return the ranges that share keys with one that begins before them, each with such a one."""
    found = []
    furthest: KeyRange | None = None
    for one in sorted(ranges):
        if furthest is not None and (not furthest.end or one.start < furthest.end):
            found.append((furthest, one))
        if furthest is None or (furthest.end and (not one.end or one.end > furthest.end)):
            furthest = one
    return found
