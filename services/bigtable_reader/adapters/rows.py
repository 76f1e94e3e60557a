"""Rows as they are now, by their keys."""

import bisect
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc

from services.bigtable_reader.adapters.connection import Channels, Table
from services.bigtable_reader.adapters.errors import status_of
from services.bigtable_reader.adapters.row_chunks import READ_ROWS, BrokenRowError, RowChunks
from services.bigtable_reader.core.images import RowCells
from services.bigtable_reader.ports import ReadRefusedError, ReadRows
from shared.contracts.errors import MisconfiguredError, TransientError

_TIMEOUT: Final = 60.0
_BYTES: Final = 16 * 1024 * 1024
CELL_BYTES: Final = 200
"""Bytes that a cell takes in memory, beside its value."""
_KEYS: Final = 1_000
_KEY_BYTES: Final = 256 * 1024
"""Of keys in a request, of which Bigtable takes half a megabyte."""


class BigtableRows:
    """The rows of one table, through the app profile of its change stream: the same cluster, which has the change."""

    def __init__(
        self,
        channels: Channels,
        table: Table,
        *,
        family_pattern: str | None = None,
        versions: int = 1,
        most_bytes: int = _BYTES,
    ) -> None:
        """``family_pattern``: a regular expression (RE2) of the families to read, None for all; see `Watched`.

        ``most_bytes``: of one call, less the message that goes beyond it.
        """
        self._most_bytes = most_bytes
        self._channels = channels
        self._table = table
        self._filter = rows_filter(family_pattern, versions)

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        """Return those of the rows that exist and have a cell that is asked for, until they have so many bytes.

        The rest is left, and at least one is not. TransientError; ReadRefusedError for FAILED_PRECONDITION, of which
        a row of more than 256 MiB is one reason; another MisconfiguredError.
        """
        keys = sorted(set(row_keys))
        found: dict[bytes, RowCells] = {}
        room = self._most_bytes
        try:
            for portion in portions(keys):
                room = await self._read(portion, found, room)
                if room <= 0 and found:
                    return ReadRows(found, keys[bisect.bisect_right(keys, max(found)) :])
        except MisconfiguredError as error:
            cause = error.__cause__
            if cause is not None and status_of(cause)[0] is grpc.StatusCode.FAILED_PRECONDITION:
                raise ReadRefusedError(str(error)) from error
            raise
        return ReadRows(found, ())

    async def _read(self, row_keys: Sequence[bytes], found: dict[bytes, RowCells], room: int) -> int:
        """Add rows, in the order of their keys, while there is room for their bytes; return what is left of it.

        What came of a row that is not whole when there is no more room is given up; the row is left.
        """
        request = READ_ROWS.request(table_name=self._table.name, app_profile_id=self._table.app_profile)
        request.rows.row_keys.extend(row_keys)
        request.filter.CopyFrom(self._filter)
        chunks = RowChunks()
        answers = self._channels.stream(READ_ROWS, self._table, request, timeout=_TIMEOUT)
        try:
            async with aclosing(answers):
                async for answer in answers:
                    found.update(chunks.take(answer.chunks))
                    room -= answer.ByteSize() + CELL_BYTES * len(answer.chunks)
                    if room <= 0 and found:  # else the first row is not whole
                        return room
            chunks.end()
        except BrokenRowError as error:
            raise TransientError(f"ReadRows on {self._table.name}: {error}") from error
        return room


def rows_filter(family_pattern: str | None, versions: int) -> Any:
    newest = READ_ROWS.request().filter
    newest.cells_per_column_limit_filter = versions
    if family_pattern is None:
        return newest
    both = READ_ROWS.request().filter
    both.chain.filters.add(family_name_regex_filter=family_pattern)
    both.chain.filters.add().CopyFrom(newest)
    return both


def portions(row_keys: Sequence[bytes], most: int = _KEYS, most_bytes: int = _KEY_BYTES) -> Iterator[Sequence[bytes]]:
    """Yield row keys, as many at a time as one request may name."""
    portion: list[bytes] = []
    size = 0
    for key in row_keys:
        if portion and (len(portion) == most or size + len(key) > most_bytes):
            yield portion
            portion, size = [], 0
        portion.append(key)
        size += len(key)
    if portion:
        yield portion
