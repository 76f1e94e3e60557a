"""What a micro-batch needs from outside: leases on messages, dead letters, tables, and a writer of row changes.

And what a comparison does: a source, its mirror, and room for the rows of both.

Each method's docstring states the promise that the fake keeps too. TransientError means everywhere: the service is
unavailable, the same call may succeed later; MisconfiguredError: none will until someone acts.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from typing import Final, Literal, Protocol, TypeAlias

import pyarrow as pa

from services.cdc_consumer.core.reconcile.source_table import Mirrored
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.stream.task_totals import TaskTotals
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.contracts.source_rows import Done, Key

GRANT: Final = "grant this identity roles/bigquery.dataEditor on the dataset"
"""The fix where BigQuery says that a right is missing."""


class TableTroubleError(TransientError):
    """One table cannot be written for now, others can: its column is not visible yet, it was just made, no permission.

    Never a reason for a dead letter: the table's messages are deferred. ``code`` stands for what BigQuery
    has said where its words may quote a row. ``suspected``: it may as well be the whole service.
    ``denied``: BigQuery says that this identity lacks a right, perhaps on all tables
    (`DestinationTables.check_rights`).
    """

    fix = "the error says what is wrong with the table"

    def __init__(self, message: str, *, code: str = "", suspected: bool = False, denied: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.suspected = suspected
        self.denied = denied

    @property
    def shown(self) -> str:
        """Return what a log and a status may say of it: of a denial, which quotes no row, all of it and the fix."""
        return f"{str(self).rstrip('.')}; {GRANT}" if self.denied else self.code or str(self)


class NotLabelledError(TableTroubleError):
    """The labels of this table may not be written by this identity, until a person gives it the right."""

    fix = GRANT


class UnansweredError(TransientError):
    """BigQuery gives no answer to a call about a table, for as long as a table may hold up others."""


class DatasetRefusedError(TransientError):
    """BigQuery refuses the usual dataset, or each of its tables: they wait until someone gives the right back.

    The message names the fix.
    """

    fix = GRANT


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
    pending_resync: str = ""
    """Why rows are missing in it; empty: none are known to be."""
    complete_since: int = 0
    """Each row that its source had then, in microseconds, is in it or on its way into it; 0: unknown."""
    deleted_before: int = 0
    """Nothing that is older was left in it at the last check."""

    @property
    def delete_before(self) -> int:
        """Return the time before which rows may be left in it that its source no longer has; 0: there are none."""
        return self.complete_since if self.complete_since > self.deleted_before else 0


class PartlyListedError(TransientError):
    """The mirrors of some datasets cannot be listed now; those of the others are here."""

    def __init__(self, why: str, mirrors: Sequence[Mirror], not_listed: Collection[str]) -> None:
        super().__init__(why)
        self.mirrors = mirrors
        self.not_listed = not_listed


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """A mirror whose missing rows are to be deleted."""

    definition: TableDefinition
    """Its key and our columns; with soft delete all columns that have a type of ours."""
    label: str
    """Of what source table it is a mirror: a digest."""
    soft_delete: bool
    """Whether it keeps deleted rows."""
    complete_since: int
    """As `Mirror.complete_since`."""
    max_staleness: timedelta = timedelta(0)
    """How long what was written may be hidden from queries."""
    read_since: int = 0
    """A time before any row was read of the snapshot by which it is complete; 0: `complete_since` is one."""
    dead_letters_until: int = 0
    """Until when changes of its source table may have become dead letters, in microseconds; 0: none is known of."""
    history: TableDefinition | None = None
    """The history that is kept of the same source table beside it: as much of it as the end of a row needs."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a mirror has and does not keep as deleted; ``older``: from before a time."""

    older: int
    rows: int


RECREATED: Final = "table_made_anew"
"""Why a table is pending resync that was dropped and made again while it was mirrored; stored in its label."""
ROWS_TOO_OLD: Final = "snapshot_rows_too_old"
"""Why a mirror needs one that lacks rows of a snapshot: they came too late to be applied."""
RESYNC: Final = (
    "python -m services.spanner_reader snapshot TABLE; of a Bigtable table python -m services.bigtable_reader snapshot"
)
"""The commands that take a snapshot of a table again."""
MAKE_AGAIN: Final = (
    "drop the table in BigQuery, and take a snapshot five minutes (CLOCK_MARGIN) after it was made again"
)
"""What ends what BigQuery can do nothing about: an earlier snapshot does not make the new table complete."""
MASKS_CHANGED: Final = "masks_changed"
"""Why a mirror needs one some of whose rows were written with another mask key, or other masks or names of columns."""
LEFT_OUT: Final = "mirror_left_out"
"""Why a mirror needs one whose changes went to a history alone for a while."""


class Waiting(Protocol):
    """Called whenever a call has failed and is to be tried again: the task is alive."""

    def __call__(self, table: str = "", why: str = "") -> None:
        """Say so; and where it is one table's call, of which table and what was said, in words fit for a log."""


class MessageLeases(Protocol):
    """The messages that this process holds, by their ack ids. Each call returns once Pub/Sub has taken it."""

    def keeping(self, ack_ids: Sequence[str]) -> AbstractContextManager[None]:
        """Extend these leases while the block runs, except those acked, released or deferred meanwhile.

        The first extension goes out before the block begins; nothing is extended once it has ended.
        """

    def ack(self, ack_ids: Sequence[str]) -> None:
        """Say that these messages are done: Pub/Sub may forget them. TransientError if Pub/Sub is unavailable."""

    def release(self, ack_ids: Sequence[str]) -> None:
        """Let these messages be delivered again at once. TransientError if Pub/Sub is unavailable."""

    def defer(self, ack_ids: Sequence[str], delay: timedelta) -> None:
        """Let these messages come again after ``delay`` (600 s at most). TransientError if Pub/Sub is unavailable."""


class CrashCounts(Protocol):
    """How many processes in a row have crashed while they handled a suspected message; a crash does not erase it."""

    def read_counts(self, messages: Sequence[str]) -> Sequence[int] | None:
        """Return that number of each, 0 for an unknown message; None if crashes are not counted."""

    def set_counts(self, messages: Sequence[str], crashes: int) -> None:
        """Keep that number for each from now on, whatever ends this process; 0 is to forget these messages."""


class PoisonLimit(Protocol):
    """How much poison becomes dead letters before the query has to stop."""

    def judge(self, seen: TaskTotals) -> None:
        """Return if so much may be dead-lettered. MisconfiguredError: the limit has tripped.

        TransientError: the driver, which counts for all tasks, does not answer.
        """

    def remember(self, seen: TaskTotals) -> None:
        """Count this in place of what was judged last."""


class SharedPoisonLimit(Protocol):
    """The same for several processes, each of which has a number."""

    def judge(self, seen: TaskTotals, process: int) -> None:
        """Return if so much may be dead-lettered; until it is remembered, it counts for all others."""

    def remember(self, seen: TaskTotals, process: int) -> None:
        """Count this in place of what was judged last."""

    def ended(self, process: int) -> None:
        """Count what was judged last, if it has not been remembered: that process may have dead-lettered it."""


class DurableBytes(Protocol):
    """A few bytes that outlive a process, for the one that comes after it."""

    def read(self) -> bytes | None:
        """Return what was written last; None if that is long ago, or cannot be read."""

    def write(self, data: bytes) -> None:
        """Keep this in place of what was kept before; nothing is raised if that cannot be done."""


class DeadLetters(Protocol):
    """Where poison records are kept."""

    def keep(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Return once all are durable. TransientError: perhaps some are and some are not; keep all again."""


class DestinationTables(Protocol):
    """The BigQuery tables that are written."""

    def ensure(self, definition: TableDefinition) -> TableDefinition:
        """Make the table, or add the columns it lacks; return it as it is in BigQuery, which may have more columns.

        A history's view is brought up to date with it; a ``max_staleness`` that is given is set. A mirror in whose
        stead a history alone is kept says from then on that it is pending resync (`LEFT_OUT`), as does one whose rows
        were masked or named in another way (`MASKS_CHANGED`). A history keeps its changes as long as ``keep`` says.
        Answers from memory once a definition is known to fit. Where the table has a column with another type, its
        values have another one beside it (`beside`). PoisonRecordError (SCHEMA_CONFLICT) where the table has another
        key, or a column of another type that can have none beside it. TableTroubleError where this one table is
        refused, has no key at all, is of another source table, or is in a dataset that is not there (MisconfiguredError
        if that is the usual one) or is refused too (DatasetRefusedError if that is the usual one).
        """

    def asked_ahead(self, definitions: Iterable[TableDefinition]) -> AbstractContextManager[None]:
        """Ask BigQuery about tables that are not known, a few at a time. Within the block call `ensure`, in this order.

        `ensure` then has less to wait for, and a few tables without an answer hold up others no longer than one does.
        Several definitions of one table count as one.
        """

    def complete(self, definition: TableDefinition, since: int, read_since: int) -> None:
        """Let a mirror say that each row that its source had at a time (in microseconds) is in it, or on its way.

        An earlier time than the one that it says changes nothing; neither does a snapshot that may have been read, by
        ``read_since``, before the table was made.
        """

    def note_dead_letters(self, name: str, dataset: str, at: int) -> None:
        """Let a mirror say that changes of its source table have become dead letters until then (in microseconds).

        Or until somewhat later. ``dataset`` may be empty: the usual one. Nothing, where there is no mirror of that
        name; NotLabelledError where its labels may not be written, TransientError or TableTroubleError where they
        cannot be written now.
        """

    def set_pending_resync(self, definition: TableDefinition, newest: int) -> None:
        """Let a mirror say that it lacks rows of a snapshot (`ROWS_TOO_OLD`), read at ``newest`` (µs) at the latest.

        It says so, and is complete since no time, until a snapshot that was read in a later hour is complete. Nothing,
        where one that was read later is already. NotLabelledError where its labels may not be written, TransientError
        or TableTroubleError where they cannot be written now.
        """

    def check_rights(self, definition: TableDefinition) -> None:
        """Raise DatasetRefusedError if this identity may write to no table of the usual dataset.

        Asked after BigQuery has refused this table for want of a right. Nothing is raised if this identity may write
        to it or to another one, nor for a table of another dataset. TransientError where BigQuery gives no answer.
        """

    def forget(self, table: str) -> None:
        """Inspect the table with this identity at its next `ensure`: another program has changed or dropped it."""


class Heard(Enum):
    """What BigQuery has said of an append in a time."""

    ALL = auto()
    """Every row has its answer."""
    SOME = auto()
    """Answers have come, or nothing has been sent that BigQuery could answer; more are to come."""
    NOTHING = auto()
    """Rows have been sent, and no answer at all has come."""


class PendingAppend(Protocol):
    """Rows on their way into a table."""

    def hear(self, within: timedelta) -> Heard:
        """Take in what answers come within a time, and return at once where every row has its own.

        After ALL, `refused` does not wait. What has no answer stays under way: another call goes on waiting for it.
        Raises what `refused` raises.
        """

    def refused(self) -> Sequence[RowError]:
        """Wait until every row is either durable in BigQuery or refused for itself; return those refused.

        TransientError or TableTroubleError: some rows have no answer yet. Calling again sends those once more, and
        only those; what was accepted or refused stays so.
        """

    def leave(self) -> None:
        """Wait no more for answers: rows without one are written, now or later, or not. Not to be called again."""


class CdcWriter(Protocol):
    """Rows into BigQuery tables, at least once.

    Into mirrors they are upserts and deletes, and the change sequence number makes repeats harmless; into histories
    they are appended, and the view over those drops repeats.
    """

    def append(self, definition: TableDefinition, rows: pa.Table) -> PendingAppend:
        """Start to append rows (the definition's columns and pseudo-columns) and do not wait for the answers.

        Never raises an error of the service: `PendingAppend.refused` reports it.
        """


class RowBuffer(Protocol):
    """Rows kept outside memory, in the order in which they came."""

    @property
    def rows(self) -> int:
        """Return how many there are."""

    def add(self, rows: pa.Table) -> None:
        """Take some rows, all of one schema."""

    def pages(self) -> Iterator[pa.Table]:
        """Yield all rows, some at a time; then no more are added."""

    def clear(self) -> None:
        """Forget all rows."""


class BytesLimitError(MisconfiguredError):
    """A query was not run, because BigQuery would bill more bytes for it than it may; the message names the figure."""


@dataclass(frozen=True, slots=True)
class QuerySpend:
    """What queries have cost until now."""

    queries: int = 0
    bytes_billed: int = 0


@dataclass(frozen=True, slots=True)
class QueryEstimate:
    """How many bytes BigQuery expects to read, before anything is read."""

    read: int
    """By the query that reads a mirror."""
    again: int
    """By each query that reads it once more: a recheck, or the count of what is left."""


@dataclass(frozen=True, slots=True)
class OtherRows:
    """The rows of a mirror that are not from before a time."""

    rows: int
    """How many rows the mirror has, those from before that time included."""
    some: pa.Table
    """A hundred of the others at most."""


Recorded: TypeAlias = Literal["recorded", "still pending", "early", "not labelled"]


class MirrorRows(Protocol):
    """The rows of mirrors as queries show them. Times are in microseconds."""

    def older(self, mirror: MirrorTable, before: int, into: RowBuffer) -> OtherRows:
        """Put the rows from before a time, or of no known one, which are not kept as deleted, into a buffer.

        Return some of the other rows, and how many rows there are. One query answers for all of it: the rows are as
        they are at one moment, with the definition's columns in their wire types. TransientError; BytesLimitError.
        """

    def count_older(self, mirror: MirrorTable, before: int) -> int:
        """Count the rows from before a time. TransientError; BytesLimitError."""

    def record_deletion(self, mirror: MirrorTable, before: int, announced_by: int) -> Recorded:
        """Label the mirror: nothing from before a time is in it. End the request of one recreated or left out.

        ``still pending``: the mirror is complete since another time, so the request stays.
        Writes nothing if the mirror was recreated or left out, and was announced as complete only after
        ``announced_by``, which is ``early``: rows of the snapshot may still be on their way. Writes nothing, too, where
        labels may not be written, which is ``not labelled``.
        """


class MirrorStates(Protocol):
    """What the consumer knows of its mirrors."""

    def mirrors(self) -> Sequence[Mirror]:
        """Return the mirrors as they were last listed."""

    def troubled(self) -> Collection[str]:
        """Return the tables whose changes wait or are refused, and those that are gone."""

    def oldest_outstanding_lately(self) -> int | None:
        """Return when the oldest message was published that any process has, or had lately, in microseconds.

        Lately, because between two tasks none is, whatever waits in the subscription.
        """

    def deletion_refused(self, table: str, why: str) -> None:
        """Store why missing rows of a table are not deleted; empty: they are."""


class RemoteSourceRows(Protocol):
    """The rows of a source, as `shared.contracts.source_rows`."""

    def tables(self) -> Sequence[str]:
        """Return the names of the tables that are mirrored."""

    def describe(self, table: str) -> tuple[bytes, Done]:
        """Return a change batch without changes, and the time it is of."""

    def read_keys(self, table: str, keys: Sequence[Key]) -> tuple[Sequence[bytes], Done]:
        """Return the change batches of the rows that there are under some keys now."""


class SourceTables(RemoteSourceRows, Protocol):
    """The same, whole tables of it. One request at a time: what is left of a reading then is lost."""

    def read(self, table: str, at: str | None = None) -> Iterator[bytes | Done]:
        """Yield the change batches of all rows, and at last the time they were read at."""

    def publish(self, table: str, keys: Sequence[Key], above: str = "") -> Done:
        """Let the topic say what is true of some keys, by a sequence above another; return once it has it."""


@dataclass(frozen=True, slots=True)
class FoundMirror:
    """A mirror as it is in BigQuery."""

    path: str
    lacking: frozenset[str] = frozenset()
    """Columns of the source that it does not have yet: as good as NULL."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Columns of the source that it has under another name (`beside`)."""
    left_out: tuple[str, ...] = ()
    """Columns that only it has: there is nothing to compare them with."""
    staleness: timedelta = timedelta()
    """Its answers may be of so long ago."""
    bytes: int = 0
    soft_delete: bool = False
    """Whether it has rows that are kept though they were deleted, which are no rows here."""


@dataclass(frozen=True, slots=True)
class MirrorProgress:
    """How far a mirror is."""

    newest: str
    """The highest change sequence number that is applied; empty where none is."""
    state: str
    """Another text as soon as anything else is applied."""


class MirrorReading(Protocol):
    """One reading of a whole mirror."""

    def pages(self) -> Iterator[pa.Table]:
        """Yield all rows (`Mirrored.schema`), some at a time, as they are at one moment: that of the first call.

        However often it is called, the mirror is read by one query. TransientError; BytesLimitError.
        """


class MirrorTables(Protocol):
    """The mirrors, asked of BigQuery. TransientError where it does not answer, or not for this table.

    BytesLimitError where a query would be billed for more bytes than may be.
    """

    def find(self, table: Mirrored) -> FoundMirror:
        """Return the mirror of a source table; MisconfiguredError where none can be compared with it."""

    def reading(self, table: Mirrored, mirror: FoundMirror) -> AbstractContextManager[MirrorReading]:
        """Read a mirror within the block; nothing of the reading is left after it."""

    def recheck(
        self, table: Mirrored, mirror: FoundMirror, keys: pa.Table, until: str
    ) -> tuple[pa.Table, MirrorProgress]:
        """Return the rows that there are under some keys, in key columns without NULL, and how far the mirror is.

        Both by one query, if all keys fit into one request. How far it is goes by the change sequence numbers up to
        one (and as long as that): what lies beyond it, or has another form, says nothing of that.
        """

    def estimate(self, table: Mirrored, mirror: FoundMirror) -> QueryEstimate:
        """Return what BigQuery expects to read; nothing is read."""

    def spent(self) -> QuerySpend:
        """Return what all queries until now have cost."""


class RowBuckets(Protocol):
    """Rows kept outside memory, in buckets by their keys."""

    def add(self, rows: pa.Table) -> None:
        """Take some rows."""

    def finish(self) -> None:
        """Say that those were all."""

    def read(self, bucket: int) -> pa.Table:
        """Return the rows of a bucket."""

    def forget(self, bucket: int) -> None:
        """Give the room of a bucket back."""
