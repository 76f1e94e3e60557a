"""The partition table: the key ranges of the key space, how far each has been read, by whom; in a Bigtable table.

What its rows look like is in `partition_cells.py`. No clock is compared with another machine's: that a lease is over is
seen by its row staying as it is, on this machine's own clock; ages of key ranges are differences of Bigtable's.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog
from msgspec.structs import replace

from services.bigtable_reader.adapters.stream.leased_row import LeasedRow
from services.bigtable_reader.adapters.stream.partition_cells import (
    Lease,
    PartitionContent,
    PartitionRow,
    Scan,
    TopologyRow,
)
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.stream_range_row import StreamRangeRow
from services.bigtable_reader.adapters.stream.unchanged import Unchanged
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, with_finding
from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.stream import topology as shape
from services.bigtable_reader.core.stream.partitions import (
    RESTART_AFTER_LOST_CHANGES,
    BigtablePartition,
    BigtablePartitionSurvey,
    BigtableProgress,
    Saved,
    StreamRange,
    StreamRangeId,
)
from services.bigtable_reader.core.stream.records import Child, KeyRange, Microseconds, Position
from services.bigtable_reader.core.stream.topology import Ending, MergeTimeouts, Reshaped, Successor
from services.bigtable_reader.ports import PositionLostError, Tended
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.leases import PartlySavedError

_AT_ONCE: Final = 50
"""Calls in flight; a connection carries a hundred."""
_MICROSECOND: Final = timedelta(microseconds=1)
_GONE: Final = 10
"""After how many leases a reader that was not seen is forgotten."""
_REMEMBERED: Final = 10_000
_STILL_THERE: Final = 3
"""For how many leases a reader that was seen may still publish."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimes:
    """How long a lease is, for how long the change stream keeps its records, and how long merges may take."""

    lease: timedelta
    retention: timedelta
    merge: MergeTimeouts = field(default_factory=MergeTimeouts)


class BigtablePartitionStore:
    """The partition table as one owner sees it. ``source``: the full name of the table whose changes are read.

    ``topic``: to which the owner publishes; MisconfiguredError from what reads the key ranges once theirs is another.
    """

    def __init__(
        self,
        rows: PartitionRows,
        *,
        source: str,
        owner: str,
        times: PartitionTimes,
        topic: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = rows
        self._stream_ranges = StreamRangeRow(rows, source, topic)
        self._owner = owner
        self._lease = times.lease.total_seconds()
        self._retention = times.retention // _MICROSECOND
        self._merge = times.merge
        self._log = structlog.get_logger().bind(change_stream=rows.stream)
        self._scan: Scan | None = None
        self._untended: Scan | None = None
        self._now = Microseconds(0)
        self._leases = Unchanged(monotonic)
        self._present = Unchanged(monotonic)
        self._leased: dict[StreamRangeId, LeasedRow] = {}
        self._claims: dict[str, None] = {}
        self._ended: dict[tuple[StreamRangeId, int], None] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def begin(self, ranges: Sequence[KeyRange], start: Microseconds, *, mirrored: bool = True) -> bool:
        """Remember the first key ranges, unless any are known; return whether none were."""
        if await self._stream_ranges.find() is not None:
            return False
        await self._read_rows()
        former = await self._require_no_reader_elsewhere()
        resync = with_finding(None, BigtableResyncKind.ANOTHER_NAME, self._now, 0) if former and mirrored else None
        begun = await self._stream_ranges.begin(ranges, start, self._now, resync)
        await self._stream_ranges.known()  # if another was first, it may be another table's
        return begun

    async def survey(self) -> BigtablePartitionSurvey:
        """Return all key ranges, and what their readers have saved; this owner is counted among the readers."""
        scan = self._untended = await self._read_rows()
        return _survey(
            scan,
            {name: saved(row, free=self._is_free(name, row.lease)) for name, row in scan.partitions.items()},
            frozenset(owner for owner in scan.readers if self._present.stood(owner) < self._lease),
            self._now,
        )

    async def view(self, at: Microseconds) -> BigtablePartitionSurvey:
        """Return the same without being counted, or writing anything: what there is to show at a time.

        Who is present, and so who has what, follows from that clock, or from Bigtable's as a reader wrote it where that
        is later. A clock that is ahead by more than a lease finds no reader: only a write would show Bigtable's.
        """
        scan = await self._rows.scan()
        at = max([at, *(one.at for one in scan.readers.values())])
        if scan.topology is not None:
            self._stream_ranges.check(scan.topology)
        since = at - self._lease * 1_000_000
        readers = frozenset(owner for owner, one in scan.readers.items() if one.at >= since)
        rows = {name: saved(row, free=row.lease.state == "RELEASED") for name, row in scan.partitions.items()}
        left = {name: row for name, row in rows.items() if row.owner not in readers and row.state == "RUNNING"}
        rows |= {name: replace(row, owner="", free=True) for name, row in left.items()}
        return _survey(scan, rows, readers, at)

    async def claim(self, stream_ranges: Collection[StreamRange]) -> Sequence[BigtablePartition]:
        """Take those that are still free; return them with our fence, their position and their minimum version."""
        scan = self._scan or await self._read_rows()
        answers = await self._each(
            [stream_range for stream_range in stream_ranges if stream_range.is_readable], lambda p: self._claim(p, scan)
        )
        claimed = [answer for answer in answers if isinstance(answer, BigtablePartition)]
        _raise_first(answers, transient=not claimed)
        if not claimed:
            return []
        # A key range may have ended since it was surveyed, and its row be gone. Nothing is read
        # before this recheck.
        there = (await self._stream_ranges.known()).topology.names
        for partition in claimed:
            if partition.stream_range.id not in there:
                leased = self._leased.pop(partition.stream_range.id)
                with contextlib.suppress(TransientError):  # the next reader that tends the key ranges finds it
                    await self._rows.delete_partition(leased.name, leased.lease)
        return [partition for partition in claimed if partition.stream_range.id in there]

    async def advance(
        self, progress: Sequence[BigtableProgress], *, release: bool = False
    ) -> Collection[StreamRangeId]:
        """Save how far partitions are confirmed, their reserved upper limits, and renew (or release) their leases."""

        async def save(one: BigtableProgress) -> bool:
            leased = self._ours(one.partition)
            if leased is None:
                return self._has_ended(one.partition)
            kept = await leased.save(one, "RELEASED" if release else "RUNNING")
            if release or not kept:
                self._drop(leased)
            return kept

        answers = await self._each(progress, save)
        _raise_first(answers, transient=False)
        of = {one.partition.stream_range.id: answer for one, answer in zip(progress, answers, strict=True)}
        lost = frozenset(name for name, kept in of.items() if kept is False)
        if failed := {name: error for name, error in of.items() if isinstance(error, TransientError)}:
            raise PartlySavedError(str(next(iter(failed.values()))), lost, failed.keys())
        return lost

    async def close(self, progress: BigtableProgress, children: Sequence[Child]) -> bool:
        """End a partition: children carry on, each above the reserved upper limit; False if it is not ours."""
        if not children:
            raise ValueError("a partition ends with children; without them its position is kept")
        return await self._end(progress, shape.successors(progress.partition.stream_range.range, children))

    async def wait_for(self, progress: BigtableProgress, target: KeyRange) -> bool:
        """Let a partition, with its tokens, wait for the rest of what it is only a part of; False if not ours."""
        return await self._end(progress, (shape.waiting(progress, target),))

    async def _end(self, progress: BigtableProgress, successors: tuple[Successor, ...]) -> bool:
        partition = progress.partition
        leased = self._ours(partition)
        if leased is None:
            return self._has_ended(partition)
        if not await leased.save(progress, "CLOSING", successors):
            self._drop(leased)
            return False
        _remember(self._ended, (partition.stream_range.id, partition.fence))
        self._drop(leased)
        try:
            await self._stream_ranges.change(lambda row: shape.settle(row.topology, _ending(leased)))
            await self._rows.delete_partition(leased.name, leased.lease)
        except TransientError as error:  # it has ended all the same: the reader that tends next goes on from here
            self._log.warning("roll_forward_deferred", stream_range=leased.name, error=str(error))
        return True

    async def tend(self) -> Tended:
        """Finish what others left behind, as the last survey showed it; return what was done since the last time."""
        scan, self._untended = self._untended or await self._read_rows(), None
        if scan.topology is not None:
            await self._tend(scan, scan.topology)
        return self._stream_ranges.done()

    async def restart_from_time(self, partition: BigtablePartition) -> BigtablePartition | None:
        """Give up a partition's tokens for the time of its low watermark less an allowance, within the retention."""
        stream_range = partition.stream_range
        if not stream_range.reconciled:
            raise ValueError(
                f"key range {stream_range.id} was not reconciled: its position is the only one it may have"
            )
        if partition.position.start is not None:
            raise PositionLostError(
                "bigtable-position-lost", self._lost(f"{stream_range.range} was restarted from a time already")
            )
        await self._read_rows()
        topology = (await self._stream_ranges.known()).topology
        try:
            start = shape.restart(topology, partition.low_watermark, self._merge, self._kept_since)
        except ValueError as error:
            raise PositionLostError("bigtable-position-lost", self._lost(f"{stream_range.range}: {error}")) from error
        restarted = replace(partition, position=Position(start=start))
        progress = BigtableProgress(partition, restarted.position, partition.low_watermark, partition.reserved_up_to)
        if await self.advance([progress]):
            return None
        self._log.warning(
            "restarted_from_time", stream_range=stream_range.id, range=str(stream_range.range), start=start
        )
        return restarted

    async def seen(self) -> InspectedTable | None:
        """Return what was last seen of the source table; None where nothing was."""
        return await self._rows.seen()

    async def remember(self, seen: InspectedTable) -> None:
        """Keep it for the next reader; what is read from a time from now on is within the retention that was seen."""
        if seen.retention is not None:
            self._retention = int(seen.retention * 1_000_000)
        found = await self._stream_ranges.find()
        if found is not None and not await self._rows.write_seen(found, seen):
            raise TransientError("the key ranges were changed while something was written beside them")

    async def pause(self) -> bool:
        """Pause the stream; return whether it was not paused."""
        return await self._stream_ranges.pause(paused=True)

    async def resume(self) -> bool:
        """Let the stream go on; return whether it was paused."""
        return await self._stream_ranges.pause(paused=False)

    async def require_no_reader(self) -> None:
        """Raise MisconfiguredError while readers of the stream run; this owner is counted among them."""
        scan = await self._read_rows()
        since = self._now - _STILL_THERE * self._lease * 1_000_000
        if there := sorted(owner for owner, one in scan.readers.items() if owner != self._owner and one.at >= since):
            raise MisconfiguredError(
                "bigtable-readers-still-there",
                f"{len(there)} readers still read {self._rows.stream} ({', '.join(there)}): stop all of them first. "
                f"One that died counts for {_STILL_THERE} leases ({_STILL_THERE * self._lease:g} s) more",
            )

    async def leave(self) -> None:
        """Be counted among the readers no more."""
        await self._rows.leave(self._owner)

    async def _read_rows(self) -> Scan:
        await self._rows.attend(self._owner, uuid.uuid4().hex[:8])
        scan = await self._rows.scan()
        if scan.topology is not None:
            self._stream_ranges.check(scan.topology)
        self._leases.observe({name: row.lease.encoded() for name, row in scan.partitions.items()})
        self._present.observe({owner: one.nonce for owner, one in scan.readers.items()})
        self._now = max((one.at for one in scan.readers.values()), default=self._now)
        self._scan = scan
        return scan

    async def _require_no_reader_elsewhere(self) -> bool:
        """Return whether the table was read under another name; MisconfiguredError while it is.

        Versions of two streams are in no order: our minimum version is above what others have saved, not above what
        they save yet.
        """
        since = self._now - _STILL_THERE * self._lease * 1_000_000
        streams = await self._rows.streams_elsewhere(self._stream_ranges.source)
        if there := sorted(name for seen in streams.values() for name, at in seen.items() if at >= since):
            raise MisconfiguredError(
                "read-under-another-name",
                f"{self._stream_ranges.source} is being read under another CHANGE_STREAM_NAME: {', '.join(there)} (a "
                f"row of {self._rows.table.name} each). Stop all of them first: an old row that they publish late "
                f"could replace a newer one of {self._rows.stream} for ever. One that died counts for {_STILL_THERE} "
                f"leases ({_STILL_THERE * self._lease:g} s) more. To publish to another topic, use another "
                "PARTITION_TABLE",
            )
        return bool(streams)

    # Leases

    def _is_free(self, name: StreamRangeId, lease: Lease) -> bool:
        return lease.state != "CLOSING" and self._is_left(name, lease)

    def _is_left(self, name: StreamRangeId, lease: Lease) -> bool:
        """Return whether a row has no writer: closed, released, not renewed, or ours without our knowing."""
        if lease.state != "RUNNING" or lease.claim in self._claims:
            return True
        return self._leases.stood(name, lease.encoded()) >= self._lease

    async def _claim(self, stream_range: StreamRange, scan: Scan) -> BigtablePartition | None:
        before = scan.partitions.get(stream_range.id)
        if stream_range.position is None or (before is not None and not self._is_free(stream_range.id, before.lease)):
            return None
        claim = uuid.uuid4().hex
        _remember(self._claims, claim)
        lease = Lease(1 if before is None else before.lease.fence + 1, 0, claim, "RUNNING")
        reserved_up_to = max(stream_range.min_version, 0 if before is None else before.content.reserved_up_to)
        content = PartitionContent(
            owner=self._owner,
            position=stream_range.position if before is None else before.content.position,
            low_watermark=stream_range.low_watermark if before is None else before.content.low_watermark,
            reserved_up_to=reserved_up_to,
            min_version=reserved_up_to,
            load=0 if before is None else before.content.load,
        )
        row = PartitionRow(lease, content)
        if not await self._rows.write_partition(stream_range.id, None if before is None else before.lease, row):
            return None
        self._leased[stream_range.id] = LeasedRow(self._rows, stream_range.id, row)
        return BigtablePartition(
            stream_range=stream_range,
            position=content.position,
            low_watermark=content.low_watermark,
            min_version=content.reserved_up_to,
            reserved_up_to=content.reserved_up_to,
            fence=lease.fence,
            owner=self._owner,
            load=content.load,
        )

    def _ours(self, partition: BigtablePartition) -> LeasedRow | None:
        leased = self._leased.get(partition.stream_range.id)
        return None if leased is None or leased.lease.fence != partition.fence else leased

    def _has_ended(self, partition: BigtablePartition) -> bool:
        return (partition.stream_range.id, partition.fence) in self._ended

    def _drop(self, leased: LeasedRow) -> None:
        if self._leased.get(leased.name) is leased:
            del self._leased[leased.name]

    async def _each(self, items: Iterable[T], call: Callable[[T], Awaitable[object]]) -> list[object]:
        async def one(item: T) -> object:
            async with self._room:
                return await call(item)

        return await asyncio.gather(*map(one, items), return_exceptions=True)

    # Tending

    async def _tend(self, scan: Scan, found: TopologyRow) -> None:
        endings = {name: row.content.ending for name, row in scan.partitions.items() if row.content.ending is not None}
        if shape.settle(found.topology, endings) is not None:
            found = await self._stream_ranges.change(lambda row: shape.settle(row.topology, endings))
        if self._reconciled(found) is not None:
            found = await self._stream_ranges.change(self._reconciled)
        there = found.topology.names
        for name, row in scan.partitions.items():
            if name not in there and self._is_left(name, row.lease):
                await self._tidy(self._rows.delete_partition(name, row.lease))
        for owner, presence in scan.readers.items():
            if self._present.stood(owner) >= _GONE * self._lease:
                await self._tidy(self._rows.forget_reader(owner, presence.nonce))

    async def _tidy(self, deletion: Awaitable[Any]) -> None:
        """Delete a row that no reader needs; where that fails, the next reader that tends the table tries again."""
        try:
            await deletion
        except TransientError as error:
            self._log.warning("partition_table_not_tidied", error=str(error))

    def _reconciled(self, found: TopologyRow) -> Reshaped | None:
        waited = {name: (self._now - born) * _MICROSECOND for name, born in found.born.items()}
        try:
            return shape.reconcile(found.topology, waited, self._merge, self._kept_since)
        except ValueError as error:
            raise PositionLostError("bigtable-position-lost", self._lost(str(error))) from error

    @property
    def _kept_since(self) -> Microseconds:
        return Microseconds(self._now - self._retention)

    def _lost(self, why: str) -> str:
        return f"a position in {self._stream_ranges.source} is lost: {why}. {RESTART_AFTER_LOST_CHANGES}"


def _survey(
    scan: Scan, rows: dict[StreamRangeId, Saved], readers: frozenset[str], now: Microseconds
) -> BigtablePartitionSurvey:
    if (found := scan.topology) is None:
        return BigtablePartitionSurvey((), rows, readers, now)
    ranges = found.topology.stream_ranges
    return BigtablePartitionSurvey(ranges, rows, readers, now, found.paused_since, found.resync_request)


def saved(row: PartitionRow, *, free: bool) -> Saved:
    """Return what a partition's row says to everybody."""
    return Saved(
        owner="" if row.lease.state == "RELEASED" else row.content.owner,
        fence=row.lease.fence,
        state="CLOSING" if row.lease.state == "CLOSING" else "RUNNING",
        low_watermark=row.content.low_watermark,
        free=free,
        min_version=row.content.min_version,
        reserved_up_to=row.content.reserved_up_to,
        load=row.content.load,
    )


def _ending(leased: LeasedRow) -> Mapping[StreamRangeId, Ending]:
    return {} if leased.ending is None else {leased.name: leased.ending}


def _remember(memory: dict[T, None], what: T) -> None:
    memory[what] = None
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]


def _raise_first(answers: Sequence[object], *, transient: bool = True) -> None:
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, TransientError)):
        if transient or not isinstance(error, TransientError):
            raise error
