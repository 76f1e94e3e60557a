"""What can be neither an image nor an entry as the tables file would have it: kept as a dead letter, whole."""

from typing import Final

import msgspec

from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason

NO_ROW: Final = "null"
"""The row of a refused change: a consumer that meets it again, in a replay, sets it aside again."""

_json: Final = msgspec.json.Encoder().encode


class Made(msgspec.Struct, frozen=True):
    """A change record on its way out, and the header that it goes under."""

    header: Header
    ordering_key: str
    change: Change


class Refused(msgspec.Struct, frozen=True):
    """A dead letter to be: ``change`` is a batch of its own under ``header``, and its ``old`` is all that was read."""

    header: Header
    ordering_key: str
    change: Change
    reason: Reason
    detail: str


def key_text(row_key: bytes) -> str:
    """Return a row key as text; PoisonRecordError (KEY_NOT_REPRESENTABLE) where it is none."""
    try:
        return row_key.decode()
    except UnicodeDecodeError as error:
        raise PoisonRecordError(
            Reason.KEY_NOT_REPRESENTABLE,
            f'column row_key of type STRING: not UTF-8, from byte {error.start}; row_key = "BYTES" takes every key',
        ) from None


def raw(content: object) -> str:
    """Return what was read, as JSON; bytes are base64."""
    return _json(content).decode()
