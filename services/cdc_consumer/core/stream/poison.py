"""A change, or a whole message, that can never be applied: where it is and why. Never the values of its row."""

from dataclasses import dataclass
from typing import Final

from shared.contracts.change_batch import ChangeBatch
from shared.contracts.reasons import Reason
from shared.contracts.row_id import key_text

_TEXT_LIMIT: Final = 1024  # bytes; an attribute on the dead-letter topic holds no more


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
        key=key_text(batch.header.table, batch.header.key_types(), bytes(batch.keys[change])),
        sequence=_cut(batch.sequence[change]),
        commit_timestamp=_cut(batch.commit_timestamp[change]),
    )


def _cut(text: str) -> str:
    """Cut a text that may be long: an attribute has a limit, and a dead letter must always be publishable."""
    return text.encode()[:_TEXT_LIMIT].decode(errors="ignore")
