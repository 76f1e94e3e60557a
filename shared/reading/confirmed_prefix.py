"""How far a partition or a key range is read, and how far *confirmed*: the longest prefix of which all is confirmed."""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

TimeT = TypeVar("TimeT", bound=int)
TokenT = TypeVar("TokenT")


class Place(msgspec.Struct, Generic[TimeT, TokenT], gc=False, eq=False):
    """A place in the line. What stands there is confirmed in so many parts as are still waited for."""

    watermark: TimeT
    waiting: int
    records: int
    token: TokenT | None


class ConfirmedPrefix(Generic[TimeT, TokenT]):
    """The records of one partition in the order they were read, and the watermark that follows from it.

    Heartbeats stand in the same line as data, so a heartbeat counts only once all data before it are confirmed. The
    watermark never moves back, whatever the times of later records: they may be repeated, or be estimates.
    """

    def __init__(self, watermark: TimeT, token: TokenT | None = None) -> None:
        self.watermark = watermark
        """The time up to which all is confirmed."""
        self.token = token
        """What the source calls the place behind the prefix; None where it names none, and before the first record."""
        self.read_token = token
        """What it calls the place behind all that was read, confirmed or not."""
        self.taken = 0
        """How many records have stood in the line in all."""
        self.confirmed = 0
        """How many of them are part of the prefix."""
        self._line: deque[Place[TimeT, TokenT]] = deque()

    @property
    def outstanding(self) -> int:
        """Return how many records in the line are not part of the prefix yet."""
        return self.taken - self.confirmed

    def add(
        self, watermark: TimeT, confirmations: int, *, records: int = 1, token: TokenT | None = None
    ) -> Place[TimeT, TokenT]:
        """Take the next place in the line, for what is confirmed in so many parts (a heartbeat in none); return it.

        ``watermark`` and ``token`` are those of the last of so many records, which are confirmed together.
        """
        place = Place(watermark, confirmations, records, token)
        self._line.append(place)
        self.read_token = token
        self.taken += records
        if not confirmations:
            self._advance()
        return place

    def confirm(self, places: Iterable[Place[TimeT, TokenT]]) -> None:
        """Say of each of these that one more part of what stands there is confirmed; one too many changes nothing."""
        for place in places:
            place.waiting -= 1
        self._advance()

    def give_up(self, places: Iterable[Place[TimeT, TokenT]]) -> None:
        """Give up some places, and begin again behind the prefix: all that stands in the line will be read again.

        Whatever stands there moves the watermark no more. What was not given up is still waited for.
        """
        for place in places:
            place.waiting = 0
        for place in self._line:
            place.watermark, place.token = self.watermark, self.token
        self.read_token = self.token
        self._advance()

    def _advance(self) -> None:
        line, watermark, passed, records = self._line, self.watermark, None, 0
        while line and line[0].waiting <= 0:
            passed = line.popleft()
            records += passed.records
            if passed.watermark > watermark:
                watermark = passed.watermark
        if passed is not None:
            self.watermark, self.token = watermark, passed.token
            self.confirmed += records
