"""A change, or a whole message, that can never be applied: where it is and why. Never the values of its row."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from shared.contracts.change_batch import ChangeBatch
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import canonical_key
from shared.contracts.timestamps import Nanoseconds, microseconds

SAFE_AGE: Final = timedelta(hours=46)
"""BigQuery remembers a delete for two days; an older upsert could bring the deleted row back. Two hours are margin."""
SAFE_MICROSECONDS: Final = SAFE_AGE // timedelta(microseconds=1)

_TEXT_LIMIT: Final = 1024  # bytes; an attribute on the dead-letter topic holds no more

_key: Final = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class Poison:
    """A change that can never be applied, or with ``change`` None a whole message."""

    message: int
    """The row of the message table that it came in."""
    change: int | None
    """The change's index in its batch."""
    reason: Reason
    detail: str
    table: str = ""
    key: str = ""
    sequence: str = ""
    commit_timestamp: str = ""


def poison_change(message: int, batch: ChangeBatch, change: int, reason: Reason, detail: str) -> Poison:
    """Return what is known of a change that cannot be applied, for its dead letter."""
    return Poison(
        message,
        change,
        reason,
        detail,
        table=_cut(batch.header.table),
        key=key_text(batch, change),
        sequence=_cut(batch.sequence[change]),
        commit_timestamp=_cut(batch.commit_timestamp[change]),
    )


def key_text(batch: ChangeBatch, change: int) -> str:
    """Return a change's key, readable: the canonical JSON array of its values, or as it came where it has none."""
    text = bytes(batch.keys[change])
    try:
        canonical = canonical_key(batch.header.table, batch.header.key_types(), _key.decode(text))
    except (PoisonRecordError, msgspec.MsgspecError, RecursionError):
        return text[:_TEXT_LIMIT].decode(errors="ignore")
    return canonical.partition(b"\0")[2].decode()


def oldest_safe(now: Nanoseconds) -> int:
    """Return the commit timestamp, in microseconds, before which an upsert may meet no remembered delete."""
    return microseconds(now) - SAFE_MICROSECONDS


def _cut(text: str) -> str:
    """Cut what should be short and need not be: an attribute has a limit, and a letter must always be publishable."""
    return text.encode()[:_TEXT_LIMIT].decode(errors="ignore")
