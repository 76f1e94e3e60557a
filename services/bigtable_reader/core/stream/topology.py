"""The key ranges that the key space is in, and how they change: ended, put together, reconciled.

A topology whose key ranges overlap, leave a hole or have tokens for other keys than their own cannot be made: each of
these functions returns a whole one, or raises. Minimum versions only rise: every key's next key range begins above all
versions before it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import msgspec

from services.bigtable_reader.core.stream.partitions import (
    BigtableProgress,
    StreamRange,
    StreamRangeId,
    overlapping,
    uncovered,
)
from services.bigtable_reader.core.stream.records import Child, KeyRange, Microseconds, Position, RangeToken

_MICROSECOND = timedelta(microseconds=1)
_SAFELY_KEPT = timedelta(minutes=5)
"""What is about to leave the retention may have left it when the reading begins."""


class KeyRangeTopology(msgspec.Struct, frozen=True, kw_only=True):
    """All key ranges, in order. ``version`` rises with every change of one ``life``; their names have both.

    ``start``: when this life began to read; nothing before it is asked for. ValueError for key ranges that are not a
    whole.
    """

    life: str
    version: int
    start: Microseconds
    stream_ranges: tuple[StreamRange, ...]

    def __post_init__(self) -> None:
        ranges = [stream_range.range for stream_range in self.stream_ranges]
        if holes := uncovered(ranges):
            raise ValueError(f"no key range covers {_listed(holes)}")
        if twice := overlapping(ranges):
            raise ValueError(f"key ranges overlap: {_listed(one for pair in twice for one in pair)}")
        if len({stream_range.id for stream_range in self.stream_ranges}) < len(self.stream_ranges):
            raise ValueError("two key ranges have one name")
        for stream_range in self.stream_ranges:
            _check(stream_range)

    @property
    def names(self) -> frozenset[StreamRangeId]:
        """Return the names of all key ranges."""
        return frozenset(stream_range.id for stream_range in self.stream_ranges)


class Successor(msgspec.Struct, frozen=True):
    """A part of an ended key range. Without tokens nothing says where it goes on. ``target``, ``again``: as it has."""

    range: KeyRange
    tokens: tuple[RangeToken, ...] = ()
    target: KeyRange | None = None
    again: int = 0


class Ending(msgspec.Struct, frozen=True, rename={"reserved_up_to": "ceiling"}):
    """How a key range ended: what it is cut into, above which version that begins, and how far it had been read."""

    successors: tuple[Successor, ...]
    reserved_up_to: int
    low_watermark: Microseconds


class MergeTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for the other partitions of a merge, and for a token.

    ``allowance``: how long before the low watermark reading starts again where no token came.
    """

    merge: timedelta = timedelta(minutes=2)
    token: timedelta = timedelta(minutes=20)
    allowance: timedelta = timedelta(hours=1)


class Reshaped(msgspec.Struct, frozen=True, kw_only=True):
    """What a change made of the key ranges."""

    topology: KeyRangeTopology
    split: int = 0
    """Key ranges that ended with more than one child inside them."""
    merged: int = 0
    """Key ranges that were put together from several."""
    reconciled: int = 0
    """Key ranges that had waited too long."""


def begin(ranges: Iterable[KeyRange], *, life: str, start: Microseconds, min_version: int) -> KeyRangeTopology:
    """Return the first key ranges of a life, all to be read from a time. ValueError if the ranges are not a whole."""
    stream_ranges = [NewRange(one, Position(start=start), min_version, start) for one in sorted(ranges)]
    return KeyRangeTopology(life=life, version=1, start=start, stream_ranges=_named(stream_ranges, life, 1))


def successors(whole: KeyRange, children: Sequence[Child]) -> tuple[Successor, ...]:
    """Return the parts that a range is cut into by what its CloseStream named; together exactly the range.

    Tokens of a partition that they cover are read at once, as one. Others wait for what their partition lacks. A token
    that reaches beyond the range, or overlaps another, cannot be used: its keys are as those that no token was named
    for.
    """
    taken: list[RangeToken] = []
    members: dict[KeyRange, list[RangeToken]] = defaultdict(list)
    for child in sorted(children, key=lambda child: (child.token.range, child.partition, child.token.token)):
        token = child.token
        if not _within(token.range, whole) or (taken and overlapping([taken[-1].range, token.range])):
            continue
        taken.append(token)
        members[child.partition if _within(token.range, child.partition) else token.range].append(token)
    found = [Successor(hole) for hole in uncovered((token.range for token in taken), whole)]
    for partition, tokens in members.items():
        if not uncovered((token.range for token in tokens), partition):
            found.append(Successor(partition, tuple(tokens)))
        else:
            found += [Successor(token.range, (token,), partition) for token in tokens]
    return tuple(sorted(found, key=lambda successor: successor.range))


def partition_around(part: KeyRange, partitions: Iterable[KeyRange]) -> KeyRange | None:
    """Return the present partition that a range is only a part of; None where there is none."""
    return next((one for one in partitions if one != part and _within(part, one)), None)


def waiting(progress: BigtableProgress, target: KeyRange) -> Successor:
    """Return a partition as the part of a target that it is. ValueError for what cannot be one, or has no tokens."""
    part = progress.partition.stream_range.range
    if not progress.position.tokens or part == target or not _within(part, target):
        raise ValueError(f"{part} cannot wait for {target}")
    return Successor(part, progress.position.tokens, target, progress.partition.stream_range.again + 1)


def end(topology: KeyRangeTopology, name: StreamRangeId, ending: Ending) -> Reshaped | None:
    """Replace a key range by its successors; None if it is no longer there."""
    draft = _Draft(topology)
    split = draft.end(name, ending)
    return Reshaped(topology=draft.done(), split=split) if draft.gone else None


def merge(topology: KeyRangeTopology) -> Reshaped | None:
    """Put together what waits for one target and covers it; None if nothing does."""
    draft = _Draft(topology)
    merged = draft.merge()
    return Reshaped(topology=draft.done(), merged=merged) if merged else None


def settle(topology: KeyRangeTopology, endings: Mapping[StreamRangeId, Ending]) -> Reshaped | None:
    """End key ranges, and put together what is complete then; None if nothing of that is left to do."""
    draft = _Draft(topology)
    split = sum(draft.end(name, ending) for name, ending in endings.items())
    merged = draft.merge()
    return Reshaped(topology=draft.done(), split=split, merged=merged) if draft.gone else None


def reconcile(
    topology: KeyRangeTopology,
    waited: Mapping[StreamRangeId, timedelta],
    timeouts: MergeTimeouts,
    kept_since: Microseconds,
) -> Reshaped | None:
    """Let what waited too long be read as it is, or from a time where it has no token; None if nothing did.

    ``kept_since`` is the oldest time that can still be read. ValueError if changes older than that are needed.
    """
    draft = _Draft(topology)
    for stream_range in topology.stream_ranges:
        has_waited = waited.get(stream_range.id, timedelta())
        if stream_range.position is None and has_waited >= timeouts.token:
            position: Position | None = Position(
                start=restart(topology, stream_range.low_watermark, timeouts, kept_since)
            )
        elif stream_range.position is not None and stream_range.target is not None and has_waited >= timeouts.merge:
            position = stream_range.position
        else:
            continue
        new_range = NewRange(
            stream_range.range,
            position,
            stream_range.min_version,
            stream_range.low_watermark,
            reconciled=True,
            again=stream_range.again,
        )
        draft.replace(stream_range, [new_range])
    return Reshaped(topology=draft.done(), reconciled=len(draft.gone)) if draft.gone else None


def restart(
    topology: KeyRangeTopology, low_watermark: Microseconds, timeouts: MergeTimeouts, kept_since: Microseconds
) -> Microseconds:
    """Return the time to read from where no token helps: all that is not known to be read, and an allowance.

    The end of what is kept may take of the allowance only. ValueError if changes after the low watermark are gone.
    """
    if low_watermark < kept_since:
        raise ValueError(f"changes since {low_watermark} are asked for, and are kept since {kept_since} only")
    wanted = max(low_watermark - timeouts.allowance // _MICROSECOND, topology.start)
    return Microseconds(max(wanted, min(low_watermark, kept_since + _SAFELY_KEPT // _MICROSECOND)))


class NewRange(msgspec.Struct, frozen=True):
    """A key range that has no name yet."""

    range: KeyRange
    position: Position | None
    min_version: int
    low_watermark: Microseconds
    target: KeyRange | None = None
    reconciled: bool = False
    again: int = 0


class _Draft:
    """What goes of a topology and what comes, until it is replaced, and checked, once: it may have thousands."""

    def __init__(self, topology: KeyRangeTopology) -> None:
        self._topology = topology
        self._stream_ranges = {stream_range.id: stream_range for stream_range in topology.stream_ranges}
        self._new_ranges: list[NewRange] = []
        self.gone: set[StreamRangeId] = set()

    def replace(self, stream_range: StreamRange, new_ranges: Iterable[NewRange]) -> None:
        """Let new ones come in the place of a key range."""
        self.gone.add(stream_range.id)
        self._new_ranges += new_ranges

    def end(self, name: StreamRangeId, ending: Ending) -> int:
        """Let a key range's successors come in its place, if it is there; return 1 if that is a split."""
        stream_range = None if name in self.gone else self._stream_ranges.get(name)
        if stream_range is None:
            return 0
        min_version = max(stream_range.min_version, ending.reserved_up_to)
        low_watermark = max(stream_range.low_watermark, ending.low_watermark)
        new_ranges = [
            NewRange(
                one.range,
                Position(one.tokens) if one.tokens else None,
                min_version,
                low_watermark,
                one.target,
                again=one.again,
            )
            for one in ending.successors
        ]
        self.replace(stream_range, new_ranges)
        return int(sum(new_range.target is None and new_range.position is not None for new_range in new_ranges) > 1)

    def merge(self) -> int:
        """Put together what waits for one target and covers it; return how many targets."""
        waiting: dict[KeyRange, list[StreamRange | NewRange]] = defaultdict(list)
        there: list[StreamRange | NewRange] = [
            stream_range for stream_range in self._topology.stream_ranges if stream_range.id not in self.gone
        ]
        for part in sorted([*there, *self._new_ranges], key=lambda part: part.range):
            if part.target is not None and part.position is not None:
                waiting[part.target].append(part)
        whole = {
            target: parts for target, parts in waiting.items() if not uncovered((part.range for part in parts), target)
        }
        self.gone |= {part.id for parts in whole.values() for part in parts if isinstance(part, StreamRange)}
        self._new_ranges = [
            new_range for new_range in self._new_ranges if new_range.position is None or new_range.target not in whole
        ]
        for target, parts in whole.items():
            tokens = tuple(token for part in parts if part.position for token in part.position.tokens)
            min_version, low_watermark = (
                max(part.min_version for part in parts),
                min(part.low_watermark for part in parts),
            )
            self._new_ranges.append(NewRange(target, Position(tokens), min_version, low_watermark))
        return len(whole)

    def done(self) -> KeyRangeTopology:
        """Return the topology that it has become. ValueError if that is not a whole."""
        version = self._topology.version + 1
        kept = [stream_range for stream_range in self._topology.stream_ranges if stream_range.id not in self.gone]
        named = _named(self._new_ranges, self._topology.life, version)
        stream_ranges = tuple(sorted([*kept, *named], key=lambda stream_range: stream_range.range))
        return msgspec.structs.replace(self._topology, version=version, stream_ranges=stream_ranges)


def _named(new_ranges: Sequence[NewRange], life: str, version: int) -> tuple[StreamRange, ...]:
    return tuple(
        StreamRange(id=StreamRangeId(f"{life}.{version}.{index}"), **msgspec.structs.asdict(new_range))
        for index, new_range in enumerate(new_ranges)
    )


def _check(stream_range: StreamRange) -> None:
    tokens = () if stream_range.position is None else stream_range.position.tokens
    ranges = [token.range for token in tokens]
    if tokens and (
        uncovered(ranges, stream_range.range)
        or overlapping(ranges)
        or not all(_within(one, stream_range.range) for one in ranges)
    ):
        raise ValueError(f"key range {stream_range.id} of {stream_range.range} has tokens of {_listed(ranges)}")
    if stream_range.target is not None and not (
        tokens and _within(stream_range.range, stream_range.target) and stream_range.range != stream_range.target
    ):
        raise ValueError(f"key range {stream_range.id} of {stream_range.range} waits for {stream_range.target}")


def _within(part: KeyRange, whole: KeyRange) -> bool:
    return part.start >= whole.start and (not whole.end or (bool(part.end) and part.end <= whole.end))


def _listed(ranges: Iterable[KeyRange]) -> str:
    return ", ".join(map(str, ranges))
