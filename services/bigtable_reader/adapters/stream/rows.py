"""Rows as they are now, by their keys.

A row that no message can hold is not read to its end: Bigtable takes rows of 256 MiB, of which images and dead letters
would take several times as much memory. One that takes more memory than a reading may (of many small cells, or with
large columns that are left out) is read to its end while no other such row is.
"""

import asyncio
import bisect
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

import grpc

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.bigtable.plain_rows import PlainRows, plain_rows
from services.bigtable_reader.adapters.bigtable.row_chunks import READ_ROWS, BrokenRowError, RowChunks, least_bytes
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker, PlainRow, Row, TooLargeRow
from services.bigtable_reader.ports import ReadRefusedError, ReadRows
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import status_of
from shared.pubsub.packer import REQUEST_BYTES
from shared.runtime.portions import cut

_TIMEOUT: Final = 60.0
_BYTES: Final = 16 * 1024 * 1024
CELL_BYTES: Final = 200
"""Bytes that a cell takes in memory, beside its value."""
_CHUNKS: Final = 10_000
"""Decoded in one turn of the event loop: an answer may hold half a million cells, which take seconds."""
_KEYS: Final = 1_000
_KEY_BYTES: Final = 256 * 1024
"""Of keys in a request, of which Bigtable takes half a megabyte."""


class BigtableRows:
    """The rows of one table, through the app profile of its change stream: the same cluster, which has the change."""

    def __init__(
        self,
        channels: BigtableChannels,
        table: Table,
        watched: Watched | None = None,
        images: ImageMaker | None = None,
        *,
        most_bytes: int = _BYTES,
    ) -> None:
        """``watched`` says which cells are read, None: the newest of all columns. ``images``: what is made of the rows.

        ``most_bytes``: of one call, less the message that goes beyond it.
        """
        self._most_bytes = most_bytes
        self._channels = channels
        self._table = table
        self._watched = watched
        self._plain = plain_rows(images)
        self._filter = rows_filter(watched)

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        """Return those of the rows that exist and have a cell that is asked for, until they have so many bytes.

        The rest is left, and at least one is not. TransientError; ReadRefusedError for FAILED_PRECONDITION, of which
        a row of more than 256 MiB is one reason; another MisconfiguredError.
        """
        asked, keys = self._filter, sorted(set(row_keys))
        found: dict[bytes, Row] = {}
        room = self._most_bytes
        try:
            for portion in portions(keys):
                room = await self._read(portion, found, room)
                if room <= 0 and found:
                    return ReadRows(found, keys[bisect.bisect_right(keys, max(found)) :])
        except MisconfiguredError as error:
            if (instead := filter_instead(asked, error)) is not None:
                self._filter = instead
                return await self.read(row_keys)
            if status_of(error.__cause__)[0] is grpc.StatusCode.FAILED_PRECONDITION:
                raise ReadRefusedError(error.code, error.message) from error
            raise
        return ReadRows(found, ())

    async def _read(self, row_keys: Sequence[bytes], found: dict[bytes, Row], room: int) -> int:
        """Add rows, in the order of their keys, while there is room for their bytes; return what is left of it.

        What came of a row that is not whole when there is no more room is given up; the row is left.
        """
        request = READ_ROWS.request(table_name=self._table.name, app_profile_id=self._table.app_profile)
        request.rows.row_keys.extend(row_keys)
        request.filter.CopyFrom(self._filter)
        rows = ArrivingRows(self._watched, REQUEST_BYTES, self._plain)
        answers = self._channels.stream(READ_ROWS, self._table, request, timeout=_TIMEOUT)
        try:
            async with AsyncExitStack() as resources:
                await resources.enter_async_context(aclosing(answers))
                async for answer in answers:
                    found.update(await rows.take(answer))
                    if rows.stopped:
                        return 0
                    had_room = room > 0
                    room -= rows.bytes_taken + CELL_BYTES * len(answer.chunks)
                    if room <= 0 and found:
                        return room
                    if room <= 0 and had_room:  # the first row is not whole
                        await resources.enter_async_context(self._channels.large_row)
            rows.end()
        except BrokenRowError as error:
            raise TransientError(f"ReadRows on {self._table.name}: {error}") from error
        return room


class ArrivingRows:
    """The rows of one call as its answers come: only the cells that images hold, and no row that no message holds."""

    def __init__(self, watched: Watched | None, largest_row: int, plain: PlainRows | None = None) -> None:
        """``largest_row``: bytes of an image. ``plain`` makes rows that may be, where there is one."""
        self._plain = plain
        self.bytes_taken = 0
        """Of the last answer."""
        self._chunks = RowChunks(None if watched is None else watched.versions_kept)
        self._largest = largest_row
        self._arrived = 0
        """Bytes of the row that is not whole yet, and maybe of some before it: never less than its image has."""
        self._measure_at = largest_row
        self.stopped = False
        """Whether the last row that was returned is too large and not read to its end: nothing may be taken after."""

    async def take(self, answer: Any) -> list[tuple[bytes, Row]]:
        """Return the rows that are whole with this answer, in order, or too large already. BrokenRowError."""
        self.bytes_taken = answer.ByteSize()
        self._arrived += self.bytes_taken
        rows: list[tuple[bytes, Row]] = []
        chunks = answer.chunks
        for first in range(0, len(chunks), _CHUNKS):
            if first:
                await asyncio.sleep(0)
            rows += self._rows(chunks[first : first + _CHUNKS] if len(chunks) > _CHUNKS else chunks)
        if rows:
            if self._arrived > self._largest:
                rows = [(key, self._measured(cells)) for key, cells in rows]
            self._arrived, self._measure_at = self.bytes_taken, self._largest
        if self._arrived > self._measure_at:
            self._measure_at = 2 * self._arrived
            row_key, cells = self._chunks.under_way
            row = self._measured(cells, self._chunks.cut_bytes)
            if isinstance(row, TooLargeRow):
                self.stopped = True
                rows.append((row_key, row))
        return rows

    def end(self) -> None:
        """End the reading. BrokenRowError if a row is not whole."""
        self._chunks.end()

    def _rows(self, chunks: Sequence[Any]) -> Sequence[tuple[bytes, Row]]:
        """Return the rows that are whole with some chunks: plain ones as far as they go, the others cell by cell."""
        general = self._chunks
        if self._plain is None or general.under_way[0] or self._arrived > self._largest:
            return general.take(chunks)
        plain, taken = self._plain.take(chunks, general.last)
        if plain:
            general.last = plain[-1][0]
        return plain if taken == len(chunks) else [*plain, *general.take(chunks[taken:])]

    def _measured(self, cells: Row, more: int = 0) -> Row:
        if isinstance(cells, TooLargeRow | PlainRow):
            return cells
        size = least_bytes(cells) + more
        return TooLargeRow(size) if size > self._largest else cells


def rows_filter(watched: Watched | None) -> Any:
    """Return the filter of the families that are watched, and of as many versions of each cell."""
    newest = READ_ROWS.request().filter
    newest.cells_per_column_limit_filter = 1 if watched is None else watched.versions
    family_pattern = None if watched is None else watched.family_pattern()
    if family_pattern is None:
        return newest
    both = READ_ROWS.request().filter
    both.chain.filters.add(family_name_regex_filter=family_pattern)
    both.chain.filters.add().CopyFrom(newest)
    return both


def filter_instead(asked: Any, error: MisconfiguredError) -> Any | None:
    """Return the filter to ask with instead where a watched family is not in the table; None for another refusal.

    Bigtable refuses to read (googleapis/java-bigtable #32) what it would find nothing of: a family that was dropped, or
    is not made yet. From then on every family is read, and what is not watched is left out here.
    """
    code, message = status_of(error.__cause__)
    if code is not grpc.StatusCode.NOT_FOUND or "column family" not in message or not asked.HasField("chain"):
        return None
    return asked.chain.filters[-1]


def portions(row_keys: Sequence[bytes], most: int = _KEYS, most_bytes: int = _KEY_BYTES) -> Iterator[Sequence[bytes]]:
    """Yield row keys, as many at a time as one request may name."""
    return cut(row_keys, len, most_bytes, most)
