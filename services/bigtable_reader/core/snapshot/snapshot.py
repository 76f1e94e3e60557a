"""Rows from before the stream: the parts of the key space that they are read in, and what becomes of each.

A snapshot is read part by part, each in key order by one reader at a time. What a part remembers is the last key of
which Pub/Sub has confirmed everything before. Every function here returns a whole snapshot, or None for no change.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, uncovered
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds

OLDEST_READING: Final = timedelta(hours=23) // timedelta(microseconds=1)
"""How long ago rows may have been read that are published, in microseconds: an hour less than the rule has it, a day.

BigQuery remembers for two days what was deleted. A row that is older than that could bring a deleted one back.
"""
_MOST_PARTS: Final = 128
_PART_BYTES: Final = 16_000_000
"""Of a part, at least and about: each is claimed, asked for and saved by itself."""


class PartState(StrEnum):
    """How far a part has come. Its lease says who reads it."""

    REQUESTED = "REQUESTED"
    """As it was asked for: not cut into smaller ones yet."""
    CUT = "CUT"
    DONE = "DONE"
    CANCELLED = "CANCELLED"


UNFINISHED: Final = frozenset({PartState.REQUESTED, PartState.CUT})


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True, rename={"min_version": "floor"}):
    """Keys that one reader reads at a time."""

    number: int
    range: KeyRange
    above: int = 0
    """Its rows get this number or a higher one: every image of before they were asked for has a lower version."""
    last: bytes | None = None
    """Everything up to this key is confirmed by Pub/Sub."""
    again: bool = False
    """Whether it was asked for while the stream ran."""
    min_version: int | None = None
    """The smallest number under which rows of it were published."""
    read_since: Microseconds | None = None
    """A time before any of these was read, by Bigtable's clock; None where none was."""
    rows: int = 0
    state: PartState = PartState.REQUESTED
    owner: str = ""
    """Empty: no reader has it."""
    fence: int = 0
    renewals: int = 0

    @property
    def left(self) -> KeyRange | None:
        """Return the keys that are left to read."""
        return behind(self.range, self.last)

    @property
    def lease(self) -> bytes:
        """Return what every write of its reader changes."""
        return f"{self.owner} {self.fence} {self.renewals}".encode()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, rename={"announced": "told"}):
    """The latest snapshot of a table. ``run``: a later one has a higher number.

    ``whole``: it covers all rows that are watched, so its end may be announced.
    """

    run: int
    requested_at: Microseconds
    parts: tuple[SnapshotPart, ...]
    whole: bool
    announced: bool = False
    """Whether its end was published."""
    watching: str = ""
    """The digest of what its requester watched."""
    whole_before: int = 0
    """The latest one before it that covered all rows; 0: none."""

    def is_of(self, watching: str) -> bool:
        """Return whether its requester watches the same: no other brings all that is meant by it."""
        return self.watching == watching

    @property
    def latest_whole(self) -> int:
        """Return the latest snapshot that all rows were asked for with, whatever became of it."""
        return self.run if self.whole else self.whole_before

    @property
    def unfinished(self) -> Sequence[SnapshotPart]:
        """Return the parts that are left to read."""
        return [part for part in self.parts if part.state in UNFINISHED]

    @property
    def complete_since(self) -> int | None:
        """Return the number below which no row of the table was published by it; None if it is not complete."""
        min_versions = [part.min_version for part in self.parts if part.min_version is not None]
        complete = self.whole and all(part.state is PartState.DONE for part in self.parts)
        return min(min_versions) if complete and min_versions else None

    @property
    def read_since(self) -> Microseconds:
        """Return a time before any row of it was read, by Bigtable's clock.

        A number between versions is no time: it may be ahead of all clocks by as much as any reader's clock ever was,
        and by a reserve of versions for each owner that was lost. So what is compared with times is this. Where
        no part was read, it is when the snapshot was asked for, by whose clock ever.
        """
        return min((part.read_since for part in self.parts if part.read_since is not None), default=self.requested_at)

    @property
    def unannounced(self) -> bool:
        """Return whether it is complete, and not yet announced."""
        return not self.announced and self.complete_since is not None

    def covers(self, keys: Sequence[KeyRange]) -> bool:
        """Return whether it has parts for all these keys: it may have been requested with another tables file."""
        return not any(uncovered((part.range for part in self.parts), one) for one in keys)


class PartProgress(msgspec.Struct, frozen=True):
    """How far a part that is ours has come."""

    part: SnapshotPart
    run: int
    last: bytes | None
    min_version: int | None
    rows: int
    done: bool = False
    read_since: Microseconds | None = None


class SnapshotPlace(msgspec.Struct, frozen=True, gc=False):
    """Which of two readings is newer: by the minimum version at its reading, the snapshot, the claim of its part."""

    min_version: int
    run: int
    fence: int
    read_at: Microseconds
    """A time before the reading, by Bigtable's clock."""

    @property
    def sequence(self) -> str:
        """Return it as a change sequence number: above the image with the same version."""
        return f"{self.min_version:016X}/{self.run:016X}/{self.fence:016X}/{0:016X}"


# What an inspection of the partition table says of keys


def min_version_under(survey: BigtablePartitionSurvey, keys: KeyRange) -> int | None:
    """Return a number below every version that is made for any of the keys after the inspection; None if unknown."""
    min_versions = []
    at: bytes | None = keys.start
    for stream_range in sorted(survey.stream_ranges, key=lambda stream_range: stream_range.range):
        if common(stream_range.range, keys) is None:
            continue
        if at is None or stream_range.range.start > at:
            return None
        saved = survey.saved.get(stream_range.id)
        min_versions.append(
            stream_range.min_version if saved is None else max(stream_range.min_version, saved.min_version)
        )
        at = stream_range.range.end or None
    covered = at is None or (bool(keys.end) and at >= keys.end)
    return min(min_versions) if min_versions and covered else None


def highest_reserved(survey: BigtablePartitionSurvey, keys: KeyRange) -> int:
    """Return a number that no version is above which was made for any of the keys before the inspection."""
    limits = [0]
    for stream_range in survey.stream_ranges:
        if common(stream_range.range, keys) is not None:
            saved = survey.saved.get(stream_range.id)
            limits.append(
                stream_range.min_version if saved is None else max(stream_range.min_version, saved.reserved_up_to)
            )
    return max(limits)


def min_versions_wanted(snapshot: Snapshot, survey: BigtablePartitionSurvey) -> Sequence[tuple[KeyRange, int]]:
    """Return the keys that wait for their minimum version, and what it has to be: versions need only rise."""
    left = [(keys, part.above) for part in snapshot.unfinished if (keys := part.left) is not None]
    return [
        (keys, above) for keys, above in left if (low := min_version_under(survey, keys)) is not None and low < above
    ]


def too_old(read_at: Microseconds, now: Microseconds) -> bool:
    """Return whether what was read then is no longer to be published."""
    return now - read_at > OLDEST_READING


# Ranges of keys


def common(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """Return the keys that are in both."""
    start = max(one.start, other.start)
    end = min((end for end in (one.end, other.end) if end), default=b"")
    return None if end and start >= end else KeyRange(start, end)


def behind(keys: KeyRange, last: bytes | None) -> KeyRange | None:
    """Return the keys behind one of them; all where it is None."""
    if last is None:
        return keys
    start = last + b"\0"
    return None if keys.end and start >= keys.end else KeyRange(start, keys.end)


def within(part: KeyRange, ranges: Iterable[KeyRange]) -> bool:
    """Return whether one of some ranges has all these keys."""
    return any(common(part, one) == part for one in ranges)


def watched_ranges(prefixes: Iterable[bytes], among: KeyRange = ALL_KEYS) -> Sequence[KeyRange]:
    """Return the ranges of the keys that begin with any of these, in order and none twice; of no prefix, all keys."""
    found: list[KeyRange] = []
    for one in sorted(map(_of_prefix, prefixes)) or [ALL_KEYS]:
        cut = common(one, among)
        if cut is None or (found and (not found[-1].end or cut.start < found[-1].end)):
            continue  # a prefix of a prefix is within it
        found.append(cut)
    return found


def _of_prefix(prefix: bytes) -> KeyRange:
    stem = prefix.rstrip(b"\xff")
    return KeyRange(prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else b"")


def cuts_of(samples: Iterable[tuple[bytes, int]], part_bytes: int = _PART_BYTES) -> Sequence[bytes]:
    """Return those sampled keys, of all in order and each with the bytes before it, that are far enough apart."""
    cuts: list[bytes] = []
    least = part_bytes
    for row_key, bytes_before in samples:
        if row_key and bytes_before >= least:
            cuts.append(row_key)
            least = bytes_before + part_bytes
    return cuts


def parts_of(keys: KeyRange, cuts: Iterable[bytes]) -> Sequence[KeyRange]:
    """Cut a range before some keys, those of them that lie in it; into `_MOST_PARTS` at most."""
    inside = sorted({cut for cut in cuts if cut > keys.start and (not keys.end or cut < keys.end)})
    step = -(-len(inside) // (_MOST_PARTS - 1)) if inside else 1
    starts = [keys.start, *inside[step - 1 :: step]]
    return [KeyRange(start, end) for start, end in zip(starts, [*starts[1:], keys.end], strict=True)]


# What happens to a snapshot


def requested(
    before: Snapshot | None,
    ranges: Sequence[KeyRange],
    now: Microseconds,
    *,
    again: bool,
    whole: bool,
    watching: str = "",
) -> Snapshot | None:
    """Ask for ranges to be read: all of a table again, or some keys beside what is being read or not announced already.

    Not ``again``: for a first start, so that nothing happens where all rows were asked for before.
    """
    if before is not None and not again and before.whole:
        return None
    first = 0
    kept: tuple[SnapshotPart, ...] = ()
    if before is not None and not whole and (before.unfinished or before.unannounced):
        kept = before.parts
        first = max(part.number for part in kept) + 1
    asked = tuple(SnapshotPart(number=first + at, range=keys, again=again) for at, keys in enumerate(ranges))
    if kept and before is not None:
        return replace(before, parts=kept + asked)
    run = 1 if before is None else before.run + 1
    whole_before = 0 if before is None else before.latest_whole
    return Snapshot(run=run, requested_at=now, parts=asked, whole=whole, watching=watching, whole_before=whole_before)


def requested_unless_after(
    before: Snapshot | None, ranges: Sequence[KeyRange], now: Microseconds, run: int, watching: str = ""
) -> Snapshot | None:
    """Ask for all rows again, unless that was done after one of the snapshots, whatever became of it."""
    if before is not None and before.latest_whole > run:
        return None
    return requested(before, ranges, now, again=True, whole=True, watching=watching)


def taken_over(
    before: Snapshot | None, ranges: Sequence[KeyRange], now: Microseconds, watching: str
) -> Snapshot | None:
    """Request again what a reader requested that watched something else, and was not read to its end."""
    if before is None or before.is_of(watching) or not (before.unfinished or before.unannounced):
        return None
    if before.whole:
        return requested(before, ranges, now, again=True, whole=True, watching=watching)
    return replace(before, watching=watching)


def cancelled(before: Snapshot | None) -> Snapshot | None:
    """Give up what is left to read."""
    if before is None or not before.unfinished:
        return None
    parts = tuple(
        replace(part, state=PartState.CANCELLED, owner="", fence=part.fence + 1) if part.state in UNFINISHED else part
        for part in before.parts
    )
    return replace(before, parts=parts)


def claimed(
    before: Snapshot | None, numbers: Sequence[int], most: int, owner: str, is_free: Callable[[SnapshotPart], bool]
) -> Snapshot | None:
    """Take the first few of these parts that are left to read and free."""
    if before is None:
        return None
    left = {part.number: part for part in before.unfinished}
    free = [left[number] for number in numbers if number in left and is_free(left[number])]
    return _with(
        before, [replace(part, owner=owner, fence=part.fence + 1, renewals=part.renewals + 1) for part in free[:most]]
    )


def cut_into(
    before: Snapshot | None, run: int, owned: SnapshotPart, parts: Sequence[tuple[KeyRange, int]]
) -> Snapshot | None:
    """Cut a part that is owned into some, of which the first stays its reader's; each is to be above a number."""
    stored = ours(before, run, owned)
    if before is None or stored is None or stored.state is not PartState.REQUESTED:
        return None
    (keys, above), *others = parts
    first = replace(stored, range=keys, above=above, state=PartState.CUT, renewals=stored.renewals + 1)
    number = max(part.number for part in before.parts) + 1
    rest = tuple(
        SnapshotPart(number=number + place, range=keys, above=above, again=stored.again, state=PartState.CUT)
        for place, (keys, above) in enumerate(others)
    )
    kept = tuple(first if part.number == owned.number else part for part in before.parts)
    return replace(before, parts=kept + rest)


def advanced(before: Snapshot | None, progress: Iterable[PartProgress], *, release: bool) -> Snapshot | None:
    """Save how far parts have come, and renew their leases or release them; those that are not ours stay as are."""
    if before is None:
        return None
    changed = []
    for one in progress:
        stored = ours(before, one.run, one.part)
        if stored is None or stored.state not in UNFINISHED:
            continue
        after = replace(stored, last=one.last, min_version=one.min_version, rows=one.rows, renewals=stored.renewals + 1)
        after = replace(after, read_since=one.read_since, state=PartState.DONE if one.done else after.state)
        changed.append(replace(after, owner="") if one.done or release else after)
    return _with(before, changed)


def ours(snapshot: Snapshot | None, run: int, owned: SnapshotPart) -> SnapshotPart | None:
    """Return a part as it is stored, if its owner still has the lease; a part that is done has none."""
    if snapshot is None or snapshot.run != run:
        return None
    stored = next((part for part in snapshot.parts if part.number == owned.number), None)
    return stored if stored is not None and (stored.owner, stored.fence) == (owned.owner, owned.fence) else None


def _with(before: Snapshot, changed: Sequence[SnapshotPart]) -> Snapshot | None:
    if not changed:
        return None
    by_number = {part.number: part for part in changed}
    return replace(before, parts=tuple(by_number.get(part.number, part) for part in before.parts))
