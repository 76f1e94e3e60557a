"""The leases of the Spanner reader: the watermark of each partition is saved with its lease."""

from collections.abc import Sequence
from typing import ClassVar

from services.spanner_reader.app.stream.held import SpannerOwnedPartition
from services.spanner_reader.ports import SpannerProgress
from shared.reading.leases import PartitionLeases


class SpannerPartitionLeases(PartitionLeases[SpannerOwnedPartition, SpannerProgress]):
    """Saves watermarks with the leases."""

    not_saved: ClassVar[str] = "watermarks_not_saved"

    def _to_save(self, owned: Sequence[SpannerOwnedPartition]) -> Sequence[SpannerProgress]:
        return [one.progress for one in owned]

    def _to_release(self, owned: SpannerOwnedPartition, *, durable: bool) -> SpannerProgress:
        return owned.progress if durable else SpannerProgress(owned.partition, owned.partition.watermark)
