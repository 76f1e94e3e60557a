"""How far the rows of one key range are confirmed: in key order, whatever the order of confirmations."""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")


@dataclass(slots=True)
class TakenRows(Generic[KeyT]):
    """Rows that were published together: the last key that was read with them, and what is still unconfirmed."""

    last: KeyT
    rows: int
    size: int
    unconfirmed: int
    """How many publications of these rows Pub/Sub has not confirmed."""


@dataclass(slots=True)
class ConfirmedKeys(Generic[KeyT]):
    """The rows of one key range in key order, and how far all of them are confirmed."""

    last: KeyT | None
    rows: int = 0
    outstanding_bytes: int = 0
    _line: deque[TakenRows[KeyT]] = field(default_factory=deque)

    def add(self, last: KeyT, rows: int, size: int, publications: int = 1) -> TakenRows[KeyT]:
        """Add the next rows, which so many publications contain; return what is to be confirmed."""
        taken = TakenRows(last, rows, size, publications)
        self._line.append(taken)
        self.outstanding_bytes += size
        self._advance()
        return taken

    def confirm(self, taken: TakenRows[KeyT]) -> None:
        """Count one more publication of these rows as confirmed."""
        taken.unconfirmed -= 1
        if not taken.unconfirmed:
            self.outstanding_bytes -= taken.size
        self._advance()

    def _advance(self) -> None:
        while self._line and self._line[0].unconfirmed <= 0:
            first = self._line.popleft()
            self.last = first.last
            self.rows += first.rows

    @property
    def all_confirmed(self) -> bool:
        """Return whether Pub/Sub has confirmed everything."""
        return not self._line
