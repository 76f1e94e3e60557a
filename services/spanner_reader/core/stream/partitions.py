"""The life of a partition: when it may be read, by whom, and how far all of them have come."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from services.spanner_reader.core.stream.records import ChildPartition, PartitionToken
from shared.contracts.timestamps import Nanoseconds


class PartitionState(Enum):
    """CREATED: known. SCHEDULED: a reader has taken it. RUNNING: it is being read. FINISHED: all of it is confirmed."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerPartition:
    """One row of the partition table. ``fencing`` rises with every change of hands; only its newest holder may write.

    ``watermark`` is where a reading starts again. ``finished_parents`` are those of ``parents`` that are finished; a
    parent that is not known yet (another partition that has not been read so far will name it) is not finished.
    """

    token: PartitionToken
    start: Nanoseconds
    watermark: Nanoseconds
    parents: frozenset[PartitionToken] = frozenset()
    finished_parents: frozenset[PartitionToken] = frozenset()
    state: PartitionState = PartitionState.CREATED
    owner: str | None = None
    lease_until: Nanoseconds | None = None
    fencing: int = 0
    load: int = 0
    """Records per second."""

    def __post_init__(self) -> None:
        if self.watermark < self.start:
            raise ValueError(f"partition {self.token!r}: watermark before start")
        if not self.finished_parents <= self.parents:
            raise ValueError(f"partition {self.token!r}: finished parents that are not its parents")


@dataclass(frozen=True, slots=True)
class NewPartition:
    """A child partition to be remembered: it starts where its parents end."""

    token: PartitionToken
    parents: frozenset[PartitionToken]
    start: Nanoseconds


@dataclass(frozen=True, slots=True)
class SpannerPartitionSurvey:
    """All partitions that are not finished, as they were at one time (by Spanner's clock), and a count of the rest.

    ``finished``: as many as there were when they were counted last: a minute ago at most, and since any was finished.
    ``readers`` are the owners of leases, present or to come, that share the partitions.
    """

    now: Nanoseconds
    unfinished: tuple[SpannerPartition, ...]
    finished: int
    readers: frozenset[str] = frozenset()


def has_reached(partition: SpannerPartition, end: Nanoseconds | None) -> bool:
    """Return whether nothing of a partition is left to read up to ``end`` (inclusive)."""
    return end is not None and partition.watermark > end


def is_due(partition: SpannerPartition, end: Nanoseconds | None) -> bool:
    """Return whether a partition may be read: it is not finished, all its parents are, and something is left of it."""
    return (
        partition.state is not PartitionState.FINISHED
        and partition.parents == partition.finished_parents
        and not has_reached(partition, end)
    )


def is_free(partition: SpannerPartition, owner: str, now: Nanoseconds) -> bool:
    """Return whether ``owner``, who is not reading this partition, may take it.

    A lease in the owner's own name that it does not know of is a claim whose answer never arrived: it may be taken.
    """
    return partition.lease_until is None or partition.owner == owner or partition.lease_until < now


def claimable(
    partitions: Iterable[SpannerPartition],
    *,
    owner: str,
    holding: Collection[PartitionToken],
    now: Nanoseconds,
    end: Nanoseconds | None,
) -> list[SpannerPartition]:
    """Return the partitions that are due, free, and not owned already; the earliest first."""
    found = [p for p in partitions if p.token not in holding and is_due(p, end) and is_free(p, owner, now)]
    return sorted(found, key=lambda p: p.watermark)


def low_watermark(watermarks: Iterable[Nanoseconds], now: Nanoseconds) -> Nanoseconds:
    """Return the time up to which everything in every partition is confirmed; ``now`` where none is unfinished."""
    return min(watermarks, default=now)


@dataclass(frozen=True, slots=True)
class Reshaping:
    """How many partitions were split in two or more, and how many came from two or more."""

    split: int
    merged: int


def reshaping(
    parent: PartitionToken, children: Collection[NewPartition], added: Collection[PartitionToken]
) -> Reshaping:
    """Count what the end of ``parent`` did to the partitions.

    Every parent of a merged partition reports it; it counts where it was ``added``, so once. The first partitions of
    a stream have no parents: they are neither.
    """
    only_ours = [child for child in children if child.parents == {parent}]
    merged = [child for child in children if len(child.parents) > 1 and child.token in added]
    return Reshaping(split=int(len(only_ours) > 1), merged=len(merged))


def new_partitions(start: Nanoseconds, children: Iterable[ChildPartition]) -> list[NewPartition]:
    """Return the children of a record as partitions to remember."""
    return [NewPartition(child.token, child.parents, start) for child in children]
