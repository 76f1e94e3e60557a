"""What was found that no record tells, in memory, beside the key ranges."""

from collections.abc import Awaitable, Callable, Collection

from services.bigtable_reader.core.schema import resync as core
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, BigtableResyncRequest, Resync
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.stream.records import Microseconds
from tests.fakes.bigtable_partitions import PartitionTable


async def _nothing() -> None:
    """Neither fail nor take time."""


class FakeResyncStore:
    """One reader's way to it. ``step`` is awaited before and after each effect."""

    def __init__(self, table: PartitionTable, *, step: Callable[[], Awaitable[None]] = _nothing) -> None:
        self.table = table
        self._step = step

    async def read(self) -> BigtableResyncRequest | None:
        """Return what was found; None where nothing is to be mended."""
        await self._step()
        return core.resync_request_of(self.table.source, self.table.resync)

    async def compare(
        self,
        known: Collection[str] | None,
        found: Collection[str],
        is_watched: Callable[[str], bool],
        now: Microseconds,
        run: int,
        watching: Watching,
    ) -> None:
        """Mark the table where watched families are not there any more, and remember those that are."""
        notes = sorted(self.table.notes)
        await self._change(lambda before: core.compared(before, known, found, is_watched, now, run, watching, notes))
        self.table.notes -= set(notes)

    async def request(self, kind: BigtableResyncKind, now: Microseconds, run: int) -> None:
        """Request a resync of the table, or note that it is to be requested."""
        if self.table.unconditional and self.table.topology is not None:
            await self._step()
            self.table.notes.add(kind)
            return
        await self._change(lambda before: core.with_finding(before, kind, now, run))

    async def watching(self) -> Watching | None:
        """Return what is watched by whoever compared last; None where nobody has."""
        await self._step()
        return None if self.table.resync is None else self.table.resync.watching

    async def heal(self, run: int, watching: str) -> bool:
        """Take away what was found before a snapshot was asked for that is complete; return whether anything was."""
        return await self._change(lambda before: core.healed(before, run, watching))

    async def synced(self, request: BigtableResyncRequest) -> bool:
        """Remove what a resync request has shown; return whether anything of it was left."""
        return await self._change(lambda before: core.synced(before, request))

    async def _change(self, decide: Callable[[Resync | None], Resync | None]) -> bool:
        await self._step()
        if self.table.topology is not None:
            self.table.require_conditions()
        after = None if self.table.topology is None else decide(self.table.resync)
        if after is not None:
            self.table.resync = after
        await self._step()
        return after is not None
