"""A partition and its lease, without a source: what the leases and the supervisor are tested with."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from shared.reading.leases import PartitionLeases, ReaderOptions
from shared.reading.owned_partition import OwnedPartition

OPTIONS = ReaderOptions(owner="reader", lease=timedelta(seconds=30), heartbeat=timedelta(seconds=10))


class Owned(OwnedPartition[int]):
    """A partition of whose progress nothing is known but its key."""

    def __init__(self, key: str) -> None:
        super().__init__(0)
        self._key = key
        self.is_expired = False

    @property
    def key(self) -> str:
        """Return its key."""
        return self._key

    @property
    def position(self) -> None:
        """Return that nothing is known of where it is read."""

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Return its key."""
        return {"partition": self._key}

    @property
    def ours(self) -> bool:
        """Return whether its lease may still be extended."""
        return not self.over and not self.is_expired


class Leases(PartitionLeases[Owned, str]):
    """Saves keys as progress."""

    not_saved: ClassVar[str] = "not_saved"

    def _to_save(self, owned: Sequence[Owned]) -> Sequence[str]:
        return [one.key for one in owned]

    def _to_release(self, owned: Owned, *, durable: bool) -> str:
        return owned.key if durable else f"{owned.key} as it was claimed"
