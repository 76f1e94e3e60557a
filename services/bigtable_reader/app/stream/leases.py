"""The leases of the Bigtable reader: positions and reserved upper limits of versions are saved with them."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ClassVar, Final

from msgspec.structs import replace

from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.app.stream.owned_partition import BigtableOwnedPartition, BigtableReaderOptions
from services.bigtable_reader.core.stream.partitions import BigtableProgress, overlapping
from services.bigtable_reader.core.stream.records import KeyRange
from services.bigtable_reader.ports import KeyRangePartitionStore, VersionClock
from shared.reading.leases import PartitionLeases

_MICROSECOND: Final = timedelta(microseconds=1)


class BigtablePartitionLeases(PartitionLeases[BigtableOwnedPartition, BigtableProgress]):
    """Saves positions with the leases, and raises the reserved upper limits of versions."""

    not_saved: ClassVar[str] = "positions_not_saved"

    def __init__(
        self,
        store: KeyRangePartitionStore,
        clock: VersionClock,
        metrics: BigtableReaderMetrics,
        options: BigtableReaderOptions,
        is_durable: Callable[[], bool],
    ) -> None:
        super().__init__(store, metrics, options, is_durable)
        self._clock = clock
        self._ahead = options.reserve // _MICROSECOND

    def take(self, owned: BigtableOwnedPartition, asked_at: float) -> None:
        """Own a partition by a lease asked for then; no version can be made before a reserved upper limit is saved."""
        super().take(owned, asked_at)
        self.renew_now()

    def raise_min_versions(self, keys: KeyRange, min_version: int) -> None:
        """Make no further version up to a number for keys, and have that saved: at the second renewal at last."""
        low = [one for one in self.owned.values() if not one.over and one.versions.last < min_version]
        for one in low:
            if overlapping([one.partition.stream_range.range, keys]):
                one.raised_min_version = max(one.raised_min_version, min_version)
                one.versions.rise(min_version)
                self.renew_now()

    def _to_save(self, owned: Sequence[BigtableOwnedPartition]) -> Sequence[BigtableProgress]:
        now, ahead = self._clock.now(), self._ahead
        for one in owned:  # what is read from now on may be published under the time, though nothing changes
            if now < one.versions.reserved_up_to:
                one.versions.rise(now)
        return [one.progress(max(one.versions.wanted(now, ahead), one.raised_min_version + ahead)) for one in owned]

    def _to_release(self, owned: BigtableOwnedPartition, *, durable: bool) -> BigtableProgress:
        last = owned.versions.last  # no further version is made for it here
        progress, claimed = owned.progress(last), owned.partition
        if durable:
            return progress
        return replace(progress, position=claimed.position, low_watermark=claimed.low_watermark)

    def _renewed(self, owned: BigtableOwnedPartition, saved: BigtableProgress) -> None:
        owned.raise_reserved(saved.reserved_up_to)
