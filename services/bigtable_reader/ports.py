"""What the reader needs from outside. The docstrings are promises that the fakes keep too."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from services.bigtable_reader.core.changes.images import Row
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, BigtableResyncRequest
from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.snapshot.snapshot import PartProgress, Snapshot, SnapshotPart
from services.bigtable_reader.core.stream.partitions import (
    BigtablePartition,
    BigtablePartitionSurvey,
    BigtableProgress,
    StreamRange,
    StreamRangeId,
)
from services.bigtable_reader.core.stream.records import (
    BigtableStreamQuery,
    Child,
    KeyRange,
    Microseconds,
    StreamRecord,
)
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError


class PositionLostError(MisconfiguredError):
    """The service no longer goes on from a position: it is older than what is kept, or of another life."""


class StreamGoneError(MisconfiguredError):
    """The table no longer has a change stream: what changes until it has one again is in no record."""


class ReadRefusedError(MisconfiguredError):
    """The service does not read these rows: one of them is larger than it hands out, or something stops all reading."""


class ReadRows(NamedTuple):
    """Rows that were read: those that exist, and the keys that are left for another call."""

    found: Mapping[bytes, Row]
    left: Collection[bytes]


class TableChangeStream(Protocol):
    """The change stream of one table; any number of ranges is read at once."""

    async def initial_partitions(self) -> Sequence[KeyRange]:
        """Return the partitions as they are now: together all keys, none twice. TransientError, MisconfiguredError."""

    def read(self, query: BigtableStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a range in the order of the stream, values and changes put together again.

        Those that have come at the same time come together; never none.

        Ends without an error only after a CloseStream, which comes alone and last. TransientError for whatever may
        work again from the last token that was yielded: broken connections, and a stream that has been silent for
        three heartbeats. PositionLostError if nothing can be read from the position. Closing the generator ends the
        call.
        """


class KeyRangePartitionStore(Protocol):
    """Which key ranges the key space is in, how far each has been read, and who reads it. One owner's view of it.

    Key ranges are disjoint and cover the key space, at all times. A claim raises a partition's fence, and a write in
    the name of an older one changes nothing. TransientError: nothing is known of the outcome, and the call may be made
    again.
    """

    async def begin(self, ranges: Sequence[KeyRange], start: Microseconds, *, mirrored: bool = True) -> bool:
        """Remember the first key ranges, unless any are known; return whether none were.

        Where the table was read under another name before, changes may lie in between: it is resynced if mirrored.
        MisconfiguredError if those that are known are of another table, or while readers of this table are there under
        another stream's name.
        """

    async def survey(self) -> BigtablePartitionSurvey:
        """Return all key ranges, and what their readers have saved; this owner counts as a reader from now on."""

    async def claim(self, stream_ranges: Collection[StreamRange]) -> Sequence[BigtablePartition]:
        """Take those that are still free; return them with our fence, their position and their minimum version.

        Free is what no reader has, what surveys showed unchanged for as long as a lease lasts, and what is in our own
        name without our knowing (a claim whose answer never arrived): name none that we hold. Those of which nothing
        is known are left out, TransientError only if that is all of them.
        """

    async def advance(
        self, progress: Sequence[BigtableProgress], *, release: bool = False
    ) -> Collection[StreamRangeId]:
        """Save how far partitions are confirmed, their reserved upper limits, and renew (or release) their leases.

        Return those that are no longer ours. A reserved upper limit never falls, nor does a low watermark. But the
        limit of what is released, or ended, is the one that is named, for no further version is made.
        """

    async def close(self, progress: BigtableProgress, children: Sequence[Child]) -> bool:
        """End a partition: children carry on above the reserved upper limit; False, and no change, if it is not ours.

        One write on the partition's own row decides; the reader that tends next finishes what a crash leaves behind.
        Closing again what we have closed changes nothing and returns True. Keys of the partition that no child names
        wait for a token that may not come, and are read from a time in the end.
        """

    async def wait_for(self, progress: BigtableProgress, target: KeyRange) -> bool:
        """Let a partition, with its tokens, wait for the rest of what it is only a part of; False if it is not ours.

        It is put together with what else waits for that target, or is read as it is once more when it has waited long
        enough. For what has tokens, and a target that reaches beyond it: else ValueError.
        """

    async def tend(self) -> "Tended":
        """Finish what others left behind: roll closed partitions forward, put merged ones together, and reconcile.

        Reconcile: what has waited too long for its merge is read as it is, and what has no token from a time.
        """

    async def restart_from_time(self, partition: BigtablePartition) -> BigtablePartition | None:
        """Give up a partition's tokens for the time of its low watermark less an allowance, within the retention.

        Return it with its new position; None, and nothing changed, if it is no longer ours. For what the
        reconciler made only, and PositionLostError if it has been restarted already: then nothing is left to try.
        """

    async def seen(self) -> InspectedTable | None:
        """Return what was last seen of the source table, by any reader; None where nothing was. TransientError."""

    async def remember(self, seen: InspectedTable) -> None:
        """Keep it for the next reader; of a stream that is not known nothing is kept. TransientError.

        What is read from a time from now on is within the retention that was seen.
        """

    async def pause(self) -> bool:
        """Pause the stream for all readers until it is resumed; return whether it was not paused. Surveys report it.

        MisconfiguredError where the stream is not known. TransientError: nothing is known of the outcome.
        """

    async def resume(self) -> bool:
        """Let the stream go on where it was; return whether it was paused.

        What waits for the rest of a merge, or for a token, waits from now on.
        """

    async def leave(self) -> None:
        """Be counted among the readers no more."""


@dataclass(frozen=True, slots=True)
class Tended:
    """What tending, and our own closing, did to the key ranges since it was last asked.

    ``split``: key ranges that ended with more than one child inside them. ``merged``: key ranges put together from
    several. ``reconciled``: key ranges that had waited too long.
    """

    split: int = 0
    merged: int = 0
    reconciled: int = 0


class CurrentRows(Protocol):
    """The table's rows, as the cluster that is read from has them now."""

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        """Return those of the rows that exist, as many as fit into some memory. The reading begins after the call.

        At least one key is not left. TransientError; ReadRefusedError, and another MisconfiguredError.
        """


class ScannedPage(NamedTuple):
    """Rows in the order of their keys, and the key up to which there are no others; None: up to the range's end."""

    rows: Sequence[tuple[bytes, Row]]
    read_to: bytes | None


class Sample(NamedTuple):
    """A row key (empty: the end), and about how many bytes there are before it."""

    row_key: bytes
    bytes_before: int


class TableScan(Protocol):
    """The table's rows in key order, as the cluster that is read from has them now."""

    async def page(self, keys: KeyRange, most: int) -> ScannedPage:
        """Return the first rows of a range that exist, so many at most. The reading begins after the call.

        It gets somewhere, always. TransientError; ReadRefusedError where the first row that is there
        cannot be read, or none can.
        """

    async def first_key(self, keys: KeyRange) -> bytes | None:
        """Return the key of the first row of a range, however large it is; None where there is none. TransientError."""

    async def samples(self) -> Sequence[Sample]:
        """Return keys that cut the table into parts of about the same size, in order. TransientError."""


class TableSnapshotStore(Protocol):
    """The latest snapshot of the table: which parts are to be read, how far each is, and who reads it.

    One owner's view of it. A claim raises a part's fence, and a write in the name of an older one changes nothing.
    TransientError: nothing is known of the outcome, and the call may be made again.
    """

    async def request(self, ranges: Sequence[KeyRange], now: Microseconds, *, again: bool, whole: bool) -> bool:
        """Ask for ranges to be read; return whether that was new.

        What an earlier snapshot has left is given up for the ``whole`` of the table; some keys are read beside it. Not
        ``again``: nothing happens where all rows were asked for before.
        """

    async def request_unless_after(self, ranges: Sequence[KeyRange], now: Microseconds, run: int) -> bool:
        """Ask for all rows again; return whether that was new.

        Nothing happens where they were asked for after the snapshot of that number, also if that was given up.
        """

    async def take_over(self, ranges: Sequence[KeyRange], now: Microseconds) -> bool:
        """Request these ranges again where a reader had requested them that watched something else; return whether so.

        What was read to its end, and announced, is left alone.
        """

    async def cancel(self) -> bool:
        """Give up what is left to read; return whether anything was."""

    async def survey(self) -> Snapshot | None:
        """Return the latest snapshot; None where there never was one."""

    async def claim(self, numbers: Sequence[int], most: int) -> tuple[int, Sequence[SnapshotPart]]:
        """Take the first few of these parts that are still free and not done; return the run and them, with our fence.

        Free is what no reader has, and what surveys showed unchanged for as long as a lease lasts.
        """

    async def cut(self, run: int, owned: SnapshotPart, parts: Sequence[tuple[KeyRange, int]]) -> SnapshotPart | None:
        """Cut a part into ranges, each to be above a number; return the first, which stays ours. None: it is not ours.

        Cutting again what we have cut changes nothing.
        """

    async def save(self, progress: Sequence[PartProgress], *, release: bool = False) -> Collection[int]:
        """Save how far parts are and renew their leases, or release them; return those that are no longer ours."""

    async def remember_announced(self, run: int) -> None:
        """Remember that the end of a snapshot was published."""


class ResyncStore(Protocol):
    """What was found that no record contains, until all rows have come again. All readers of a stream have one.

    Nothing is kept of a stream that is not known. ``run``: the latest snapshot that had been asked for when it was
    found. TransientError: nothing is known of the outcome, and the call may be made again.
    """

    async def read(self) -> BigtableResyncRequest | None:
        """Return what was found; None where nothing is to be fixed. Surveys report it, too."""

    async def compare(
        self,
        known: Collection[str] | None,
        found: Collection[str],
        is_watched: Callable[[str], bool],
        now: Microseconds,
        run: int,
        watching: Watching,
    ) -> None:
        """Request a resync where watched families are no longer there, or more is watched than was; remember both.

        Where there is no mirror, only what is watched is remembered. Families are compared with those that were
        remembered here, by whomever; where none were, with those that are known.
        """

    async def request(self, kind: BigtableResyncKind, now: Microseconds, run: int) -> None:
        """Request a resync of the table; from then on, where it is requested already, until a snapshot after ``run``.

        Where the store takes no conditional write (its app profile allows none), the next comparison does it.
        """

    async def watching(self) -> Watching | None:
        """Return what the reader watched that compared last; None where none has."""

    async def heal(self, run: int, watching: str) -> bool:
        """Delete what was found before a snapshot was asked for that is complete; return whether anything was.

        ``watching``: the digest of what that has brought. What is found of something else stays.
        """

    async def synced(self, resync_request: BigtableResyncRequest) -> bool:
        """Remove what a request has shown, and nothing that was found since; return whether anything was left of it."""


class DeadLetterSink(Protocol):
    """Keeps what can never be applied."""

    async def keep(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Return when every dead letter is confirmed."""


class TableCatalog(Protocol):
    """What the instance says of the table."""

    async def seen(self) -> InspectedTable:
        """Return what no record contains. TransientError; StreamGoneError where it no longer has a change stream."""


class VersionClock(Protocol):
    """This machine's clock: for versions, which only have to rise, and for what is shown."""

    def now(self) -> Microseconds:
        """Return the time."""
