"""What can be neither an image nor an entry as the tables file would have it: kept as a dead letter, whole."""

from collections.abc import Mapping
from typing import Final

import msgspec

from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason

NO_ROW: Final = "null"
"""The row of a refused change: a consumer that meets it again, in a replay, sets it aside again."""

LARGEST: Final = 6_000_000
"""Bytes of what was read for which a dead letter has room, as base64 and with all that is around them."""
_OVERHEAD: Final = 2_048
"""Bytes of its keys, its places and who waits for it."""
CELL_BYTES: Final = 64
"""What is around a value, at least."""

_json: Final = msgspec.json.Encoder().encode


class Made(msgspec.Struct, frozen=True, gc=False):
    """A change record on its way out, and the header that it goes under."""

    header: Header
    ordering_key: str
    change: Change


class RefusedChange(msgspec.Struct, frozen=True):
    """A dead letter to be: ``change`` is to be a batch of its own under ``header``, and ``content`` all that was read.

    ``size``: of what was read, in bytes, about. What is too large for a dead letter is not among its content.
    """

    header: Header
    ordering_key: str
    change: Change
    content: Mapping[str, object]
    size: int
    reason: Reason
    detail: str

    @property
    def left_out(self) -> int | None:
        """Return how many bytes of what was read no dead letter has room for; None where it has."""
        return self.size if self.size > LARGEST else None

    @property
    def outstanding_bytes(self) -> int:
        """Return how much memory it takes until its dead letter is confirmed, about."""
        return _OVERHEAD + (self.size if self.left_out is None else 0)

    def whole(self) -> Change:
        """Return the change with what was read, as JSON; bytes are base64."""
        return msgspec.structs.replace(self.change, old=_json(self.content).decode())


def refused(
    header: Header,
    ordering_key: str,
    change: Change,
    content: Mapping[str, object],
    error: PoisonRecordError,
    *,
    row_key: bytes,
    size: int,
) -> RefusedChange:
    """Return a dead letter to be; with the row key alone where ``content`` has more bytes than there is room for."""
    kept = {"row_key": row_key, **(content if size <= LARGEST else {})}
    return RefusedChange(header, ordering_key, change, kept, size, error.reason, error.detail)


def key_text(row_key: bytes) -> str:
    """Return a row key as text; PoisonRecordError (KEY_NOT_REPRESENTABLE) where it is none."""
    try:
        return row_key.decode()
    except UnicodeDecodeError as error:
        raise PoisonRecordError(
            Reason.KEY_NOT_REPRESENTABLE,
            f'column row_key of type STRING: not UTF-8, from byte {error.start}; row_key = "BYTES" takes every key',
        ) from None
