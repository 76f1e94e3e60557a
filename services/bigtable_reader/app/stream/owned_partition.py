"""A partition that this reader owns, and how a reader reads."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.bigtable_reader.core.stream.partitions import BigtablePartition, BigtableProgress
from services.bigtable_reader.core.stream.records import Microseconds, Position, RangeToken
from services.bigtable_reader.core.stream.versions import VersionAllocator
from shared.reading.leases import ReaderOptions
from shared.reading.owned_partition import OwnedPartition

_LEAST_RESERVE: Final = timedelta(seconds=20)
_MARGIN: Final = 5
"""The part of a lease after which, if it was not renewed, its owner stops: others may take it only at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BigtableReaderOptions(ReaderOptions):
    """How a reader reads."""

    end: Microseconds | None = None
    stalls: timedelta = timedelta(minutes=5)
    """How long the low watermark stands still before that is said."""

    @property
    def reserve(self) -> timedelta:
        """Return how far ahead of the clock versions are reserved: further than a renewal may be late."""
        return max(self.lease, _LEAST_RESERVE)

    @property
    def trust(self) -> timedelta:
        """Return how long an owner goes on after it has asked for the last renewal that was granted."""
        return self.lease - self.lease / _MARGIN


class BigtableOwnedPartition(OwnedPartition[Microseconds]):
    """A partition that this reader has the lease of."""

    def __init__(self, partition: BigtablePartition, end: Microseconds | None = None) -> None:
        """``end``: up to where it is read."""
        super().__init__(partition.low_watermark, partition.load)
        self.partition = partition
        self._end = end
        self.at_end = False
        """Whether the stream has said so. A watermark is an estimate: what is older may still come."""
        self.versions = VersionAllocator(partition.min_version, partition.reserved_up_to)
        self.raised_min_version = 0
        """No further version up to it is to be made, as soon as the reserved upper limit is above it."""
        self.raised = asyncio.Event()
        self._expired = False

    @property
    def key(self) -> str:
        """Return its key range's id."""
        return self.partition.stream_range.id

    @property
    def position(self) -> Position:
        """Return behind which record it is read on."""
        return self._behind(self.prefix.read_token)

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Return what names it in the log."""
        return {"stream_range": self.partition.stream_range.id, "range": str(self.partition.stream_range.range)}

    @property
    def ours(self) -> bool:
        """Return whether something may still be published for it.

        The clock is asked, for after a pause of the whole process what has arrived is handled before any timer. Once
        no is no for ever: what was dropped for it is never confirmed, so a renewal that comes late must not revive it.
        """
        self._expired = self._expired or asyncio.get_running_loop().time() >= self.trusted_until
        return not self.over and not self._expired

    def progress(self, reserved_up_to: int) -> BigtableProgress:
        """Return how far it has been read and confirmed."""
        reached = self.prefix.watermark
        return BigtableProgress(
            self.partition,
            self._behind(self.prefix.token),
            reached if self._end is None or self.at_end else min(reached, self._end),
            reserved_up_to,
            self.versions.last,
            round(self.load),
        )

    def raise_reserved(self, reserved_up_to: int) -> None:
        """Let versions be made up to a reserved upper limit that is saved."""
        self.versions.raised(reserved_up_to)
        self.versions.rise(self.raised_min_version)
        self.raised.set()

    def _behind(self, token: str | None) -> Position:
        """Return the position behind the record with a token; None: behind which the partition was begun."""
        stream_range, position = self.partition.stream_range, self.partition.position
        return position if token is None else Position((RangeToken(stream_range.range, token),))
