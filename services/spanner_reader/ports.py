"""What the reader needs from outside. The docstrings are promises that the fakes keep too."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.core.schema.shapes import (
    SchemaInspection,
    SchemaObservation,
    SpannerResyncCause,
    SpannerResyncRequest,
    TableShape,
)
from services.spanner_reader.core.snapshot.snapshot import KeyText, SnapshotRange, SnapshotSurvey
from services.spanner_reader.core.stream.partitions import NewPartition, SpannerPartition, SpannerPartitionSurvey
from services.spanner_reader.core.stream.records import (
    PartitionToken,
    SpannerColumnType,
    SpannerStreamQuery,
    StreamRecord,
)
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds


class StartPastEndError(MisconfiguredError):
    """The start of a query lies behind the end of its partition: what comes next is in the partition's children."""


class StartTooOldError(MisconfiguredError):
    """The start of a query is older than what the change stream keeps."""


class DatabaseChangeStream(Protocol):
    """A change stream that can be queried, any number of partitions at once."""

    def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a partition from the start asked for, in commit order; inclusive at both ends.

        What has come by then comes together, never none, so that it is handed on together.
        Ends without an error only where Spanner says that the query is complete: after child records, or at the end
        asked for. TransientError for whatever may work again from a start not earlier than what was read;
        StartTooOldError for a position that cannot be read any more, StartPastEndError for one that the partition
        never came to. Closing the generator ends the query at once.
        """


@dataclass(frozen=True, slots=True)
class SpannerProgress:
    """How far an owned partition has been read and confirmed."""

    partition: SpannerPartition
    watermark: Nanoseconds
    load: int = 0
    """Records per second."""


class TokenPartitionStore(Protocol):
    """Which partitions exist, how far each has been read, and who reads it. One owner's view of it.

    Every write is one transaction. A claim raises the partition's fencing number, and a write in the name of an
    older one changes nothing. All time in it is Spanner's. TransientError: nothing is known of the outcome, and the
    same call may be made again. A call whose caller is cancelled is over within a second, with any outcome.
    """

    async def add_root(self, start: Nanoseconds, end: Nanoseconds | None) -> bool:
        """Remember the stream's first query, unless any partition is known; return whether none was.

        MisconfiguredError if the partitions that are known are those of another change stream.
        """

    async def survey(self) -> SpannerPartitionSurvey:
        """Return all partitions that are not finished."""

    async def claim(self, tokens: Collection[PartitionToken], end: Nanoseconds | None) -> Sequence[SpannerPartition]:
        """Take those of the partitions that are still due and free; return them as they are now, with our lease."""

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases (or give them back); return the partitions that are not ours any more.

        An earlier watermark than the saved one changes nothing.
        """

    async def finish(
        self, progress: SpannerProgress, children: Sequence[NewPartition]
    ) -> Collection[PartitionToken] | None:
        """Remember the children that are not known yet and mark the partition FINISHED, both or neither.

        Return the children that were new; None, and nothing is changed, if the partition is not ours any more.
        Finishing again what we have finished returns no children.
        """

    async def attend(self, *, leave: bool = False) -> None:
        """Be counted among the readers for as long as a lease lasts; or not any more."""

    async def forget_finished(self, keep: timedelta) -> int:
        """Delete partitions that were finished longer than ``keep`` ago, so many at a time; return how many.

        One that an unfinished partition names as its parent stays: without it that one would never be due.
        """


@dataclass(frozen=True, slots=True)
class WatchedTable:
    """A table that the stream watches: its key columns in key order, and its watched columns as records name them."""

    name: str
    primary_key: tuple[str, ...]
    column_types: tuple[SpannerColumnType, ...]
    value_capture_type: str
    descending: frozenset[str] = frozenset()
    """Key columns that are in descending order."""


@dataclass(frozen=True, slots=True)
class CatalogInspection:
    """All tables of the database at one time, with the columns of those that the stream watches."""

    shapes: SchemaInspection
    watched: tuple[WatchedTable, ...]
    quote: str = "`"
    """What the database's SQL has around a name."""
    retention: timedelta | None = None
    """For how long the stream keeps what is not read; None where that was not asked."""
    leaves_out: str | None = None
    """Which changes the stream keeps out of itself, and the statement that fixes it: none of it may be read so."""
    may_leave_out: str | None = None
    """The statement that forbids transactions to ask for that; None where they cannot."""


class DatabaseCatalog(Protocol):
    """What the database says of its tables and of the stream."""

    async def inspect(self) -> CatalogInspection:
        """Return the tables as they are now; MisconfiguredError where the stream is not there any more."""

    async def inspect_at(self, at: Nanoseconds) -> CatalogInspection | None:
        """Return the tables as they were; None where Spanner does not remember that any more."""

    async def inspect_tables(
        self, names: Collection[str], at: Nanoseconds | None = None
    ) -> tuple[Nanoseconds, Sequence[WatchedTable]]:
        """Return those of some tables that the stream watches, as they are now or were at a time, and the time of that.

        One query, whatever the number of tables. NotReadableError where Spanner no longer keeps that version.
        """


@dataclass(frozen=True, slots=True)
class SchemaFindings:
    """What an inspection has found, and all tables that are pending resync, those found before among them."""

    findings: tuple[SpannerResyncCause, ...] = ()
    left: tuple[str, ...] = ()
    """Tables that are not mirrored any more."""
    requests: tuple[SpannerResyncRequest, ...] = ()
    compared_since: Nanoseconds | None = None
    """As `SchemaInspection.compared_since`: column lists of records from before are worth comparing."""
    counted: bool = True
    """False where a newer inspection was there, so that nothing of this one is remembered."""
    tables: Mapping[str, TableShape] = field(default_factory=dict)
    """As they are remembered now."""


class ShapeStore(Protocol):
    """What the tables looked like at the last inspection, and which of them are pending resync; kept for all readers.

    Every write is one transaction. TransientError: nothing is known of the outcome, and the call may be made again. A
    call whose caller is cancelled is over within a second, with any outcome.
    """

    async def compare(self, inspection: SchemaInspection, observations: Sequence[SchemaObservation]) -> SchemaFindings:
        """Compare an inspection with the one before, remember it, and request resyncs for what was found.

        What is found is returned once, to one of all readers. An inspection that is not newer than the one that is
        remembered finds nothing and changes nothing.
        """

    async def topic_lost(self, after: Nanoseconds, before: Nanoseconds) -> Sequence[SpannerResyncRequest]:
        """Request a resync of all watched tables, for changes that were published and lost; return the requests."""

    async def read(self) -> tuple[SchemaInspection | None, Sequence[SpannerResyncRequest]]:
        """Return what is remembered, and the tables that are pending resync."""

    async def resync_requests(self) -> Sequence[SpannerResyncRequest]:
        """Return the tables that are pending resync."""

    async def synced(self, table: str) -> bool:
        """Delete the resync request of a table whose rows came again; return whether it had one.

        MisconfiguredError, and it stays, while the table is paused.
        """

    async def healed(self, table: str, since: Nanoseconds) -> bool:
        """Delete the resync request of a table all of whose rows came as of a time; return whether it had one.

        A request for what may have happened at that time or later stays as it is.
        """


class PauseStore(Protocol):
    """What is paused: the stream as a whole (None), and tables, whose pause is a resync request; kept for all readers.

    Every write is one transaction. TransientError: nothing is known of the outcome, and the call may be made again.
    """

    async def read(self) -> Pauses:
        """Return what is paused, with every change of that which was committed up to the time it says."""

    async def pause(self, table: str | None) -> bool:
        """Pause the stream or a table from now on; return whether it was not paused.

        MisconfiguredError for a table that no reader has seen in the stream: nothing would hold its resync request.
        """

    async def resume(self, table: str | None) -> bool:
        """Let the stream or a table go on from now on; return whether it was paused. Its resync request stays."""


class NotReadableError(MisconfiguredError):
    """A table cannot be read at a time: that is too long ago, or the table was another then, or is gone."""


class RowsAtTimestamp(Protocol):
    """The rows of tables as they were at a time."""

    @property
    def in_key_order(self) -> bool:
        """Tell whether rows come in key order, so that a reading can go on behind any of them."""

    def read(
        self,
        table: WatchedTable,
        at: Nanoseconds,
        *,
        after: KeyText | None,
        until: KeyText | None,
        in_key_order: bool = False,
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield rows, some at a time: those behind ``after`` up to and with ``until``, None being the ends.

        With ``in_key_order`` they come so even where they else would not.
        A row is its wire values in the order of the table's columns. NotReadableError where another time may do,
        TransientError for what may work again. Closing the generator ends the reading.
        """

    def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield those of the rows of some keys that there were, as `read` does; each once, and in no order."""

    async def cuts(self, table: WatchedTable, at: Nanoseconds) -> Sequence[KeyText]:
        """Return keys, in key order, that cut a table into parts worth reading by themselves; none for a small one."""


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """How far an owned range has been read and confirmed."""

    range: SnapshotRange
    last: KeyText | None
    rows: int
    """How many in all, repeated ones too."""
    read_at: Nanoseconds
    done: bool = False


class DatabaseSnapshotStore(Protocol):
    """Which ranges of which tables are to be read as snapshots, how far each has come, and who reads it.

    Every write is one transaction, conditional on the claim's fencing number. TransientError: nothing is known of the
    outcome, and the call may be made again. A call whose caller is cancelled is over within a second.
    """

    async def request(self, tables: Sequence[str], at: Nanoseconds, *, again: bool) -> Sequence[str]:
        """Ask for a snapshot of each table, to be read at a time; return those tables for which that was new.

        With ``again``, what an earlier snapshot of the table has left is given up for it, and it is read no earlier
        than that was. Without, a table that has one keeps it, except that one no reader has begun is read at the later
        of both times.
        """

    async def request_keys(self, table: str, at: Nanoseconds, after: KeyText | None, until: KeyText | None) -> None:
        """Ask for some keys of a table, beside what else is read of it; earlier ones that are read are forgotten."""

    async def request_unless_since(self, table: str, at: Nanoseconds, since: Nanoseconds) -> bool:
        """Ask for a snapshot of a table again, unless one is read just now or was begun after a time; return whether.

        Of several that ask at once, one does. One that was given up counts, too: an operator wanted it so.
        """

    async def cancel(self, tables: Sequence[str]) -> Sequence[str]:
        """Give up what is left of the tables' snapshots; return the tables of which something was left."""

    async def give_up(self, owned: SnapshotRange) -> bool:
        """Give up what is left of the snapshot that a range is of; return whether the range was still ours.

        Nothing is changed if it was not, and never what was asked for beside that snapshot or since.
        """

    async def now(self) -> Nanoseconds:
        """Return Spanner's time, as a survey does."""

    async def survey(self) -> SnapshotSurvey:
        """Return all ranges, those that are done too."""

    async def merge(self, table: str) -> None:
        """Keep one range of each snapshot of a table of which nothing is left to read, as `merged` says."""

    async def claim(self, places: Collection[tuple[str, int]]) -> Sequence[SnapshotRange]:
        """Take those of the ranges that are still free and not done; return them with our lease."""

    async def cut(self, owned: SnapshotRange, keys: Sequence[KeyText]) -> SnapshotRange | None:
        """Cut a range at keys that lie in it, in key order; return its first part, which stays ours.

        The other parts are free. None, and nothing is changed, if the range is not ours any more.
        """

    async def save(self, progress: Sequence[RangeProgress], *, release: bool = False) -> Collection[tuple[str, int]]:
        """Save how far ranges have come and renew the leases, or give them back; return those not ours any more."""
