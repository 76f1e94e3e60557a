"""A range of a snapshot that this reader has the lease of, and how far its reading is."""

import asyncio

from services.spanner_reader.core.snapshot.snapshot import ConfirmedKeys, SnapshotRange
from services.spanner_reader.ports import RangeProgress


class HeldRange:
    """A range that this reader has the lease of."""

    def __init__(self, claimed: SnapshotRange, *, in_key_order: bool) -> None:
        """Take a range, and whether its rows come in key order; they do where somebody has saved a key of it."""
        self.range = claimed
        self.read_at = claimed.read_at
        self.in_key_order = in_key_order or claimed.last is not None
        """Whether it is read in key order, so that it goes on behind the key of any row that is confirmed."""
        self.read_to = claimed.last
        """The key of the last row that was taken, confirmed or not: a reading goes on behind it."""
        self.keys = ConfirmedKeys(claimed.last, claimed.rows)
        self.taken = 0
        """How many rows were taken in all, repeated ones too."""
        self.task: asyncio.Task[None] | None = None
        self.complete = False
        self.over = False

    def begin_anew(self) -> None:
        """Read from the beginning next, for what came in no order says nothing of what is left."""
        self.read_to, self.keys = None, ConfirmedKeys(None)

    @property
    def progress(self) -> RangeProgress:
        """Return how far it has been read and confirmed."""
        last = self.keys.last if self.in_key_order else None
        return RangeProgress(self.range, last, self.keys.rows, self.read_at, done=self.complete)
