"""One partition's row as its lease owner writes it: the owner knows what is in it, or reads it again."""

import asyncio
from typing import Final

from services.bigtable_reader.adapters.stream.partition_cells import Lease, LeaseState, PartitionContent, PartitionRow
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.core.stream.partitions import BigtableProgress, StreamRangeId
from services.bigtable_reader.core.stream.topology import Ending, Successor
from shared.contracts.errors import TransientError

_ATTEMPTS: Final = 5
"""How often a write is repeated because a late request of our own came first."""


class LeasedRow:
    """A row that we have claimed. Every write says what it replaces, and makes a lease that was never there before.

    So a request that comes late, when its sender had given it up and sent another, changes nothing.
    """

    def __init__(self, rows: PartitionRows, name: StreamRangeId, row: PartitionRow) -> None:
        self.name = name
        self._rows = rows
        self._row = row
        self._certain = True
        """No write is under way whose outcome is not known."""
        self._ending = False
        """An end has been asked for."""
        self.ended = False
        self._writing = asyncio.Lock()

    @property
    def lease(self) -> Lease:
        """Return the lease as we know it."""
        return self._row.lease

    @property
    def ending(self) -> Ending | None:
        """Return how it ended."""
        return self._row.content.ending

    async def save(
        self, progress: BigtableProgress, state: LeaseState, successors: tuple[Successor, ...] | None = None
    ) -> bool:
        """Write how far it has been read, or that it has ended; return whether it is ours (or was, when it ended).

        Of a row that has ended nothing is written. Minimum version and low watermark never fall, nor does the reserved
        upper limit while the lease is ours. Once it is released, or the partition has ended, that limit is our last
        version, and what was reserved above it is free. The next owner makes versions above the reserved upper limit,
        which is the minimum version from then on.
        """
        async with self._writing:
            for _attempt in range(_ATTEMPTS):
                if not self._certain and not await self._find_out():
                    return False
                if self.ended or await self._write(progress, state, successors):
                    return True
        raise TransientError(f"partition {self.name} was written by late requests, again and again")

    async def _write(
        self, progress: BigtableProgress, state: LeaseState, successors: tuple[Successor, ...] | None
    ) -> bool:
        before = self._row
        low_watermark = max(before.content.low_watermark, progress.low_watermark)
        min_version = max(before.content.min_version, progress.min_version)
        reserved_up_to = max(
            before.content.reserved_up_to if state == "RUNNING" else min_version, progress.reserved_up_to
        )
        content = PartitionContent(
            owner=before.content.owner,
            position=progress.position,
            low_watermark=low_watermark,
            reserved_up_to=reserved_up_to,
            ending=None if successors is None else Ending(successors, reserved_up_to, low_watermark),
            min_version=min_version if state == "RUNNING" else reserved_up_to,
            load=progress.load,
        )
        row = PartitionRow(before.lease.renewed(state), content)
        self._certain = False  # until the answer is here, which it may never be
        self._ending |= state == "CLOSING"
        if not await self._rows.write_partition(self.name, before.lease, row):
            return False
        self._row, self._certain, self.ended = row, True, state == "CLOSING"
        return True

    async def _find_out(self) -> bool:
        found = await self._rows.partition(self.name)
        if found is None and self._ending:
            self.ended = True  # and another has rolled it forward already
        elif found is None or found.lease.claim != self._row.lease.claim:
            return False
        else:
            self._row, self.ended = found, found.lease.state == "CLOSING"
        self._certain = True
        return True
