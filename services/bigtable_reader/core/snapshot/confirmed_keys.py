"""How far the rows of one part of a snapshot are confirmed: in key order, whatever the order of confirmations."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class TakenRows:
    """Rows that were handed on together: the last key that was read with them, and what is still to be confirmed."""

    last: bytes
    rows: int
    size: int
    waiting: int


@dataclass(slots=True)
class ConfirmedKeys:
    """The rows of one part in key order, and how far all of them are confirmed."""

    last: bytes | None
    rows: int = 0
    outstanding_bytes: int = 0
    _line: deque[TakenRows] = field(default_factory=deque)

    def add(self, last: bytes, rows: int, size: int, confirmations: int) -> TakenRows:
        """Take the next rows, which are confirmed in so many parts (none at all in none)."""
        taken = TakenRows(last, rows, size, confirmations)
        self._line.append(taken)
        self.outstanding_bytes += size
        if not confirmations:
            self._advance()
        return taken

    def confirm(self, taken: TakenRows) -> None:
        """Say that one more part of these rows is confirmed."""
        taken.waiting -= 1
        if not taken.waiting:
            self.outstanding_bytes -= taken.size
        self._advance()

    def _advance(self) -> None:
        while self._line and self._line[0].waiting <= 0:
            first = self._line.popleft()
            self.last = first.last
            self.rows += first.rows

    @property
    def all_confirmed(self) -> bool:
        """Tell whether nothing waits for Pub/Sub."""
        return not self._line
