"""A part of a snapshot that this reader has the lease of, and how snapshots are read."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.bigtable_reader.core.snapshot.confirmed_keys import ConfirmedKeys
from services.bigtable_reader.core.snapshot.snapshot import PartProgress, SnapshotPart
from services.bigtable_reader.core.times import Microseconds

_ROWS_AT_ONCE: Final = 2_000
"""Of fewer the calls cost more than the rows; many more would keep the records of the stream waiting,
for what is read is made into images in one go. Bytes are limited by whoever reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """How snapshots are read."""

    at_once: int = 2
    """Parts."""
    rows_at_once: int = _ROWS_AT_ONCE
    rows_per_second: int | None = None
    unconfirmed_bytes: int = 16 << 20
    """What all of it together may let wait for Pub/Sub."""
    save: timedelta = timedelta(seconds=2)

    @property
    def page_rows(self) -> int:
        """Return how many rows are asked for at once: where they are limited, no more than may pass in a second."""
        return min(self.rows_at_once, self.rows_per_second or self.rows_at_once)


class HeldPart:
    """A part that this reader has the lease of."""

    def __init__(self, run: int, claimed: SnapshotPart) -> None:
        self.run = run
        self.part = claimed
        self.claimed_at = asyncio.get_running_loop().time()
        self.read_to = claimed.last
        """The last key that was read, confirmed or not: a reading goes on behind it."""
        self.floor = claimed.floor
        self.read_since = claimed.read_since
        self.keys = ConfirmedKeys(claimed.last, claimed.rows)
        self.task: asyncio.Task[None] | None = None
        self.complete = False
        self.over = False

    def reads_under(self, floor: int, now: Microseconds) -> None:
        """Take note that rows are read from a time on, by Bigtable's clock, to be published under a number."""
        if self.floor is None:
            self.floor, self.read_since = floor, now
            return
        self.floor = min(self.floor, floor)
        if self.read_since is not None:  # or it was read by one that keeps no times
            self.read_since = min(self.read_since, now)

    def progress(self) -> PartProgress:
        """Return how far it is."""
        rows, done, since = self.keys.rows, self.complete, self.read_since
        return PartProgress(self.part, self.run, self.keys.last, self.floor, rows, done, since)
