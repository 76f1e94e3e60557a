"""How far a partition has been read, and how far *confirmed*: the longest prefix of records that are all confirmed."""

from collections import deque
from collections.abc import Iterable

import msgspec

from services.bigtable_reader.core.stream.records import KeyRange, Microseconds, Position, RangeToken


class Place(msgspec.Struct, gc=False, eq=False):
    """A place in the line. What stands there is confirmed in so many parts as are still waited for."""

    token: str
    low_watermark: Microseconds
    waiting: int


class BigtableConfirmedPrefix:
    """The records of one partition in the order they were read, and the position that follows from it.

    Heartbeats stand in the same line as data, so a heartbeat counts only once all data before it are confirmed. The low
    watermark, which is an estimate of the service's, never moves back.
    """

    def __init__(self, range_: KeyRange, position: Position, low_watermark: Microseconds) -> None:
        self._range = range_
        self._position = position
        self._passed_token: str | None = None
        """Of the last record that is part of the prefix; none yet: the position stands."""
        self._read_token: str | None = None
        self._low_watermark = low_watermark
        self._line: deque[Place] = deque()
        self.taken = 0
        """How many places were taken in all."""

    @property
    def position(self) -> Position:
        """Return where another reader goes on without losing anything."""
        return self._at(self._passed_token)

    @property
    def read(self) -> Position:
        """Return where this reader goes on, who still has in hand what is not confirmed."""
        return self._at(self._read_token)

    @property
    def low_watermark(self) -> Microseconds:
        """Return the time up to which, by the service's estimate, all is confirmed."""
        return self._low_watermark

    @property
    def outstanding(self) -> int:
        """Return how many places in the line are not part of the prefix yet."""
        return len(self._line)

    def add(self, token: str, low_watermark: Microseconds, confirmations: int = 0) -> Place:
        """Take the next place in the line, for what is confirmed in so many parts (a heartbeat in none); return it."""
        self._read_token = token
        self.taken += 1
        place = Place(token, low_watermark, confirmations)
        self._line.append(place)
        if not confirmations:
            self._advance()
        return place

    def confirm(self, places: Iterable[Place]) -> None:
        """Say of each of these that one more part of what stands there is confirmed."""
        for place in places:
            place.waiting -= 1
        self._advance()

    def reach(self, low_watermark: Microseconds) -> None:
        """Say that all up to a time has been read, once everything in the line is confirmed."""
        if self._line:
            raise ValueError("the line is not empty")
        self._low_watermark = max(self._low_watermark, low_watermark)

    def _advance(self) -> None:
        line, low, passed = self._line, self._low_watermark, None
        while line and line[0].waiting <= 0:
            passed = line.popleft()
            if passed.low_watermark > low:
                low = passed.low_watermark
        if passed is not None:
            self._low_watermark = low
            self._passed_token = passed.token

    def _at(self, token: str | None) -> Position:
        return self._position if token is None else Position((RangeToken(self._range, token),))
