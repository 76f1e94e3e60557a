"""In-memory ports of Bigtable snapshots: what there is to read of one, and the model's rows in key order."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from services.bigtable_reader.core.changes.images import Row, TooLargeRow
from services.bigtable_reader.core.snapshot import snapshot as core
from services.bigtable_reader.core.snapshot.snapshot import PartProgress, Snapshot, SnapshotPart
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds
from services.bigtable_reader.ports import ReadRefusedError, Sample, ScannedPage
from tests.fakes.bigtable_table import Bigtable, loop_time
from tests.fakes.life import Way


@dataclass
class SnapshotTable:
    """What all owners read and write."""

    snapshot: Snapshot | None = None


async def _nothing() -> None:
    """Neither fail nor take time."""


class FakeSnapshotStore:
    """One owner's view. ``step`` is awaited before and after each effect."""

    def __init__(
        self,
        table: SnapshotTable,
        owner: str,
        lease: timedelta,
        monotonic: Callable[[], float] = loop_time,
        *,
        step: Callable[[], Awaitable[None]] = _nothing,
        watching: str = "",
    ) -> None:
        self.table = table
        self._watching = watching
        self._owner = owner
        self._lease = lease.total_seconds()
        self._monotonic = monotonic
        self._step = step
        self._since: dict[int, tuple[bytes, float]] = {}

    async def request(self, ranges: Sequence[KeyRange], now: Microseconds, *, again: bool, whole: bool) -> bool:
        """Ask for ranges to be read; return whether that was new."""
        return await self._change(
            lambda b: core.requested(b, ranges, now, again=again, whole=whole, watching=self._watching)
        )

    async def request_unless_after(self, ranges: Sequence[KeyRange], now: Microseconds, run: int) -> bool:
        """Ask for all rows again, unless that was done after one of the snapshots; return whether that was new."""
        return await self._change(lambda b: core.requested_unless_after(b, ranges, now, run, self._watching))

    async def take_over(self, ranges: Sequence[KeyRange], now: Microseconds) -> bool:
        """Ask anew for what was asked for by somebody who watched something else; return whether there was any."""
        return await self._change(lambda b: core.taken_over(b, ranges, now, self._watching))

    async def cancel(self) -> bool:
        """Give up what is left to read; return whether anything was."""
        return await self._change(core.cancelled)

    async def survey(self) -> Snapshot | None:
        """Return the latest snapshot; None where there never was one."""
        await self._step()
        found, at = self.table.snapshot, self._monotonic()
        parts = () if found is None else found.parts
        self._since = {
            part.number: seen
            if (seen := self._since.get(part.number)) is not None and seen[0] == part.lease
            else (part.lease, at)
            for part in parts
        }
        await self._step()
        return found

    async def claim(self, numbers: Sequence[int], most: int) -> tuple[int, Sequence[SnapshotPart]]:
        """Take the first few of these parts that are free and not done; return the run and them, with our fence."""
        await self._step()
        before = self.table.snapshot
        after = core.claimed(before, numbers, most, self._owner, self._is_free)
        if before is None or after is None:
            return 0, ()
        self.table.snapshot = after
        known = {part.number: part.fence for part in before.parts}
        await self._step()
        return after.run, [part for part in after.parts if part.fence > known[part.number]]

    async def cut(self, run: int, owned: SnapshotPart, parts: Sequence[tuple[KeyRange, int]]) -> SnapshotPart | None:
        """Cut a part into ranges, each to be above a number; return the first, which stays ours. None: not ours."""
        await self._change(lambda b: core.cut_into(b, run, owned, parts))
        return core.ours(self.table.snapshot, run, owned)

    async def save(self, progress: Sequence[PartProgress], *, release: bool = False) -> Collection[int]:
        """Save how far parts are and renew their leases, or give them back; return those that are not ours any more."""
        await self._step()
        before = self.table.snapshot
        self.table.snapshot = core.advanced(before, progress, release=release) or before
        await self._step()
        return frozenset(one.part.number for one in progress if core.ours(before, one.run, one.part) is None)

    async def remember_announced(self, run: int) -> None:
        """Remember that the end of a snapshot was published."""
        await self._change(
            lambda b: replace(b, announced=True) if b is not None and b.run == run and not b.announced else None
        )

    async def _change(self, decide: Callable[[Snapshot | None], Snapshot | None]) -> bool:
        await self._step()
        after = decide(self.table.snapshot)
        if after is not None:
            self.table.snapshot = after
        await self._step()
        return after is not None

    def _is_free(self, part: SnapshotPart) -> bool:
        if not part.owner:
            return True
        seen = self._since.get(part.number)
        return seen is not None and seen[0] == part.lease and self._monotonic() - seen[1] >= self._lease


class FakeScan:
    """The rows of the model's table in key order, each as it is at some moment after the call."""

    def __init__(self, table: Bigtable, way: Way | None = None, *, cuts: Sequence[bytes] = ()) -> None:
        self.table = table
        self.way = way or Way()
        self.cuts = cuts
        self.unreadable: set[bytes] = set()
        """Rows that the service refuses to read."""
        self.too_large: set[bytes] = set()
        """Rows that no message can hold: a page ends with one."""
        self.read_from: list[bytes] = []
        self.asked: list[int] = []

    async def page(self, keys: KeyRange, most: int) -> ScannedPage:
        """Return the first rows of a range that exist, so many at most, and now and then fewer."""
        self.read_from.append(keys.start)
        self.asked.append(most)
        await self.way.step()
        rows: list[tuple[bytes, Row]] = []
        most = self.way.chance.randint(1, most)
        for row_key in self._keys(keys):
            if row_key in self.unreadable:
                if not rows:
                    raise ReadRefusedError("made-up", "FAILED_PRECONDITION: larger than 256 MiB")
                return ScannedPage(rows, rows[-1][0])
            if self.way.slowest:
                await asyncio.sleep(self.way.chance.random() * self.way.slowest)
            if (cells := self.table.row(row_key)) is not None:
                if row_key in self.too_large:
                    return ScannedPage([*rows, (row_key, TooLargeRow(9_000_001))], row_key)
                rows.append((row_key, cells))
            if len(rows) == most:
                break
        await self.way.step()
        return ScannedPage(rows, rows[-1][0] if len(rows) == most else None)

    async def first_key(self, keys: KeyRange) -> bytes | None:
        """Return the key of the first row of a range, however large it is; None where there is none."""
        await self.way.step()
        return next((key for key in self._keys(keys) if self.table.row(key) is not None), None)

    async def samples(self) -> Sequence[Sample]:
        """Return keys that cut the table into parts."""
        await self.way.step()
        return [Sample(cut, 100_000_000 * number) for number, cut in enumerate([*self.cuts, b""], 1)]

    def _keys(self, keys: KeyRange) -> Sequence[bytes]:
        return sorted(key for key in self.table.row_keys if key in keys)
