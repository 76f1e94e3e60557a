"""From messages to typed columns, ready to append; every record that can never be applied is isolated as poison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from services.cdc_consumer.core.tables import TableDefinition
from shared.contracts.change_batch import ChangeBatch
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

MESSAGE: Final = "_millrace_message"
"""Book-keeping column: the row of the message table that a change came in."""
CHANGE: Final = "_millrace_change"
"""Book-keeping column: the change's index in its batch. No source column can be named so (the prefix is reserved)."""


@dataclass(frozen=True, slots=True)
class Poison:
    """A change that can never be applied, or with ``change`` None a whole message. Never holds a row's values."""

    message: int
    change: int | None
    reason: Reason
    detail: str
    table: str = ""
    key: str = ""
    sequence: str = ""
    commit_timestamp: str = ""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of one table and column list.

    ``rows`` holds the definition's columns in their wire types, then ``_CHANGE_TYPE`` and ``_CHANGE_SEQUENCE_NUMBER``
    (text), then the book-keeping columns `MESSAGE` and `CHANGE` (int32).
    """

    definition: TableDefinition
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a table of messages holds. Poison and rows together are every change of every message, each once."""

    tables: Sequence[TableChanges]
    poison: Sequence[Poison]
    batches: Mapping[int, ChangeBatch]
    """The decoded batch of each message that has one, to cut letters out of."""


def decode_messages(messages: pa.Table, now: Nanoseconds) -> Decoded:
    """Return the changes in a table of messages (`MESSAGE_SCHEMA`; only ``data`` is read), column by column.

    A table without any change (a batch that only announces it) is there with no rows. ``now`` decides which upserts
    that are not from the stream are too old to be safe. MisconfiguredError if a message is of a newer format.
    """
    raise NotImplementedError


def conform(rows: pa.Table, definition: TableDefinition) -> pa.Table:
    """Return rows in the columns of a wider definition of their table: what they lack is NULL, book-keeping is left out.

    ValueError if they have a column that the definition lacks or holds as another type: leaving it out loses data.
    """
    raise NotImplementedError
