"""The bytes that a reader has read and not handed to the publisher yet: one budget, however many partitions it owns.

Each share may have as many bytes as are free. So one partition that is not served has half of the budget at most, two
have a third each, and what is of others goes on. A share that has nothing may always take one record, whatever its
size, without waiting for another share, so all go on. Together the shares have less than the budget and a record for
each.
"""

import threading
from typing import Final, Self

_MOST: Final = 32 << 20
"""Half of what may wait for Pub/Sub by default."""


class ByteBudget:
    """What all partitions of a process may have in hand. Shares are changed from any thread."""

    def __init__(self, most: int = _MOST) -> None:
        self.most = most
        self.used = 0
        self.lock = threading.Lock()

    def share(self) -> "ByteShare":
        """Return a share that has nothing yet."""
        return ByteShare(self)


class ByteShare:
    """What one partition has of a budget. As a block, it gives back what is left at the end."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.used = 0

    @property
    def has_room(self) -> bool:
        """Return whether one more record may be taken. Of a share that is used up, ask again when it has got less."""
        return self.used <= 0 or self.used < self._budget.most - self._budget.used

    def add(self, size: int) -> None:
        """Take so many bytes more, or give them back where that is less than 0."""
        with self._budget.lock:
            self.used += size
            self._budget.used += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.add(-self.used)
