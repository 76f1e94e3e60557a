"""The pieces of the key space, what their readers save of them, and a look at all of it.

A *piece* is a key range with a position: the shape of the stream. A *partition* is a piece that a reader holds.
"""

from typing import Literal, NewType

import msgspec

from services.bigtable_reader.core.records import KeyRange, Microseconds, Position

PieceId = NewType("PieceId", str)
"""Names a piece; never used twice, also where a range comes back after a split and a merge."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the key space. ``floor``: every stamp that is made for it is above.

    ``target`` is the partition that it is to be a part of, once the others have come; None: it may be read as it is.
    ``position`` is None where the service named no token for it; it is read from a time, if it comes to that.
    ``reconciled`` tells what waited in vain, and is read as it is.
    """

    id: PieceId
    range: KeyRange
    position: Position | None
    floor: int
    low_watermark: Microseconds
    target: KeyRange | None = None
    reconciled: bool = False


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A piece as its reader holds it: where to go on, above which stamp, and in the name of which fence."""

    piece: Piece
    position: Position
    low_watermark: Microseconds
    floor: int
    ceiling: int
    """No stamp is made above it before a higher one is saved. At the claim it is the floor: none can be made yet."""
    fence: int
    owner: str


class Progress(msgspec.Struct, frozen=True):
    """How far a held partition has been read and confirmed; and the ceiling that it asks for."""

    partition: Partition
    position: Position
    low_watermark: Microseconds
    ceiling: int


class Saved(msgspec.Struct, frozen=True):
    """What a partition's row says, whoever reads it."""

    owner: str
    """Empty: given back."""
    fence: int
    state: Literal["RUNNING", "CLOSING"]
    low_watermark: Microseconds
    free: bool
    """Whether it may be claimed: given back, or unchanged for as long as a lease lasts."""


class Survey(msgspec.Struct, frozen=True):
    """The pieces, what is saved of those that were ever taken, and who is present."""

    pieces: tuple[Piece, ...]
    saved: dict[PieceId, Saved]
    readers: frozenset[str]
