"""The row of the partition table that says what a snapshot has left to read, changed as a whole.

    <stream>#snapshot   shape:version        number and writer of the last change: what every change is conditional on
                        shape:snapshot       JSON: run, when and how it was requested, whether its end was announced
                        partition:<number>   JSON: a part: its keys, how far it is, who reads it

The families are those of the other rows, so that no table that was made before has to be changed. That a lease is over
is seen by its part staying as it is, on this machine's own clock.
"""

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from services.bigtable_reader.adapters.bigtable.row_chunks import Cell
from services.bigtable_reader.adapters.stream.partition_cells import VERSION, Column
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.unchanged import Unchanged
from services.bigtable_reader.core.snapshot import snapshot as core
from services.bigtable_reader.core.snapshot.snapshot import PartProgress, Snapshot, SnapshotPart
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds
from shared.contracts.errors import MisconfiguredError, TransientError

_SNAPSHOT: Final[Column] = ("shape", b"snapshot")
_PART: Final = "partition"
_ATTEMPTS: Final = 20
"""How often a change is made again because another's came first."""


class BigtableSnapshotStore:
    """The snapshot of one stream as one owner sees it."""

    def __init__(
        self,
        rows: PartitionRows,
        *,
        owner: str,
        lease: timedelta,
        watching: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``watching``: the digest of what its owner watches."""
        self._rows = rows
        self._watching = watching
        self._owner = owner
        self._lease = lease.total_seconds()
        self._leases = Unchanged(monotonic)

    async def request(self, ranges: Sequence[KeyRange], now: Microseconds, *, again: bool, whole: bool) -> bool:
        """Ask for ranges to be read; return whether that was new."""
        _before, after = await self._change(
            lambda b: core.requested(b, ranges, now, again=again, whole=whole, watching=self._watching)
        )
        return after is not None

    async def request_unless_after(self, ranges: Sequence[KeyRange], now: Microseconds, run: int) -> bool:
        """Ask for all rows again, unless that was done after one of the snapshots; return whether that was new."""
        _before, after = await self._change(lambda b: core.requested_unless_after(b, ranges, now, run, self._watching))
        return after is not None

    async def take_over(self, ranges: Sequence[KeyRange], now: Microseconds) -> bool:
        """Request again what a reader requested that watched something else; return whether there was any."""
        _before, after = await self._change(lambda b: core.taken_over(b, ranges, now, self._watching))
        return after is not None

    async def cancel(self) -> bool:
        """Give up what is left to read; return whether anything was."""
        _before, after = await self._change(core.cancelled)
        return after is not None

    async def survey(self) -> Snapshot | None:
        """Return the latest snapshot; None where there never was one."""
        return (await self._read())[1]

    async def claim(self, numbers: Sequence[int], most: int) -> tuple[int, Sequence[SnapshotPart]]:
        """Take the first few of these parts that are free and not done; return the run and them, with our fence."""
        before, after = await self._change(lambda b: core.claimed(b, numbers, most, self._owner, self._is_free))
        if before is None or after is None:
            return 0, ()
        known = {part.number: part.fence for part in before.parts}
        return after.run, [part for part in after.parts if part.fence > known[part.number]]

    async def cut(self, run: int, owned: SnapshotPart, parts: Sequence[tuple[KeyRange, int]]) -> SnapshotPart | None:
        """Cut a part into ranges, each to be above a number; return the first, which stays ours. None: not ours."""
        before, after = await self._change(lambda b: core.cut_into(b, run, owned, parts))
        return core.ours(after or before, run, owned)

    async def save(self, progress: Sequence[PartProgress], *, release: bool = False) -> Collection[int]:
        """Save how far parts are and renew their leases, or release them; return those that are no longer ours."""
        if not progress:
            return frozenset()
        before, _after = await self._change(lambda b: core.advanced(b, progress, release=release))
        return frozenset(one.part.number for one in progress if core.ours(before, one.run, one.part) is None)

    async def remember_announced(self, run: int) -> None:
        """Remember that the end of a snapshot was published."""
        await self._change(
            lambda b: replace(b, announced=True) if b is not None and b.run == run and not b.announced else None
        )

    def _is_free(self, part: SnapshotPart) -> bool:
        return not part.owner or self._leases.stood(str(part.number), part.lease) >= self._lease

    async def _change(
        self, decide: Callable[[Snapshot | None], Snapshot | None]
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Change the snapshot; return it as it was, and as it is then (None: nothing was to change)."""
        for _attempt in range(_ATTEMPTS):
            version, before = await self._read()
            after = decide(before)
            if after is None:
                return before, None
            nonce = uuid.uuid4().hex
            number = 0 if version is None else int(version.split()[0])
            try:
                written = await self._rows.write_snapshot(
                    version, f"{number + 1:08d} {nonce}".encode(), _changes(before, after)
                )
            except TransientError:
                found, _snapshot = await self._read()
                if found is None or not found.endswith(nonce.encode()):
                    raise
                written = True
            if written:
                return before, after
        raise TransientError(f"the snapshot of {self._rows.stream} was changed by others, again and again")

    async def _read(self) -> tuple[bytes | None, Snapshot | None]:
        cells = await self._rows.snapshot()
        if not cells:
            return None, None
        version, snapshot = _snapshot_of(cells)
        self._leases.observe({str(part.number): part.lease for part in snapshot.parts})
        return version, snapshot


def _changes(before: Snapshot | None, after: Snapshot) -> Mapping[Column, bytes | None]:
    """Return the cells that differ."""
    old = {} if before is None else {part.number: part for part in before.parts}
    new = {part.number: part for part in after.parts}
    cells: dict[Column, bytes | None] = {_SNAPSHOT: msgspec.json.encode(replace(after, parts=()))}
    cells |= {_column(number): None for number in old.keys() - new.keys()}
    cells |= {_column(number): msgspec.json.encode(part) for number, part in new.items() if old.get(number) != part}
    return cells


def _column(number: int) -> Column:
    return _PART, b"%06d" % number


def _snapshot_of(cells: Sequence[Cell]) -> tuple[bytes, Snapshot]:
    found = {(cell.family, cell.qualifier): cell.value for cell in cells}
    try:
        version = found[VERSION]
        snapshot = msgspec.json.decode(found[_SNAPSHOT], type=Snapshot)
        parts = [
            msgspec.json.decode(value, type=SnapshotPart)
            for (family, _qualifier), value in found.items()
            if family == _PART
        ]
        int(version.split()[0])
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise MisconfiguredError(
            "snapshot-row-damaged",
            f"the row of the partition table that ends in #snapshot is not what a reader wrote ({error}): delete it, "
            "and ask for a snapshot again",
        ) from error
    return version, replace(snapshot, parts=tuple(sorted(parts, key=lambda part: part.number)))
