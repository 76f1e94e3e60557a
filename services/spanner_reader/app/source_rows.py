"""The rows of tables as they would be published, to be compared with a mirror: the command ``rows``.

Rows are read and made into changes as a snapshot's are. What is published is what the source says of some keys at one
time: the row, or that there is none. It goes through the topic and carries that time, so any later change wins.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.core.snapshot.snapshot import KeyText, RowMaker
from services.spanner_reader.ports import CatalogInspection, NotReadableError, RowsAtTimestamp, WatchedTable
from shared.contracts.change_batch import Change, encode_batch
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.errors import MisconfiguredError, PoisonRecordError, TransientError
from shared.contracts.source_rows import Describe, Done, Key, Publish, Read, ReadKeys
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds, parse_timestamp
from shared.reading.publishing import ChangePublisher
from shared.runtime.portions import cut
from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop

RETRY_BUDGET: Final = timedelta(seconds=60)
"""How long a reading that is interrupted is begun again behind its last row."""
_SECONDS: Final = 30
"""How long a publishing waits for a time that is later than what is applied: clocks differ that little."""
_ROWS: Final = 500
_BYTES: Final = 1_000_000
"""How much a batch holds at most, but for a single row that is larger."""

_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Reading:
    """A table at a time, and what has been read of it."""

    table: WatchedTable
    maker: RowMaker
    at: Nanoseconds
    rows: int = 0

    @property
    def header(self) -> bytes:
        """Return a batch without changes."""
        return encode_batch(self.maker.header, [])

    @property
    def sequence(self) -> str:
        """Return the sequence of a row."""
        return str(four_sections(microseconds(self.at)))

    def done(self, first: Nanoseconds | None = None, absent: int = 0) -> Done:
        """Return what ends the answer; ``first`` is the earliest time that was read at."""
        earliest = self if first is None else replace(self, at=first)
        return Done(format_timestamp(earliest.at), earliest.sequence, self.rows, absent)


class SpannerSourceRows:
    """The rows of the mirrored tables, as they would be published."""

    def __init__(
        self,
        tables: MirroredTables,
        rows: RowsAtTimestamp,
        publisher: Callable[[], AbstractAsyncContextManager[ChangePublisher]],
        stop: Stop,
    ) -> None:
        """``publisher`` opens one, or raises MisconfiguredError where the topic would lose what is published."""
        self._tables = tables
        self._rows = rows
        self._publisher = publisher
        self._stop = stop

    async def tables(self) -> Sequence[str]:
        """Return the names of the tables that are mirrored."""
        inspection = await self._tables.catalog.inspect()
        return sorted(table.name for table in inspection.watched if self._tables.included(table.name))

    async def describe(self, request: Describe) -> tuple[bytes, Done]:
        """Return the header of a table as it is now."""
        reading = await self._reading(request.table)
        return reading.header, reading.done()

    async def read(self, request: Read) -> AsyncGenerator[bytes | Done, None]:
        """Yield a table's rows in key order; what is read too late for the time is read as it is then."""
        reading = await self._reading(request.table, request.at)
        yield reading.header
        first, after, until = reading.at, _text(request.after), _text(request.until)
        renewed = request.at is not None  # a requested time that is too long ago is an error, unless rows were read
        over = False
        while not over:
            try:
                some, rows = await self._begun(reading, after, until)
                async with aclosing(some):
                    while rows:
                        for batch in _batches(reading.maker, rows):
                            yield batch
                        reading.rows += len(rows)
                        after, renewed = reading.maker.key_text(rows[-1]), False
                        try:
                            rows = await anext(some, None)
                        except TransientError as error:  # it goes on behind the last row
                            log = structlog.get_logger()
                            log.warning("rows_read_interrupted", table=request.table, error=str(error))
                            break
                    else:
                        over = True
            except NotReadableError:
                if renewed:
                    raise
                renewed = True
                later = await self._reading(request.table)
                if later.maker.header != reading.maker.header:
                    raise TransientError(f"table {request.table} was altered while it was read") from None
                reading = replace(later, rows=reading.rows)
        yield reading.done(first)

    async def read_keys(self, request: ReadKeys) -> AsyncGenerator[bytes | Done, None]:
        """Yield the rows that there are under some keys."""
        reading = await self._reading(request.table, request.at)
        yield reading.header
        rows = await self._found(reading, request.keys)
        absent = _absent(reading, request.keys, rows)
        for batch in _batches(reading.maker, rows):
            yield batch
        yield replace(reading, rows=len(rows)).done(absent=len(absent))

    async def publish(self, request: Publish) -> Done:
        """Publish the rows that there are under some keys, and deletes of the others."""
        async with self._publisher() as publisher:
            reading = await self._reading_above(request.table, request.above)
            rows = await self._found(reading, request.keys)
            absent = _absent(reading, request.keys, rows)
            changes = [*reading.maker.changes(rows), *reading.maker.deletes(absent)]
            if changes:
                await (await publisher.publish(reading.maker.header, changes))
        return replace(reading, rows=len(rows)).done(absent=len(absent))

    async def _reading_above(self, name: str, above: str) -> _Reading:
        """Return a table as it is now, once that is later than what is applied already."""
        before = parse_sequence(above) if above else None
        for _second in range(_SECONDS):
            reading = await self._reading(name)
            if before is None or parse_sequence(reading.sequence) > before:
                return reading
            await asyncio.sleep(1)
        raise MisconfiguredError(
            "applied-in-the-future",
            f"table {name}: BigQuery holds a time in the future for some of these rows, so it would ignore what the "
            "reader publishes now: make the mirror again, as docs/reference/dead-letters.md#bad_sequence says",
        )

    async def _reading(self, name: str, time: str | None = None) -> _Reading:
        """Return a table as it is now, or was at a time."""
        try:
            at = None if time is None else Nanoseconds(parse_timestamp(time) // 1_000 * 1_000)
        except ValueError as error:
            raise MisconfiguredError("rows-time-malformed", str(error)) from error
        inspection = await (self._tables.catalog.inspect() if at is None else self._inspect_at(at))
        watched = {one.name: one for one in inspection.watched if self._tables.included(one.name)}
        if name not in watched:
            known = ", ".join(sorted(watched)) or "none"
            raise MisconfiguredError(
                "rows-table-unknown", f"table {name} is not among the tables that are mirrored, which are: {known}"
            )
        table = watched[name]
        self._tables.changes.learn({name: table.primary_key})
        read_at = Nanoseconds(inspection.shapes.at // 1_000 * 1_000)
        ordered, maker = self._tables.row_maker(table, read_at)
        return _Reading(ordered, maker, read_at)

    async def _inspect_at(self, at: Nanoseconds) -> CatalogInspection:
        inspection = await self._tables.catalog.inspect_at(at)
        if inspection is None:
            raise NotReadableError(
                "past-not-remembered",
                f"the database no longer keeps the rows of {format_timestamp(at)}: its version_retention_period says "
                "how long it keeps them; ask for a later time",
            )
        return inspection

    async def _begun(
        self, reading: _Reading, after: KeyText | None, until: KeyText | None
    ) -> tuple[AsyncGenerator[Sequence[Sequence[object]], None], Sequence[Sequence[object]] | None]:
        """Return a reading that has begun, and its first rows; none at the end."""
        async for attempt in retrying_async(self._stop, RETRY_BUDGET):
            with attempt:
                some = self._rows.read(reading.table, reading.at, after=after, until=until)
                try:
                    return some, await anext(some, None)
                except BaseException:
                    await some.aclose()
                    raise
        raise AssertionError("a retry ends with a value or an error")

    async def _found(self, reading: _Reading, keys: Sequence[Key]) -> Sequence[Sequence[object]]:
        wanted = [KeyText(_encode(_whole(reading, key)).decode()) for key in keys]
        async for attempt in retrying_async(self._stop, RETRY_BUDGET):
            with attempt:
                async with aclosing(self._rows.read_keys(reading.table, reading.at, wanted)) as some:
                    return [row async for rows in some for row in rows] if wanted else ()
        raise AssertionError("a retry ends with a value or an error")


def _whole(reading: _Reading, key: Key) -> Key:
    """Return a key that has all its parts: of fewer Spanner would take every row that they begin."""
    if len(key) != len(reading.maker.header.primary_key):
        raise MisconfiguredError(
            "key-parts-differ",
            f"a key of table {reading.table.name} has {len(reading.maker.header.primary_key)} parts, not {len(key)}: "
            "give the consumer's command and the reader the same database and tables file",
        )
    return key


def _text(key: Key | None) -> KeyText | None:
    return None if key is None else KeyText(_encode(key).decode())


def _batches(maker: RowMaker, rows: Sequence[Sequence[object]]) -> Iterator[bytes]:
    """Yield rows in batches of a message's size."""
    made = (maker.changes(rows[start : start + _ROWS]) for start in range(0, len(rows), _ROWS))
    changes = (change for some in made for _ordering_key, change in some)
    for some in cut(changes, Change.size, _BYTES, _ROWS):
        yield encode_batch(maker.header, some)


def _absent(reading: _Reading, keys: Sequence[Key], rows: Sequence[Sequence[object]]) -> Sequence[Key]:
    """Return the keys that have no row.

    MisconfiguredError unless each row is that of one of the keys: one that is written in another way than the source
    does would be taken for gone, and deleted.
    """
    maker = reading.maker
    places = [[column.name for column in maker.header.columns].index(name) for name in maker.header.primary_key]
    try:
        asked = {maker.row_id(key): key for key in keys}
        there = {maker.row_id([row[place] for place in places]) for row in rows}
    except PoisonRecordError as error:
        raise MisconfiguredError("key-not-a-source-key", f"table {reading.table.name}: {error}") from error
    if not there <= asked.keys():
        raise MisconfiguredError(
            "key-written-differently",
            f"table {reading.table.name}: some keys are not in the form in which the source writes them: use the same "
            "version of Millrace for the consumer's command and the reader",
        )
    return [key for row_id, key in asked.items() if row_id not in there]
