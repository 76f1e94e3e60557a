"""What an operator does about dead letters of each reason, in a sentence; the documents have the whole of it."""

from collections.abc import Mapping
from typing import Final

from shared.contracts.reasons import Reason

_OTHERS: Final = "Find the program that published it by the attributes, stop it, and discard this."
_TABLES_FILE: Final = "restart the consumer, then replay."

GUIDANCE: Final[Mapping[Reason, str]] = {
    Reason.UNDECODABLE: _OTHERS,
    Reason.TRAILING_BYTES: _OTHERS,
    Reason.UNEQUAL_LISTS: _OTHERS,
    Reason.NO_PRIMARY_KEY: "Leave the table out (exclude in TABLES_FILE) and discard, or give the table a key.",
    Reason.KEY_NOT_REPRESENTABLE: "Give the row another key at its source, or leave the table out; then discard. "
    f'If no key can have the column\'s type: unfit_key = "history" in TABLES_FILE, {_TABLES_FILE}',
    Reason.TOO_MANY_COLUMNS: f"Leave columns out (ignored_columns in TABLES_FILE), {_TABLES_FILE}",
    Reason.BAD_NAME: f"Give the table another name, or leave the column out, in TABLES_FILE; {_TABLES_FILE}",
    Reason.UNSUPPORTED_TYPE: f"Find who published it, or leave the column out in TABLES_FILE; {_TABLES_FILE}",
    Reason.SCHEMA_CONFLICT: "Do what the detail says, most often drop the table in BigQuery; then replay. If it was "
    "dropped: take a snapshot five minutes after it was made again, then delete missing rows.",
    Reason.BAD_CHANGE: "Write the row once more at its source, then discard this.",
    Reason.BAD_SEQUENCE: "Find who published it, write the row once more at its source, and discard this.",
    Reason.VALUE_DOES_NOT_FIT: "Correct the row at its source, or edit the dead letter; then replay.",
    Reason.TOO_LARGE: "Make the row smaller at its source, or leave its large columns out and replay.",
    Reason.REFUSED_BY_BIGQUERY: "Correct the row at its source, edit the dead letter, or alter the table; then replay.",
    Reason.TOO_OLD_TO_BE_SAFE: "Write the row once more at its source, then discard this.",
    Reason.RETRIES_EXHAUSTED: "Read the consumer's log of that time, fix the cause, and replay one of them first.",
    Reason.NOT_APPLIED_IN_TIME: "Fix what the consumer's status says of the table, then replay the whole group.",
    Reason.UNEXPLAINED: "Upgrade this service if a newer version sent it; otherwise find who did, and discard this.",
}
OF_OTHER_PROGRAMS: Final = frozenset(reason for reason, text in GUIDANCE.items() if text == _OTHERS)
"""Reasons of messages that are no change batches: no reader has published them."""


def explained_in(reason: Reason) -> str:
    """Return where the documents explain a reason."""
    return f"docs/reference/dead-letters.md#{reason.value}"
