"""The leases of the Spanner reader: the watermark of each partition is saved with its lease."""

from collections.abc import Sequence
from typing import ClassVar

from services.spanner_reader.app.stream.held import Held
from services.spanner_reader.ports import Progress
from shared.reading.leases import PartitionLeases


class Leases(PartitionLeases[Held, Progress]):
    """Saves watermarks with the leases."""

    not_saved: ClassVar[str] = "watermarks_not_saved"

    def _to_save(self, owned: Sequence[Held]) -> Sequence[Progress]:
        return [one.progress for one in owned]

    def _to_release(self, owned: Held, *, durable: bool) -> Progress:
        return owned.progress if durable else Progress(owned.partition, owned.partition.watermark)
