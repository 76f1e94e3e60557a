"""How far a partition has been read *and confirmed*: the longest prefix of its records that are all confirmed."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from shared.contracts.timestamps import Nanoseconds


@dataclass(slots=True)
class _Place:
    timestamp: Nanoseconds
    confirmed: bool
    records: int = 1


class SpannerConfirmedPrefix:
    """The records of one partition in the order they were read, and the watermark that follows from it.

    Heartbeats stand in the same line as data, so a heartbeat counts only once all data before it are confirmed.
    The watermark never moves back, also where a restarted query repeats earlier records: what is repeated stands at
    the end of the line, behind the first reading of the same records.
    """

    def __init__(self, watermark: Nanoseconds) -> None:
        self._watermark = watermark
        self._line: deque[_Place] = deque()
        self._first = 0
        self._outstanding = 0
        self._passed = 0

    @property
    def watermark(self) -> Nanoseconds:
        """Return the time at which a reading may start again without losing anything (inclusive)."""
        return self._watermark

    @property
    def outstanding(self) -> int:
        """Return how many records in the line are not part of the prefix yet."""
        return self._outstanding

    @property
    def taken(self) -> int:
        """Return how many records have stood in the line in all."""
        return self._passed + self._outstanding

    def add(self, timestamp: Nanoseconds, records: int = 1) -> int:
        """Take the next place in the line for what will be confirmed; return the place.

        ``timestamp`` is that of the last of so many records, which are confirmed together.
        """
        self._line.append(_Place(timestamp, confirmed=False, records=records))
        self._outstanding += records
        return self._first + len(self._line) - 1

    def add_confirmed(self, timestamp: Nanoseconds) -> None:
        """Take the next place for something that needs no confirmation: a heartbeat."""
        self._line.append(_Place(timestamp, confirmed=True))
        self._outstanding += 1
        self._advance()

    def confirm(self, place: int) -> None:
        """Say that what stands at a place is confirmed; saying it twice changes nothing."""
        if place < self._first:
            return
        self._line[place - self._first].confirmed = True
        self._advance()

    def give_up(self, places: Collection[int]) -> None:
        """Give up some places, and begin again at the watermark: all that stands in the line will be read again.

        Whatever stands there moves the watermark no more. What was not given up is still waited for.
        """
        for number, one in enumerate(self._line, self._first):
            one.timestamp = self._watermark
            one.confirmed |= number in places
        self._advance()

    def _advance(self) -> None:
        while self._line and self._line[0].confirmed:
            first = self._line.popleft()
            self._watermark = max(self._watermark, first.timestamp)
            self._outstanding -= first.records
            self._passed += first.records
            self._first += 1
