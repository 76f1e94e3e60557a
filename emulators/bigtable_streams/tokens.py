"""Continuation tokens: opaque to a reader; inside, one position for each range of keys.

One position would not do: a partition that was merged reads on for each of its ranges from where that one had been
read to, and may be closed again before the ranges have caught up with each other.
"""

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from emulators.bigtable_streams.key_range import KeyRange, exactly_covers

_CHECK_BYTES: Final = 4


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Everything before ``index`` was delivered of the keys from ``start`` to ``end``."""

    start: bytes
    end: bytes
    index: int

    @property
    def range(self) -> KeyRange:
        """Return the keys this is about."""
        return KeyRange(self.start, self.end)


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Where to go on: positions that cover a range of keys without gap, in one epoch of one table's change stream."""

    epoch: str
    positions: tuple[Position, ...]

    @property
    def range(self) -> KeyRange:
        """Return the keys that the positions cover."""
        return KeyRange(self.positions[0].start, self.positions[-1].end)

    def encode(self) -> str:
        """Return the token as a reader gets it."""
        data = msgspec.msgpack.encode(self)
        return base64.urlsafe_b64encode(zlib.crc32(data).to_bytes(_CHECK_BYTES, "big") + data).decode()


def decode_token(text: str) -> Token:
    """Return what `encode` made a token of; ValueError for anything else."""
    try:
        data = base64.b64decode(text, altchars=b"-_", validate=True)
        check, body = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
        if int.from_bytes(check, "big") != zlib.crc32(body):
            raise ValueError("its checksum is wrong")
        token = msgspec.msgpack.decode(body, type=Token)
        if not exactly_covers((position.range for position in token.positions), token.range):
            raise ValueError("its ranges leave gaps or overlap")
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise ValueError(
            "it is not a token of this service, or it was changed: pass a token on as it came in a heartbeat, a change "
            "or a CloseStream"
        ) from error
    return token


def advanced(positions: Sequence[Position], index: int) -> tuple[Position, ...]:
    """Return the positions with everything before ``index`` delivered; neighbours at one position become one."""
    joined: list[Position] = []
    for position in positions:
        at = max(position.index, index)
        if joined and joined[-1].index == at:
            joined[-1] = Position(joined[-1].start, position.end, at)
        else:
            joined.append(Position(position.start, position.end, at))
    return tuple(joined)


def cut_to(positions: Iterable[Position], whole: KeyRange) -> tuple[Position, ...]:
    """Return the positions of the keys in a range."""
    cut = ((position.range.within(whole), position.index) for position in sorted(positions, key=lambda p: p.start))
    return tuple(Position(part.start, part.end, index) for part, index in cut if part is not None)
