"""How readers share partitions: each takes a fair part of their weight, and every reader computes it from its survey.

A partition weighs something for its own sake (memory, a stream, a row that is saved with its lease) and what is read
of it. So readers of quiet partitions own equally many, and a busy partition counts as many quiet ones.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

_OWN_WEIGHT: Final = 10
"""Of a quiet partition, in records per second: a core reads about 10,000 of these and half a gigabyte holds 1,000
partitions (`docs/how-to/size.md`)."""
_UNEVEN: Final = 4
"""Shares that differ from the fair one by less than one part of so many stay as they are: loads vary all the time."""


@dataclass(frozen=True)
class Shares:
    """The partitions that may be read, by their keys, and who owns them as one survey shows it."""

    loads: Mapping[str, int]
    """Of each partition that may be read: records per second, as its owner has saved it last."""
    owners: Mapping[str, str]
    """The owners of leases that last."""
    readers: Collection[str]
    """Who shares the partitions."""

    @cached_property
    def _weights(self) -> Mapping[str, int]:
        return {key: _OWN_WEIGHT + load for key, load in self.loads.items()}

    @cached_property
    def _total(self) -> int:
        return sum(self._weights.values())

    def _weight(self, keys: Iterable[str]) -> int:
        return sum(self._weights.get(key, 0) for key in keys)

    @cached_property
    def are_uneven(self) -> bool:
        """Return whether the share of any reader differs from the fair one so much that partitions should move."""
        owned: dict[str, list[str]] = {reader: [] for reader in self.readers}
        for key, owner in self.owners.items():
            if owner in owned:
                owned[owner].append(key)
        parts = [self._weight(keys) * len(owned) for keys in owned.values()]
        return any(abs(part - self._total) * _UNEVEN >= self._total for part in parts)

    def is_short(self, owned: Iterable[str]) -> bool:
        """Return whether these are so much less than a fair share that their owner should soon get more."""
        return (self._total - self._weight(owned) * len(self.readers)) * _UNEVEN >= self._total > 0

    def to_claim(self, owned: Iterable[str], free: Iterable[str]) -> list[str]:
        """Return which of the free partitions, the first ones, the owner of others claims.

        It claims while it has less than a fair share. So every free partition finds a reader: while one is free, the
        owned ones weigh less than all.
        """
        weight, found = self._weight(owned), list[str]()
        for key in free:
            if weight * len(self.readers) >= self._total:
                break
            weight += self._weight([key])
            found.append(key)
        return found

    def to_release(self, owned: Sequence[str]) -> list[str]:
        """Return which partitions their owner releases: the heaviest without which it still has a fair share.

        Who claims one has then less than its former owner had, so releasing comes to an end. Of equally heavy ones the
        first are released.
        """
        weight, found = self._weight(owned), list[str]()
        for key in sorted(owned, key=lambda one: -self._weight([one])):
            left = weight - self._weight([key])
            if left < weight and left * len(self.readers) >= self._total:
                weight = left
                found.append(key)
        return found
