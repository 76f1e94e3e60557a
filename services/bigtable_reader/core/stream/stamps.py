"""The stamps that put the images of rows in order: numbers that only rise, also when a key range changes hands.

A stamp is the time in microseconds where that rises, and one more than the last where it does not: so nothing depends
on clocks that agree. Two numbers keep the order when a key range changes hands. Its *minimum version* is below every
stamp that is still to be made. Its *ceiling* is saved, under the owner's fence, before any stamp up to it is made; the
next owner, and every key range that comes from this one, begins above it. So what a former owner still publishes loses.
An owner that gives a key range back, or ends it, makes no further stamp, though what it has stamped may be published
yet: it saves its last one as the ceiling, so that handovers in order do not drive stamps away from the time. The
minimum version is saved as it rises, too: what is read of the table's rows after an inspection of it may be published
under it (`snapshot_source.py`).
"""

from services.bigtable_reader.core.stream.records import Microseconds


class Stamps:
    """The stamps of one key range in the hands of one owner."""

    __slots__ = ("_ceiling", "_last")

    def __init__(self, min_version: int, ceiling: int) -> None:
        self._last = min_version
        self._ceiling = max(min_version, ceiling)

    @property
    def last(self) -> int:
        """Return the last stamp that was made; the minimum version, before the first."""
        return self._last

    @property
    def ceiling(self) -> int:
        """Return the number above which no stamp is made."""
        return self._ceiling

    def next(self, now: Microseconds) -> int | None:
        """Make a stamp above all before it; None if there is no room below the ceiling.

        A clock that has run past the ceiling stops nothing: the numbers between are as good.
        """
        if self._last >= self._ceiling:
            return None
        self._last = max(self._last + 1, now) if now <= self._ceiling else self._last + 1
        return self._last

    def wanted(self, now: Microseconds, ahead: int) -> int:
        """Return the ceiling to ask for: room for so many microseconds, and for as many stamps."""
        return max(now, self._last) + ahead

    def rise(self, to: int) -> int:
        """Make no further stamp up to a number, as far as the ceiling allows; return the last that is passed over."""
        self._last = max(self._last, min(to, self._ceiling))
        return self._last

    def raised(self, ceiling: int) -> None:
        """Take a ceiling that has been saved; a lower one than before changes nothing."""
        self._ceiling = max(self._ceiling, ceiling)
