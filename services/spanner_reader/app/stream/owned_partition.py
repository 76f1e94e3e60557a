"""A partition that a reader owns, how it is saved with its lease, and how a reader reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar

from services.spanner_reader.core.stream.partitions import SpannerPartition
from services.spanner_reader.ports import SpannerProgress, StartTooOldError
from shared.contracts.timestamps import Nanoseconds
from shared.reading.confirmed_prefix import Place
from shared.reading.leases import PartitionLeases, ReaderOptions
from shared.reading.owned_partition import OwnedPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannerReaderOptions(ReaderOptions):
    """How a reader reads."""

    end: Nanoseconds | None = None
    keep_messages: timedelta = timedelta(days=7)
    """How long a subscription keeps messages."""
    keep_finished: timedelta = timedelta(days=1)
    """How long finished partitions are remembered, at the least."""
    tidy: timedelta = timedelta(minutes=10)


class SpannerOwnedPartition(OwnedPartition[Nanoseconds]):
    """A partition that this reader has the lease of."""

    def __init__(self, partition: SpannerPartition) -> None:
        super().__init__(partition.watermark, partition.load)
        self.partition = partition
        self.read_again_from: Nanoseconds | None = None
        """Where it was begun again because its position lies behind its end."""
        self.too_old: StartTooOldError | None = None
        """Why it was not begun again at its start."""

    @property
    def key(self) -> str:
        """Return its token."""
        return self.partition.token

    @property
    def position(self) -> Nanoseconds:
        """Return its watermark."""
        return self.prefix.watermark

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Return what names it in the log."""
        return {"partition_token": self.partition.token}

    def confirming(self, place: Place[Nanoseconds, str]) -> Callable[[], None]:
        """Return what confirms a record's place, also where the partition has been begun again meanwhile."""
        prefix = self.prefix

        def confirm() -> None:
            prefix.confirm((place,))
            self.moved.set()

        return confirm

    @property
    def progress(self) -> SpannerProgress:
        """Return how far it has been read and confirmed."""
        return SpannerProgress(self.partition, self.prefix.watermark, round(self.load))


class SpannerPartitionLeases(PartitionLeases[SpannerOwnedPartition, SpannerProgress]):
    """Saves watermarks with the leases."""

    not_saved: ClassVar[str] = "watermarks_not_saved"

    def _to_save(self, owned: Sequence[SpannerOwnedPartition]) -> Sequence[SpannerProgress]:
        return [one.progress for one in owned]

    def _to_release(self, owned: SpannerOwnedPartition, *, durable: bool) -> SpannerProgress:
        return owned.progress if durable else replace(owned.progress, watermark=owned.partition.watermark)
