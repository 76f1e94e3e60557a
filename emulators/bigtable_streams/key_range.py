"""Ranges of row keys: what partitions, tokens and requests are about."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The keys from ``start`` up to and without ``end``; an empty ``end`` is the end of the table."""

    start: bytes = b""
    end: bytes = b""

    def __post_init__(self) -> None:
        if self.end and self.start >= self.end:
            raise ValueError(f"no key is in {self}")

    def __str__(self) -> str:
        return f"[{self.start!r}, {self.end!r})"

    def __contains__(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)

    def covers(self, other: Self) -> bool:
        """Return whether every key of the other range is in this one."""
        return self.start <= other.start and (not self.end or (other.end != b"" and other.end <= self.end))

    def within(self, other: "KeyRange") -> "KeyRange | None":
        """Return the keys that are in both ranges, or None if there are none."""
        start = max(self.start, other.start)
        end = min(self.end or other.end, other.end or self.end)
        return None if end and start >= end else KeyRange(start, end)

    def fill(self, row_range: Any) -> None:
        """Put this range into a RowRange message as change streams have it: closed start, open end."""
        row_range.start_key_closed = self.start
        row_range.end_key_open = self.end


def read_range(row_range: Any) -> KeyRange:
    """Return the range of a RowRange message; ValueError if no key can be in it."""
    start, end = row_range.WhichOneof("start_key"), row_range.WhichOneof("end_key")
    from_key = b"" if start is None else getattr(row_range, start) + (b"\0" if start == "start_key_open" else b"")
    to_key = b"" if end is None else getattr(row_range, end)
    return KeyRange(from_key, to_key + b"\0" if end == "end_key_closed" and to_key else to_key)


def exactly_covers(parts: Iterable[KeyRange], whole: KeyRange) -> bool:
    """Return whether the parts are the whole, with nothing missing, twice or beyond."""
    ordered = sorted(parts)
    if not ordered or ordered[0].start != whole.start or ordered[-1].end != whole.end:
        return False
    return all(left.end == right.start and left.end for left, right in pairwise(ordered))
