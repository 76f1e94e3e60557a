"""The cell of the partition table whether all rows are to be read again: `shape:resync` beside the key ranges.

It is not there before the first comparison. Each change is conditional on the write that was read. Where the app
profile allows no condition (it routes to any cluster now, say), what was found is noted in a cell of its own, which the
next comparison makes a finding of: with the latest snapshot that was asked for by then, which is no earlier one.
"""

import uuid
from collections.abc import Callable, Collection
from typing import Final

import grpc
import structlog
from msgspec.structs import replace

from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.core.schema import resync as core
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, BigtableResyncRequest, Resync
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.stream.records import Microseconds
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import status_of

_ATTEMPTS: Final = 20
"""How often a change is made again because another's came first."""


class BigtableResyncStore:
    """What is kept of one stream."""

    def __init__(self, rows: PartitionRows) -> None:
        self._rows = rows

    async def read(self) -> BigtableResyncRequest | None:
        """Return what was found; None where nothing is to be fixed."""
        found = await self._rows.topology()
        return None if found is None else found.resync_request

    async def compare(
        self,
        known: Collection[str] | None,
        found: Collection[str],
        is_watched: Callable[[str], bool],
        now: Microseconds,
        run: int,
        watching: Watching,
    ) -> None:
        """Request a resync where families were dropped since they were compared, or more is watched than was."""
        await self._change(
            lambda before, notes: core.compared(before, known, found, is_watched, now, run, watching, notes),
            with_notes=True,
        )

    async def request(self, kind: BigtableResyncKind, now: Microseconds, run: int) -> None:
        """Request a resync of the table, or note that it is to be requested."""
        try:
            await self._change(lambda before, _notes: core.with_finding(before, kind, now, run))
        except MisconfiguredError as error:
            if status_of(error.__cause__)[0] is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            await self._rows.leave_note(kind)
            structlog.get_logger().warning("resync_request_noted", kind=kind, why=str(error))

    async def watching(self) -> Watching | None:
        """Return what the reader watched that compared last; None where none has."""
        found = await self._rows.topology()
        return None if found is None or found.resync is None else found.resync[1].watching

    async def heal(self, run: int, watching: str) -> bool:
        """Delete the request that a snapshot has answered; return whether anything was."""
        return await self._change(lambda before, _notes: core.healed(before, run, watching))

    async def synced(self, request: BigtableResyncRequest) -> bool:
        """Remove what a resync request has shown; return whether anything of it was left."""
        return await self._change(lambda before, _notes: core.synced(before, request))

    async def _change(
        self, decide: Callable[[Resync | None, Collection[str]], Resync | None], *, with_notes: bool = False
    ) -> bool:
        for _attempt in range(_ATTEMPTS):
            found = await self._rows.topology()
            if found is None:
                return False
            decided = decide(None if found.resync is None else found.resync[1], found.notes)
            if decided is None:
                return False
            after = replace(decided, writer=uuid.uuid4().hex)
            try:
                written = await self._rows.write_resync(found.resync, after, found.notes if with_notes else None)
            except TransientError:
                there = await self._rows.topology()
                if there is None or there.resync is None or there.resync[1].writer != after.writer:
                    raise
                written = True
            if written:
                return True
        raise TransientError(f"the resync request of {self._rows.stream} was changed by others, again and again")
