"""Completes updates that hold only what changed: reads the rows before them, and publishes what follows from these.

One read for each batch of a table, at one time; `core.stream.completion` says why that is enough. Where the rows of
that time cannot be read any more, a mirror gets the rows as they are now, and a history gets reconstructed versions.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import groupby, islice
from typing import Final

import msgspec
import structlog

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.schema.watched_columns import WatchedColumns
from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.app.stream.owned_partition import SpannerOwnedPartition
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.changes import WHOLE_ROW, as_whole, is_whole
from services.spanner_reader.core.stream.completion import (
    Before,
    Completeness,
    CompletionQueue,
    QueuedChange,
    Values,
    base_of,
    by_row,
    completed_change,
    halves,
    names_some,
    needs_read,
    published_again,
    row_as_it_is_now,
    versions,
)
from services.spanner_reader.core.stream.records import DataChangeRecord
from services.spanner_reader.ports import NotReadableError, RowsAtTimestamp, WatchedTable
from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import PoisonRecordError, TransientError
from shared.contracts.row_id import canonical_key
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.reading.byte_budget import ByteShare
from shared.reading.confirmed_prefix import Place
from shared.reading.publishing import ConfirmedPublishing, Countdown
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_WAIT: Final = timedelta(milliseconds=100)
"""How long a batch waits for more of the same: so there are a few reads in a second, and not one for each commit."""
_CHANGES: Final = 1_000
"""How many changes a batch holds, but for a larger commit."""
_READS: Final = 8
"""How many reads of one table are under way at a time in one reader; one of each partition at most."""
_KEYS: Final = 1_000
"""How many keys one read asks for."""
_KEY_BYTES: Final = 1024 * 1024
"""How large the texts of these keys may be, but for the last of them."""
_READ_BYTES: Final = 4 * 1024 * 1024
"""How large the rows may be that are read together, but for the last of them."""
_LONGEST_WAIT: Final = timedelta(hours=1)
"""How long a change may wait here; then it is read again, perhaps by another. See `safe_age.MAX_OUTSTANDING_AGE`."""
_HEADERS: Final = 256
"""How many column lists a query remembers: of updates there may be one for each set of columns."""
_WHOLE_NUMBERS: Final = ("INT64", "ENUM")
_END_OF_TIME: Final = Nanoseconds((1 << 63) - 2)

_encode: Final = msgspec.json.Encoder().encode
_key: Final = msgspec.json.Decoder(dict[str, object])

Changes = Mapping[bytes, Sequence[QueuedChange]]
"""The changes of each row, in their order."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WaitingChange(QueuedChange):
    """A change that waits, since when, and what is called once it is confirmed."""

    confirm: Callable[[], None]
    taken_at: Nanoseconds


@dataclass(frozen=True, slots=True)
class _Publication:
    """A change as it is published, and those that wait for it; without a change they wait for nothing."""

    header: Header
    change: Change | None
    of: Sequence[WaitingChange]
    outcome: Completeness = Completeness.AS_IT_IS
    again: QueuedChange | None = None
    """The change, if it was published before, by a row that lacked another change of its commit."""

    @property
    def ordering_key(self) -> str:
        return self.again.ordering_key if self.again is not None else self.of[-1].ordering_key


@dataclass(frozen=True, slots=True)
class _Now:
    """How a table is now."""

    at: Nanoseconds
    header: Header
    keeps_history: bool


class Completion:
    """What all partitions of one reader share to complete updates."""

    def __init__(
        self,
        rows: RowsAtTimestamp,
        tables: MirroredTables,
        publishing: ConfirmedPublishing,
        keeps_history: Callable[[str], bool],
        metrics: SpannerReaderMetrics,
        clock: Clock | None = None,
    ) -> None:
        """``keeps_history``: whether BigQuery keeps a history of a table, by the tables file."""
        self.changes = tables.changes
        self.publishing = publishing
        self.columns = WatchedColumns(tables.catalog)
        self.metrics = metrics
        self.clock = clock or SystemClock()
        self.keeps_history = keeps_history
        self.budget = publishing.budget
        """Of what waits, what is remembered beside it, and the rows that are read for it."""
        self.freed = asyncio.Event()
        self._rows = rows
        self._reading: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_READS))
        self._reported: set[str] = set()

    async def read(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText], share: ByteShare
    ) -> tuple[Sequence[Sequence[object]], bool]:
        """Return rows that some keys had at a time, and whether these are all; raises as `RowsAtTimestamp.read_keys`.

        They are not all where they are large, or others take the room: the rest is to be asked for again. Their bytes
        are all that ``share`` has.
        """
        found: list[Sequence[object]] = []
        async with self._reading[table.name]:
            began = time.monotonic()
            share.add(-share.used)
            try:
                async with aclosing(self._rows.read_keys(table, at, keys)) as batches:
                    async for rows in batches:
                        found += rows
                        share.add(sum(len(value) for row in rows for value in row if isinstance(value, str)))
                        if share.used > _READ_BYTES or not share.has_room:
                            return found, False
            except (TransientError, NotReadableError):
                self.metrics.completion_failed()
                raise
            finally:
                self.metrics.completion_read(time.monotonic() - began)
        return found, True

    def report_reconstructed(self, table: str, why: str) -> None:
        """Log once per table that its rows as of the commit cannot be read."""
        if table not in self._reported:
            self._reported.add(table)
            structlog.get_logger().warning("rows_reconstructed", table=table, why=why)


class Completer:
    """Completes the updates of one query of a partition; the next query of it has another one."""

    def __init__(self, completion: Completion, owned: SpannerOwnedPartition, stop: Stop) -> None:
        self._completion = completion
        self._owned = owned
        self._stop = stop
        self._queue = CompletionQueue()
        self._share = completion.budget.share()
        self._block: asyncio.Timeout | None = None
        self._broken_off: TransientError | None = None
        self._places: set[Place[Nanoseconds, str]] = set()
        """Of records whose changes wait, or are not confirmed yet."""
        self._since = owned.prefix.watermark
        """What records have named since then is in ``_named``: here the query begins."""
        self._named: dict[int, tuple[Header, Nanoseconds]] = {}
        """Column lists of records, each with the latest commit that had it, by their identity."""
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def working(self) -> AsyncGenerator["Completer", None]:
        """Complete what comes until the end of the block; what is not published by then has to be read again.

        What is transient ends the block as well, wherever it is, and is raised.
        """
        work = asyncio.create_task(self._work(), name=f"complete {self._owned.key}")
        try:
            async with asyncio.timeout(None) as self._block:
                work.add_done_callback(self._on_over)
                yield self
        except TimeoutError:
            if self._broken_off is None:
                raise
            raise self._broken_off from None
        finally:
            self._block = None
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if not self._queue.is_idle:
                self._owned.prefix.give_up(self._places)
            self._share.add(-self._share.used)
            self._completion.freed.set()

    # What comes

    @property
    def needs_more(self) -> bool:
        """Return whether what waits here waits for further records: of a transaction that has more to come."""
        return not self._queue.is_idle and not self._queue.can_take

    def arrived(self, record: DataChangeRecord) -> None:
        """Notice a record, whatever becomes of it."""
        if self.concerns(record):
            self._queue.arrived(record)
            self._changed()

    def passed(self, time: Nanoseconds) -> None:
        """Notice that every change up to a time has arrived."""
        if not self._queue.is_empty:
            self._queue.passed(time)
            self._changed()

    async def left_out(self, record: DataChangeRecord) -> None:
        """Take a record that is not published: what comes after it in its rows rests on it all the same."""
        if self.concerns(record):
            await self._room()
            header, changes = self._completion.changes.changes(record)
            self._note(header, record.commit_timestamp)
            self._queue.add([one for one in _entries(record, header, changes) if one is not None])
            self._changed()

    async def publish(self, record: DataChangeRecord, header: Header, changes: Sequence[tuple[str, Change]]) -> None:
        """Publish the changes of a record, at once if they are whole and no earlier change of their rows waits.

        The place of the record in the partition is confirmed when all of them are.
        """
        if not self.concerns(record):
            await self._publish_now(record, header, changes)
            return
        self._note(header, record.commit_timestamp)
        await self._room()
        entries = _entries(record, header, changes)
        known = [one for one in entries if one is not None]
        if is_whole(record) and not self._queue.waits(one.row_id for one in known):
            self._queue.add(known)
            self._changed()
            await self._publish_now(record, header, changes)
            return
        place = self._owned.prefix.add(record.commit_timestamp, 1)
        self._places.add(place)
        confirm = Countdown(len(changes), partial(self._confirm, place, self._owned.confirming(place)))
        now = self._completion.clock.now()
        self._queue.add([_waiting(one, confirm, now) for one in known])
        self._idle.clear()
        self._changed()
        for change, one in zip(changes, entries, strict=True):
            if one is None:  # no row has such a key: the consumer says so
                self._completion.metrics.completion_failed()
                await self._completion.publishing.publish(header, [change], confirm)

    async def finished(self) -> None:
        """Wait until all that came is published; nothing more is to come."""
        self.passed(_END_OF_TIME)
        await self._idle.wait()

    def _confirm(self, place: Place[Nanoseconds, str], confirm: Callable[[], None]) -> None:
        self._places.discard(place)
        confirm()

    def _note(self, header: Header, commit: Nanoseconds) -> None:
        """Remember the columns that a record names."""
        if len(self._named) >= _HEADERS:
            self._named.clear()
            self._since = commit
        self._named[id(header)] = header, commit

    def concerns(self, record: DataChangeRecord) -> bool:
        """Return whether a record is one to complete, or may have to wait for one. What others name is not noted."""
        if record.value_capture_type in WHOLE_ROW and self._queue.is_empty:
            self._since = record.commit_timestamp
            return False
        return True

    async def _room(self) -> None:
        """Wait while too much is remembered, but not for what only further records can complete."""
        while not self._share.has_room and self._queue.can_take:
            self._completion.freed.clear()
            await self._completion.freed.wait()

    async def _publish_now(
        self, record: DataChangeRecord, header: Header, changes: Sequence[tuple[str, Change]]
    ) -> None:
        place = self._owned.prefix.add(record.commit_timestamp, 1)
        self._places.add(place)  # broken off while it waits for room, it is never confirmed
        await self._completion.publishing.publish(header, changes, self._owned.confirming(place))
        self._places.discard(place)

    def _changed(self) -> None:
        """Count what the queue holds now, and have it checked."""
        self._share.add(self._queue.size - self._share.used)
        self._some.set()

    # What becomes of it

    def _on_over(self, work: "asyncio.Task[None]") -> None:
        if work.cancelled():
            return
        error = work.exception()
        if isinstance(error, TransientError):
            if self._block is not None:  # else it is over already, and what waited is read again
                self._broken_off = error
                self._block.reschedule(asyncio.get_running_loop().time())
        else:
            self._completion.publishing.fail(error)

    async def _work(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            if not self._idle.is_set():
                await asyncio.sleep(_WAIT.total_seconds())
                await self._complete_all()

    async def _complete_all(self) -> None:
        while taken := self._queue.take(_CHANGES):
            await self._complete(taken)
            self._queue.done()
            self._changed()
            self._completion.freed.set()
            self._owned.moved.set()  # who waits for room asks again whether only further records make any
        if self._queue.is_idle:
            self._idle.set()

    async def _complete(self, entries: Sequence[QueuedChange], *, inspect: bool = False) -> None:
        """Publish changes of one table, completed from their rows as they were just before the first of them.

        With ``inspect`` only by columns that were seen before and after them.
        """
        rows = by_row(entries)
        if all(one.whole or one.published for one in entries):
            await self._publish([_as_they_are(each) for each in rows.values()])
            return
        table, base, last = entries[0].header.table, base_of(entries), max(one.commit for one in entries)
        columns = self._completion.columns
        recent = None if inspect else self._recent(table, base, last)
        if recent is not None and _is_table_of(recent, entries[0].header):
            doubtful = await self._complete_from_then(rows, recent, base, sure=False)
            if doubtful:
                await self._complete([one for each in doubtful.values() for one in each], inspect=True)
            return
        try:
            watched = await retried(self._stop, partial(columns.at, table, base))
            unchanged = await retried(self._stop, partial(columns.unchanged, table, base, last))
        except NotReadableError as error:
            await self._complete_from_now(rows, str(error))
            return
        parts = None if unchanged else halves(entries)
        if parts is not None:
            for part in parts:
                await self._complete(part)
            return
        if not _is_table_of(watched, entries[0].header):
            await self._complete_from_now(rows, "the table was not watched, or had another key")
            return
        assert watched is not None
        await self._complete_from_then(rows, watched, base)

    def _recent(self, table: str, base: Nanoseconds, last: Nanoseconds) -> WatchedTable | None:
        """Return a table as it was seen just before some changes, if its columns will do for them; else None.

        A column that was added since is NULL in all rows that no record has set it in. All records since then came in
        this query, and none names another column. A column that was dropped since fails the read. What Spanner changes
        without a record makes the table pending resync, and is healed later: see `COLUMNS_UNSEEN`.
        """
        found = self._completion.columns.recent(table, base, last)
        if found is None or found[0] < self._since:
            return None
        seen_at, watched = found
        known = self._completion.changes.header(watched.name, watched.column_types, watched.value_capture_type).columns
        named = (header for header, commit in self._named.values() if header.table == table and commit > seen_at)
        return watched if all({*known}.issuperset(header.columns) for header in named) else None

    async def _complete_from_then(
        self, rows: Changes, watched: WatchedTable, base: Nanoseconds, *, sure: bool = True
    ) -> Changes:
        """Publish changes from their rows of a time; return those that the table's columns are to be doubted for.

        With ``sure`` there are none: these columns are known to be those of the time.
        """
        header, why = self._header(watched, rows), "rows that were updated had not been there"
        columns = frozenset(column.name for column in watched.column_types if not column.is_primary_key)
        wanting = {row_id: each for row_id, each in rows.items() if needs_read(each, columns)}
        lost: dict[bytes, Sequence[QueuedChange]] = {}

        async def publish(some: Iterable[tuple[bytes, Sequence[QueuedChange], Before | None]]) -> None:
            known = []
            for row_id, each, before in some:
                publications, unknown = _publications(each, before, columns, header)
                if unknown:
                    lost[row_id] = each
                else:
                    known.append(publications)
            await self._publish(known)

        await publish([(row_id, each, None) for row_id, each in rows.items() if row_id not in wanting])
        try:
            async with aclosing(self._read(watched, base, wanting, sure=sure)) as found:
                async for some in found:
                    await publish([(row_id, each, Before(values)) for row_id, each, values in some])
        except NotReadableError as error:
            if not sure:
                return lost | wanting
            why = str(error)
            remembered = await retried(self._stop, partial(self._completion.columns.remembered, base))
            if remembered and len(wanting) > 1:  # one key that is none of the table's refuses them all
                for part in _in_two(wanting):
                    await self._complete_from_then(part, watched, base)
                wanting.clear()
        lost |= wanting
        if lost and sure:
            await self._complete_from_now(lost, why)
        return {} if sure else lost

    async def _complete_from_now(self, rows: Changes, why: str) -> None:
        """Publish changes whose rows of before are not to be had: from the rows as they are now.

        Where there is only a mirror, each row as it is now, at that time: no later change loses to it. Where a history
        is kept, each change on top of that row, as reconstructed; the last change of a row is true even so.
        """
        header = next(iter(rows.values()))[0].header
        table = header.table
        at, watched = await retried(self._stop, partial(self._completion.columns.now, table))
        now = _Now(at, self._header(watched, rows), self._completion.keeps_history(table))
        left = {row_id: each for row_id, each in rows.items() if names_some(each)}
        if left:
            self._completion.report_reconstructed(table, why)
        await self._publish([_from_now(each, None, now) for row_id, each in rows.items() if row_id not in left])
        if watched is not None and _is_table_of(watched, header):
            try:
                async with aclosing(self._read(watched, at, left)) as found:
                    async for some in found:
                        await self._publish([_from_now(each, values, now) for _row_id, each, values in some])
            except NotReadableError:
                if not await retried(self._stop, partial(self._completion.columns.remembered, at)):
                    await self._complete_from_now(left, why)  # it took too long
                elif len(left) == 1:
                    await self._give_up(left)
                else:
                    for part in _in_two(left):
                        await self._complete_from_now(part, why)
                return
        await self._publish([_from_now(each, None, now) for each in left.values()])

    async def _read(
        self, table: WatchedTable, at: Nanoseconds, wanting: dict[bytes, Sequence[QueuedChange]], *, sure: bool = True
    ) -> AsyncGenerator[Sequence[tuple[bytes, Sequence[QueuedChange], Values]], None]:
        """Yield the rows that there were of some changes, which are not ``wanting`` any more then.

        NotReadableError where they cannot be read. If a row comes that was not asked for, no key can be trusted.
        """
        names = [column.name for column in table.column_types]
        types = self._completion.changes.header(table.name, table.column_types, table.value_capture_type).key_types()
        kinds = dict(types)  # in the order of the records, which is not the table's where that was not known for them
        key = [(name, kinds[name]) for name in table.primary_key]
        left = {row_id: _key_text(key, each[0]) for row_id, each in wanting.items()}
        with self._completion.budget.share() as share:
            while left:
                asked = dict(islice(left.items(), keys_of_one_read(left.values())))
                reading = partial(self._completion.read, table, at, [*asked.values()], share)
                rows, over = await retried(self._stop, reading)
                known = {_row_id(table.name, types, values): values for values in _named(names, rows)}
                if not known.keys() <= asked.keys():
                    if not sure:
                        why = f"table {table.name} returned rows of keys that were not asked for: another time is tried"
                        raise NotReadableError("rows-of-other-keys", why)
                    await self._give_up(wanting)
                    return
                for row_id in asked if over else known:
                    del left[row_id]
                yield [(row_id, wanting.pop(row_id), values) for row_id, values in known.items()]

    async def _give_up(self, wanting: dict[bytes, Sequence[QueuedChange]]) -> None:
        """Publish changes that cannot be completed as they are: the consumer makes dead letters of them."""
        self._completion.metrics.completion_failed()
        table = next(iter(wanting.values()))[0].header.table
        structlog.get_logger().error("rows_not_completed", table=table, rows=len(wanting), **self._owned.log_fields)
        await self._publish([_as_they_are(each) for each in wanting.values()])
        wanting.clear()

    def _header(self, watched: WatchedTable | None, rows: Changes) -> Header:
        """Return the header of completed rows: all columns that were watched, and what the changes name beside."""
        headers = list(dict.fromkeys(one.header for each in rows.values() for one in each))
        first = next((one for one in headers if one.value_capture_type not in WHOLE_ROW), headers[0])
        if watched is None:
            header = msgspec.structs.replace(first, columns=(), value_capture_type=as_whole(first.value_capture_type))
        else:
            captured = first.value_capture_type
            header = self._completion.changes.header(watched.name, watched.column_types, captured)
        known = {column.name for column in header.columns}
        more = {column.name: column for one in headers for column in one.columns if column.name not in known}
        return msgspec.structs.replace(header, columns=(*header.columns, *more.values())) if more else header

    async def _publish(self, rows: Iterable[Sequence[_Publication]]) -> None:
        """Publish changes, those of a row in their order; changes too old to be published end the reader."""
        oldest = Nanoseconds(self._completion.clock.now() - nanoseconds(_LONGEST_WAIT))
        each = [one for row in rows for one in row]
        if any(waiting.taken_at < oldest for one in each for waiting in one.of):
            raise TransientError(f"changes have waited for more than {_LONGEST_WAIT} to be completed")
        for header, group in groupby(each, key=lambda one: one.header):
            some = list(group)
            changes = [(one.ordering_key, one.change) for one in some if one.change is not None]
            confirm = partial(_confirm, [waiting for one in some for waiting in one.of])
            if changes:
                await self._completion.publishing.publish(header, changes, confirm)
            else:
                confirm()
        outcomes = Counter(one.outcome for one in each for _waiting in one.of)
        self._completion.metrics.completed(outcomes[Completeness.COMPLETED])
        self._completion.metrics.completed(outcomes[Completeness.RECONSTRUCTED], reconstructed=True)


def keys_of_one_read(keys: Iterable[KeyText]) -> int:
    """Return how many of some keys, from the first on, one read asks for: one at least."""
    size = 0
    for number, key in enumerate(keys):
        if number >= _KEYS or size >= _KEY_BYTES:
            return number
        size += len(key)
    return number + 1


def _entries(
    record: DataChangeRecord, header: Header, changes: Sequence[tuple[str, Change]]
) -> Sequence[QueuedChange | None]:
    """Return changes as they are remembered, as if they were published; None for one whose key is none of its table."""
    types, whole = header.key_types(), is_whole(record)
    entries: list[QueuedChange | None] = []
    for ordering_key, change in changes:
        try:
            row_id = canonical_key(record.table, types, _key.decode(change.key))
        except (PoisonRecordError, msgspec.MsgspecError, RecursionError):
            entries.append(None)
            continue
        entries.append(
            QueuedChange(
                row_id=row_id,
                commit=record.commit_timestamp,
                transaction=record.server_transaction_id,
                whole=whole,
                header=header,
                ordering_key=ordering_key,
                change=change,
                published=True,
            )
        )
    return entries


def _waiting(entry: QueuedChange, confirm: Callable[[], None], now: Nanoseconds) -> WaitingChange:
    return WaitingChange(
        row_id=entry.row_id,
        commit=entry.commit,
        transaction=entry.transaction,
        whole=entry.whole,
        header=entry.header,
        ordering_key=entry.ordering_key,
        change=entry.change,
        confirm=confirm,
        taken_at=now,
    )


def _confirm(changes: Iterable[WaitingChange]) -> None:
    for one in changes:
        one.confirm()


def _still(entry: QueuedChange) -> Sequence[WaitingChange]:
    """Return the change of an entry that is still to be published; none of one that is."""
    return [entry] if isinstance(entry, WaitingChange) and not entry.published else []


def _as_they_are(entries: Sequence[QueuedChange]) -> Sequence[_Publication]:
    return [_Publication(one.header, one.change, [one]) for each in entries for one in _still(each)]


def _publications(
    entries: Sequence[QueuedChange],
    before: Before | None,
    columns: frozenset[str] | None,
    header: Header,
    *,
    reconstruct: bool = False,
) -> tuple[list[_Publication], Sequence[WaitingChange]]:
    """Return the changes of a row, completed, and those that cannot be: nothing is known of their row."""
    publications, unknown = [], []
    # Two transactions may have one commit timestamp, and the second may arrive after a change of the first was
    # published. The change with the higher sequence must then carry both. A revision puts it above what was published,
    # and above a redelivery of that.
    of_commit = Counter(one.commit for one in entries)
    published, late = {one.order for one in entries if one.published}, set()
    for version in versions(entries, before, columns, reconstruct=reconstruct):
        entry, revision = version.entry, of_commit[version.entry.commit] - 1
        completed = version.outcome in (Completeness.COMPLETED, Completeness.RECONSTRUCTED)
        if completed and entry.published and entry.commit in late:
            change = published_again(completed_change(version, header), revision)
            publications.append(_Publication(header, change, (), version.outcome, entry))
        for one in _still(entry):
            late.add(one.commit)
            match version.outcome:
                case Completeness.UNKNOWN:
                    unknown.append(one)
                case Completeness.AS_IT_IS:
                    publications.append(_Publication(one.header, one.change, [one]))
                case Completeness.WHOLE:
                    publications.append(_Publication(header, one.change, [one]))
                case Completeness.COMPLETED | Completeness.RECONSTRUCTED:
                    change = completed_change(version, header)
                    if one.order in published:
                        change = published_again(change, revision)
                    publications.append(_Publication(header, change, [one], version.outcome))
    return publications, unknown


def _from_now(entries: Sequence[QueuedChange], values: Values | None, now: _Now) -> Sequence[_Publication]:
    """Return the changes of a row by what the row is now; ``values`` None: there is none."""
    before = Before(values or {}, true=False)
    publications, _unknown = _publications(entries, before, None, now.header, reconstruct=True)
    lost = [one for one in publications if one.outcome is Completeness.RECONSTRUCTED and one.of]
    if now.keeps_history or not lost:
        return publications
    # A mirror gets the row once. Of a row that is gone, the delete is still to come, or was kept out of the stream.
    waiting = [one for publication in lost for one in publication.of]
    row = None if values is None else row_as_it_is_now(waiting[-1], values, now.at, now.header)
    kept = [one for one in publications if one.outcome is not Completeness.RECONSTRUCTED]
    return [*kept, _Publication(now.header, row, waiting, Completeness.RECONSTRUCTED)]


def _in_two(rows: Changes) -> Sequence[Changes]:
    """Return some rows, and the others."""
    each = list(rows.items())
    return dict(each[: len(each) // 2]), dict(each[len(each) // 2 :])


def _named(names: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[Mapping[str, object]]:
    return (dict(zip(names, row, strict=True)) for row in rows)


def _row_id(table: str, types: Sequence[tuple[str, str]], values: Mapping[str, object]) -> bytes:
    try:
        return canonical_key(table, types, values)
    except PoisonRecordError:
        return b""


def _key_text(types: Sequence[tuple[str, str]], entry: QueuedChange) -> KeyText:
    """Return a key as a read takes it: a whole number is a text, however the record writes it."""
    key = _key.decode(entry.change.key)
    values = [
        str(key[name]) if kind in _WHOLE_NUMBERS and type(key[name]) is int else key[name] for name, kind in types
    ]
    return KeyText(_encode(values).decode())


def _is_table_of(watched: WatchedTable | None, header: Header) -> bool:
    """Return whether a table is watched, and has the key that changes have."""
    return watched is not None and set(watched.primary_key) == set(header.primary_key)
