"""The PartitionStore port of the Bigtable reader in memory: one table, and any number of owners' views of it."""

import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from msgspec.structs import replace

from services.bigtable_reader.core.schema import resync as core
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, Resync
from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.stream.partitions import (
    BigtablePartition,
    BigtablePartitionSurvey,
    BigtableProgress,
    Saved,
    StreamRange,
    StreamRangeId,
)
from services.bigtable_reader.core.stream.records import Child, KeyRange, Microseconds, Position
from services.bigtable_reader.core.stream.topology import (
    Ending,
    KeyRangeTopology,
    MergeTimeouts,
    Reshaped,
    Successor,
    begin,
    reconcile,
    restart,
    settle,
    successors,
    waiting,
)
from services.bigtable_reader.ports import PositionLostError, Tended
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.fakes.bigtable_table import VirtualClock, loop_time


@dataclass
class Row:
    """What is saved of a partition that somebody took."""

    owner: str
    fence: int
    claim: int
    position: Position
    low_watermark: Microseconds
    reserved_up_to: int
    min_version: int
    renewals: int = 0
    load: int = 0
    state: Literal["RUNNING", "RELEASED", "CLOSING"] = "RUNNING"
    ending: Ending | None = None


@dataclass
class PartitionTable:
    """The world: what all owners read and write. ``now``: Bigtable's clock."""

    now: Callable[[], Microseconds] = field(default_factory=lambda: VirtualClock().now)
    topology: KeyRangeTopology | None = None
    source: str = ""
    born: dict[StreamRangeId, Microseconds] = field(default_factory=dict)
    rows: dict[StreamRangeId, Row] = field(default_factory=dict)
    seen: InspectedTable | None = None
    paused_since: Microseconds | None = None
    resync: Resync | None = None
    notes: set[str] = field(default_factory=set)
    """Kinds of what was found and could not be kept as a finding."""
    unconditional: bool = False
    """Whether the app profile allows no conditional write."""
    elsewhere: bool = False
    """Whether the source table was read under another name."""
    readers: dict[str, int] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def require_conditions(self) -> None:
        """Raise MisconfiguredError where the app profile allows no conditional write."""
        if self.unconditional:
            raise MisconfiguredError(
                "made-up", "FAILED_PRECONDITION Single-row transactions are not allowed by this app profile"
            )

    def become(self, topology: KeyRangeTopology) -> None:
        """Take other key ranges."""
        self.topology = topology
        self.born = {name: self.born.get(name, self.now()) for name in topology.names}


async def _nothing() -> None:
    """Neither fail nor take time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedStream:
    """The change stream whose partitions are kept: its table, how long it keeps records, how long merges may take."""

    source: str = "projects/p/instances/i/tables/t"
    retention: timedelta = timedelta(days=7)
    merge: MergeTimeouts = field(default_factory=MergeTimeouts)


class FakePartitionStore:
    """One owner's view. ``monotonic``: its machine's clock, in seconds. ``step``: awaited before and after each effect.

    What ``step`` raises after an effect is a reply that was lost; raised for good, the owner is dead.
    """

    def __init__(
        self,
        table: PartitionTable,
        owner: str,
        lease: timedelta,
        monotonic: Callable[[], float] = loop_time,
        *,
        stream: PartitionedStream | None = None,
        step: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.table = table
        self._owner = owner
        self._lease = lease.total_seconds()
        self._monotonic = monotonic
        stream = stream or PartitionedStream()
        self._source = stream.source
        self._retention = stream.retention // timedelta(microseconds=1)
        self._timeouts = stream.merge
        self._step = step
        self._claims: set[int] = set()
        self._seen: dict[StreamRangeId, tuple[object, float]] = {}
        self._present: dict[str, tuple[int, float]] = {}
        self._closed: set[tuple[StreamRangeId, int]] = set()
        self._done = Tended()

    async def begin(self, ranges: Sequence[KeyRange], start: Microseconds, *, mirrored: bool = True) -> bool:
        """Remember the first key ranges, unless any are known; return whether none were."""
        await self._step()
        if self.table.topology is not None:
            self._check()
            return False
        limits = [row.reserved_up_to for row in self.table.rows.values()]
        min_version = max(self.table.now(), max(limits, default=0) + 1)
        try:
            first = begin(ranges, life=f"{next(self.table.numbers)}", start=start, min_version=min_version)
        except ValueError as error:
            raise TransientError(str(error)) from error
        self.table.source = self._source
        self.table.become(first)
        if self.table.elsewhere and mirrored:
            self.table.resync = core.with_finding(None, BigtableResyncKind.ANOTHER_NAME, self.table.now(), 0)
        return True

    async def survey(self) -> BigtablePartitionSurvey:
        """Return all key ranges, and what their readers have saved; this owner is counted among the readers."""
        await self._step()
        self._check()
        self.table.readers[self._owner] = next(self.table.numbers)
        at = self._monotonic()
        rows = self.table.rows.items()
        self._seen = {
            name: seen if (seen := self._seen.get(name)) is not None and seen[0] == _lease(row) else (_lease(row), at)
            for name, row in rows
        }
        self._present = {
            owner: seen if (seen := self._present.get(owner)) is not None and seen[0] == nonce else (nonce, at)
            for owner, nonce in self.table.readers.items()
        }
        survey = BigtablePartitionSurvey(
            () if self.table.topology is None else self.table.topology.stream_ranges,
            {name: self._saved(name, row) for name, row in rows},
            frozenset(owner for owner, (_nonce, since) in self._present.items() if at - since < self._lease),
            self.table.now(),
            self.table.paused_since,
            core.resync_request_of(self.table.source, self.table.resync),
        )
        await self._step()
        return survey

    async def claim(self, stream_ranges: Collection[StreamRange]) -> Sequence[BigtablePartition]:
        """Take those that are still free; return them with our fence, their position and their minimum version."""
        await self._step()
        self.table.require_conditions()
        claimed = []
        for stream_range in stream_ranges:
            row = self.table.rows.get(stream_range.id)
            there = self.table.topology is not None and stream_range.id in self.table.topology.names
            if not there or stream_range.position is None or not stream_range.is_readable:
                continue
            if row is not None and not self._is_free(stream_range.id, row):
                continue
            claim = next(self.table.numbers)
            self._claims.add(claim)
            reserved_up_to = max(stream_range.min_version, 0 if row is None else row.reserved_up_to)
            taken = self.table.rows[stream_range.id] = Row(
                owner=self._owner,
                fence=1 if row is None else row.fence + 1,
                claim=claim,
                position=stream_range.position if row is None else row.position,
                low_watermark=stream_range.low_watermark if row is None else row.low_watermark,
                reserved_up_to=reserved_up_to,
                min_version=reserved_up_to,
                load=0 if row is None else row.load,
            )
            claimed.append(
                BigtablePartition(
                    stream_range=stream_range,
                    position=taken.position,
                    low_watermark=taken.low_watermark,
                    min_version=taken.reserved_up_to,
                    reserved_up_to=taken.reserved_up_to,
                    fence=taken.fence,
                    owner=self._owner,
                    load=taken.load,
                )
            )
        await self._step()
        return claimed

    async def advance(
        self, progress: Sequence[BigtableProgress], *, release: bool = False
    ) -> Collection[StreamRangeId]:
        """Save how far partitions are confirmed, their reserved upper limits, and renew (or release) their leases."""
        await self._step()
        self.table.require_conditions()
        lost = set()
        for one in progress:
            row = self._ours(one.partition)
            if row is not None and row.state != "CLOSING":
                row.position = one.position
                row.low_watermark = max(row.low_watermark, one.low_watermark)
                row.min_version = max(row.min_version, one.min_version)
                row.reserved_up_to = max(row.min_version if release else row.reserved_up_to, one.reserved_up_to)
                row.min_version = row.reserved_up_to if release else row.min_version
                row.renewals += 1
                row.load = one.load
                row.state = "RELEASED" if release else "RUNNING"
            elif row is None and not self._has_closed(one.partition):
                lost.add(one.partition.stream_range.id)
        await self._step()
        return frozenset(lost)

    async def close(self, progress: BigtableProgress, children: Sequence[Child]) -> bool:
        """End a partition: children carry on above the reserved upper limit; False, and no change, if not ours."""
        if not children:
            raise ValueError("a partition ends with children; without them its position is kept")
        return await self._end(progress, successors(progress.partition.stream_range.range, children))

    async def wait_for(self, progress: BigtableProgress, target: KeyRange) -> bool:
        """Let a partition, with its tokens, wait for the rest of what it is only a part of; False if not ours."""
        return await self._end(progress, (waiting(progress, target),))

    async def _end(self, progress: BigtableProgress, parts: tuple[Successor, ...]) -> bool:
        await self._step()
        partition = progress.partition
        row = self._ours(partition)
        if row is None:
            return self._has_closed(partition)
        if row.state != "CLOSING":
            row.reserved_up_to = row.min_version = max(row.min_version, progress.min_version, progress.reserved_up_to)
            row.low_watermark = max(row.low_watermark, progress.low_watermark)
            row.position = progress.position
            row.state, row.renewals = "CLOSING", row.renewals + 1
            row.ending = Ending(parts, row.reserved_up_to, row.low_watermark)
            self._closed.add((partition.stream_range.id, partition.fence))
            await self._step()
        self._settle()
        await self._step()
        self._forget()
        await self._step()
        return True

    async def tend(self) -> Tended:
        """Finish what others left behind: roll closed partitions forward, put merged ones together, and reconcile."""
        await self._step()
        if self.table.topology is not None:
            self._settle()
            await self._step()
            self._reconcile(self.table.topology)
            self._forget()
        done, self._done = self._done, Tended()
        return done

    async def restart_from_time(self, partition: BigtablePartition) -> BigtablePartition | None:
        """Give up a partition's tokens for the time of its low watermark less an allowance, within the retention."""
        if not partition.stream_range.reconciled:
            raise ValueError(f"key range {partition.stream_range.id} was not reconciled")
        if partition.position.start is not None:
            raise PositionLostError("made-up", "restarted already")
        await self._step()
        assert self.table.topology is not None
        try:
            start = restart(self.table.topology, partition.low_watermark, self._timeouts, self._kept_since)
        except ValueError as error:
            raise PositionLostError("made-up", str(error)) from error
        restarted = replace(partition, position=Position(start=start))
        lost = await self.advance(
            [BigtableProgress(partition, restarted.position, partition.low_watermark, partition.reserved_up_to)]
        )
        return None if lost else restarted

    async def seen(self) -> InspectedTable | None:
        """Return what was last seen of the source table; None where nothing was."""
        await self._step()
        return self.table.seen

    async def remember(self, seen: InspectedTable) -> None:
        """Keep it for the next reader."""
        if seen.retention is not None:
            self._retention = int(seen.retention * 1_000_000)
        await self._step()
        if self.table.topology is not None:
            self.table.seen = seen

    async def pause(self) -> bool:
        """Let nobody read the stream until it is resumed; return whether it was not paused."""
        return await self._set_paused(paused=True)

    async def resume(self) -> bool:
        """Let the stream go on where it was; return whether it was paused."""
        return await self._set_paused(paused=False)

    async def _set_paused(self, *, paused: bool) -> bool:
        await self._step()
        if self.table.topology is None:
            raise MisconfiguredError("made-up", "the stream is not known")
        if (self.table.paused_since is not None) is paused:
            return False
        self.table.paused_since = self.table.now() if paused else None
        if not paused:
            waiting = [
                stream_range.id for stream_range in self.table.topology.stream_ranges if not stream_range.is_readable
            ]
            self.table.born |= dict.fromkeys(waiting, self.table.now())
        await self._step()
        return True

    async def leave(self) -> None:
        """Be counted among the readers no more."""
        await self._step()
        self.table.readers.pop(self._owner, None)

    def _check(self) -> None:
        if self.table.topology is not None and self.table.source != self._source:
            raise MisconfiguredError("made-up", f"the stream is of {self.table.source}: another CHANGE_STREAM_NAME")

    def _saved(self, name: StreamRangeId, row: Row) -> Saved:
        return Saved(
            owner="" if row.state == "RELEASED" else row.owner,
            fence=row.fence,
            state="CLOSING" if row.state == "CLOSING" else "RUNNING",
            low_watermark=row.low_watermark,
            free=self._is_free(name, row),
            min_version=row.min_version,
            reserved_up_to=row.reserved_up_to,
            load=row.load,
        )

    def _is_free(self, name: StreamRangeId, row: Row) -> bool:
        if row.state != "RUNNING":
            return row.state == "RELEASED"
        if row.claim in self._claims:
            return True
        seen = self._seen.get(name)
        return seen is not None and seen[0] == _lease(row) and self._monotonic() - seen[1] >= self._lease

    def _ours(self, partition: BigtablePartition) -> Row | None:
        row = self.table.rows.get(partition.stream_range.id)
        return row if row is not None and row.claim in self._claims and row.fence == partition.fence else None

    def _has_closed(self, partition: BigtablePartition) -> bool:
        return (partition.stream_range.id, partition.fence) in self._closed

    def _settle(self) -> None:
        endings = {name: row.ending for name, row in self.table.rows.items() if row.ending is not None}
        if self.table.topology is not None:
            self._reshape(settle(self.table.topology, endings))

    def _reconcile(self, topology: KeyRangeTopology) -> None:
        now = self.table.now()
        waited = {name: timedelta(microseconds=now - born) for name, born in self.table.born.items()}
        try:
            self._reshape(reconcile(topology, waited, self._timeouts, self._kept_since))
        except ValueError as error:
            raise PositionLostError("made-up", str(error)) from error

    def _reshape(self, reshaped: Reshaped | None) -> None:
        if reshaped is not None:
            self.table.become(reshaped.topology)
            done = self._done
            self._done = Tended(
                done.split + reshaped.split, done.merged + reshaped.merged, done.reconciled + reshaped.reconciled
            )

    def _forget(self) -> None:
        assert self.table.topology is not None
        gone = self.table.rows.keys() - self.table.topology.names
        for name in gone:
            del self.table.rows[name]

    @property
    def _kept_since(self) -> Microseconds:
        return Microseconds(self.table.now() - self._retention)


def _lease(row: Row) -> tuple[int, int, str]:
    return row.claim, row.renewals, row.state
