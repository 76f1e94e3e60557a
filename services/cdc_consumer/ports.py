"""What a micro-batch needs from outside: leases on messages, dead letters, tables, and a writer of row changes.

Each method's docstring states the promise that the fake keeps too. TransientError means everywhere: the service is
away, the same call may succeed later; MisconfiguredError: none will until someone acts.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import pyarrow as pa

from services.cdc_consumer.core.tables import TableDefinition
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason


class TableTroubleError(TransientError):
    """One table cannot be written for now, others can: its column is not visible yet, it was just made, no permission.

    Never a reason for a dead letter: the table's messages are put off and come again. ``code`` stands for what BigQuery
    has said where its words may quote a row. ``suspected``: it may as well be the whole service that is away.
    """

    def __init__(self, message: str, *, code: str = "", suspected: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.suspected = suspected

    @property
    def shown(self) -> str:
        """Return what a log may say of it."""
        return self.code or str(self)


@dataclass(frozen=True, slots=True)
class RowError:
    """A row that BigQuery does not take, by its index among those handed over; ``detail`` may quote it: no log."""

    index: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Mirror:
    """A table that Millrace keeps, as it was found."""

    table: str
    made_at: int
    """Unix time in microseconds."""
    needs_resync: str = ""
    """Why rows are missing in it; empty: none are known to be."""


MADE_ANEW: Final = "table_made_anew"
"""Why a table needs a re-sync that was dropped and made again while it was mirrored."""


class Waiting(Protocol):
    """Called whenever a call has failed and is to be tried again: the task is alive."""

    def __call__(self, table: str = "", why: str = "") -> None:
        """Say so; and where it is one table's call, of which table and what was said, in words fit for a log."""


class Leases(Protocol):
    """The messages that this process holds, by their ack ids. Each call returns once Pub/Sub has taken it."""

    def keeping(self, ack_ids: Sequence[str]) -> AbstractContextManager[None]:
        """Extend these leases while the block runs, except those acked, given back or put off meanwhile.

        The first extension goes out before the block begins; nothing is extended any more once it has ended.
        """

    def ack(self, ack_ids: Sequence[str]) -> None:
        """Say that these messages are done: Pub/Sub may forget them. TransientError if Pub/Sub is away."""

    def give_back(self, ack_ids: Sequence[str]) -> None:
        """Let these messages be delivered again at once. TransientError if Pub/Sub is away."""

    def put_off(self, ack_ids: Sequence[str], delay: timedelta) -> None:
        """Let these messages be delivered again after ``delay`` (600 s at most). TransientError if Pub/Sub is away."""


class Deaths(Protocol):
    """How many processes in a row have ended while they handled a message alone; kept where no such end reaches."""

    def counted(self, message: str) -> int | None:
        """Return that number, 0 for a message never heard of; None if nobody can tell."""

    def count(self, message: str, deaths: int) -> None:
        """Remember that number from now on, whatever ends this process; 0 is to forget the message."""


class Kept(Protocol):
    """A few bytes that outlive a process, for the one that comes after it."""

    def read(self) -> bytes | None:
        """Return what was written last; None if that is long ago, or nobody can tell."""

    def write(self, data: bytes) -> None:
        """Keep this in place of what was kept before; nothing is raised if that cannot be done."""


class DeadLetters(Protocol):
    """Where poison records are kept."""

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Return once every letter is durable. TransientError: perhaps some are and some are not; keep all again."""


class Tables(Protocol):
    """The BigQuery tables that are written."""

    def ensure(self, definition: TableDefinition) -> TableDefinition:
        """Make the table, or add the columns it lacks; return it as it is in BigQuery, which may have more columns.

        A history's view is brought up to date with it; a ``max_staleness`` that is given is set. Answers from memory
        once a definition is known to fit. PoisonRecordError (SCHEMA_CONFLICT) where the table has another key, or a
        column of this name with another type. TableTroubleError where this one table is refused, has no key at all,
        is of another source table, or is in a dataset that is not there (MisconfiguredError if that is the usual one).
        """

    def forget(self, table: str) -> None:
        """Look again at the next `ensure` of the table with this identity: somebody else has changed or dropped it."""


class Appending(Protocol):
    """Rows on their way into a table."""

    def refused(self) -> Sequence[RowError]:
        """Wait until every row is either durable in BigQuery or refused for itself; return those refused.

        TransientError or TableTroubleError: some rows have no answer yet. Calling again sends those once more, and
        only those; what was accepted or refused stays so.
        """


class CdcWriter(Protocol):
    """Rows into BigQuery tables, at least once.

    Into mirrors they are upserts and deletes, and the change sequence number makes repeats harmless; into histories
    they are appended, and the view over those drops repeats.
    """

    def append(self, definition: TableDefinition, rows: pa.Table) -> Appending:
        """Start to append rows (the definition's columns and pseudo-columns) and do not wait for the answers.

        Never raises for the service's sake: what goes wrong is told by `Appending.refused`.
        """
