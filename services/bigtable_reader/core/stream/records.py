"""What a change stream of Bigtable returns, merged: three kinds of records. Times are integer microseconds, as there.

Source: `google.bigtable.v2.ReadChangeStreamResponse` (googleapis, bigtable.proto).
"""

from typing import Final, Literal, NewType

import msgspec

Microseconds = NewType("Microseconds", int)
"""Since 1970-01-01 in UTC. Bigtable truncates the times of change streams to microseconds."""


ChangeKind = Literal["USER", "GARBAGE_COLLECTION"]


class KeyRange(msgspec.Struct, frozen=True, order=True, gc=False):
    """Row keys from ``start``, inclusive, up to ``end``, exclusive; an empty ``end`` is no end."""

    start: bytes
    end: bytes

    def __post_init__(self) -> None:
        if self.end and self.start >= self.end:
            raise ValueError(f"an empty key range: {self}")

    def __contains__(self, row_key: bytes) -> bool:
        return self.start <= row_key and (not self.end or row_key < self.end)

    def __str__(self) -> str:
        """Return the range as it is shown in logs: every byte visible."""
        return f"[{_visible(self.start)}, {_visible(self.end) or 'end'})"


ALL_KEYS: Final = KeyRange(b"", b"")


class RangeToken(msgspec.Struct, frozen=True, gc=False):
    """Where a reading goes on, for the rows of one key range."""

    range: KeyRange
    token: str


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where a reading begins: at tokens that together cover its range exactly, or at a time (inclusive)."""

    tokens: tuple[RangeToken, ...] = ()
    start: Microseconds | None = None

    def __post_init__(self) -> None:
        if bool(self.tokens) == (self.start is not None):
            raise ValueError("a position is either tokens or a time")


class SetCell(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A cell was written."""

    family: str
    qualifier: bytes
    timestamp: Microseconds
    value: bytes


class DeleteCells(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """The cells of a column from ``start``, inclusive, up to ``end``, exclusive, were deleted; 0 is open."""

    family: str
    qualifier: bytes
    start: Microseconds
    end: Microseconds


class DeleteFamily(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """All cells of a family were deleted. Deleting a row is one of these for each family that it had data in."""

    family: str


class Aggregated(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Something was added to, or merged into, a cell of an aggregate family: what the cell is now is not in the record.

    ``value`` is what was added, as the stream has it: the bytes of a raw value, or the 8 big-endian bytes of a number.
    """

    kind: Literal["ADD_TO_CELL", "MERGE_TO_CELL"]
    family: str
    qualifier: bytes
    timestamp: Microseconds
    value: bytes


class UnknownEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """An entry of a kind that this version does not know, by its name and bytes in the protocol."""

    kind: str
    family: str
    value: bytes


Entry = SetCell | DeleteCells | DeleteFamily | Aggregated | UnknownEntry


class DataChange(msgspec.Struct, frozen=True, gc=False):
    """All changes of one row that one request made atomically; in their order."""

    row_key: bytes
    kind: ChangeKind
    source_cluster: str
    """Empty where no user wrote: garbage collection."""
    commit: Microseconds
    tiebreaker: int
    entries: tuple[Entry, ...]
    token: str
    """Goes on behind this record; for the whole range that is being read."""
    low_watermark: Microseconds
    """An estimate: what is older may still come, and is never refused."""
    left_out: int = 0
    """How many more entries there are, of which nothing is kept."""

    @property
    def entry_count(self) -> int:
        """Return how many entries the change has."""
        return len(self.entries) + self.left_out

    def without_entries(self) -> "DataChange":
        """Return the change with its entries counted, and not kept."""
        if not self.entries:
            return self
        return msgspec.structs.replace(self, entries=(), left_out=self.entry_count)


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """Nothing new, and where to go on."""

    token: str
    low_watermark: Microseconds


class Child(msgspec.Struct, frozen=True):
    """A part of an ended range, and the partition that it belongs to from now on, which may reach further (a merge)."""

    token: RangeToken
    partition: KeyRange


class CloseStream(msgspec.Struct, frozen=True):
    """The range is no longer a partition, and ``children`` go on; none, and ``code`` 0: the end asked for."""

    code: int
    message: str
    children: tuple[Child, ...] = ()
    amiss: str = ""
    """What the service did not say as it should: then each child is a partition of its own. Empty: nothing."""


StreamRecord = DataChange | Heartbeat | CloseStream


class BigtableStreamQuery(msgspec.Struct, frozen=True):
    """What is asked of a change stream: a key range, from where, and up to when (inclusive; None is for ever)."""

    range: KeyRange
    position: Position
    end: Microseconds | None = None
    heartbeat_milliseconds: int = 5_000


def _visible(key: bytes) -> str:
    return key.decode("ascii", "backslashreplace").encode("unicode_escape").decode("ascii")
