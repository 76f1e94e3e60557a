"""The versions that put the images of rows in order: numbers that only rise, also when a key range changes hands.

A version is the time in microseconds where that rises, and one more than the last where it does not: so nothing depends
on clocks that agree. Two numbers keep the order when a key range changes hands. Its *minimum version* is below every
version that is still to be made. Its *reserved upper limit* is saved, under the owner's fence, before any version up to
it is made. The next owner, and every key range that comes from this one, begins above it. So what a former owner still
publishes loses. An owner that releases a key range, or ends it, makes no further version, though images with its
versions may be published yet. It saves its last version as the reserved upper limit, so that handovers in order do not
drive versions away from the time. The minimum version is saved as it rises, too: what is read of the table's rows after
an inspection of it may be published under it (`snapshot_source.py`).
"""

from services.bigtable_reader.core.stream.records import Microseconds


class VersionAllocator:
    """The versions of one key range in the hands of one owner."""

    __slots__ = ("_last", "_reserved_up_to")

    def __init__(self, min_version: int, reserved_up_to: int) -> None:
        self._last = min_version
        self._reserved_up_to = max(min_version, reserved_up_to)

    @property
    def last(self) -> int:
        """Return the last version that was made; the minimum version, before the first."""
        return self._last

    @property
    def reserved_up_to(self) -> int:
        """Return the number above which no version is made."""
        return self._reserved_up_to

    def next(self, now: Microseconds) -> int | None:
        """Make a version above all before it; None if there is no room below the reserved upper limit.

        A clock that has run past the reserved upper limit stops nothing: the numbers between are as good.
        """
        if self._last >= self._reserved_up_to:
            return None
        self._last = max(self._last + 1, now) if now <= self._reserved_up_to else self._last + 1
        return self._last

    def take(self, most: int, now: Microseconds) -> range:
        """Make so many versions, each by one above the last, or fewer where there is no room for all."""
        first = self.next(now) if most > 0 else None
        if first is None:
            return range(0)
        self._last = min(first + most - 1, self._reserved_up_to)
        return range(first, self._last + 1)

    def wanted(self, now: Microseconds, ahead: int) -> int:
        """Return the reserved upper limit to ask for: room for so many microseconds, and for as many versions."""
        return max(now, self._last) + ahead

    def rise(self, to: int) -> int:
        """Pass over versions up to a number, as far as the reserved upper limit allows; return the last passed over."""
        self._last = max(self._last, min(to, self._reserved_up_to))
        return self._last

    def raised(self, reserved_up_to: int) -> None:
        """Take a reserved upper limit that has been saved; a lower one than before changes nothing."""
        self._reserved_up_to = max(self._reserved_up_to, reserved_up_to)
