"""Rows as they are now, by their keys: ReadRows, whose cells come in chunks.

Source: `google.bigtable.v2.ReadRowsResponse.CellChunk`: a chunk names its row, family and qualifier only where they
differ from the chunk before; a value may be cut; a row counts once it is committed, and may be taken back before.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from services.bigtable_reader.adapters.connection import Channels, Method, Table
from services.bigtable_reader.core.images import CellVersion, RowCells
from shared.contracts.errors import TransientError

_READ: Final = Method("ReadRows", ReadRowsRequest.pb(), ReadRowsResponse.pb())
_TIMEOUT: Final = 60.0
_KEYS: Final = 1_000
_KEY_BYTES: Final = 256 * 1024
"""Of keys in a request, of which Bigtable takes half a megabyte."""


class BrokenRowError(ValueError):
    """The chunks of a row contradict each other; nothing of it can be used."""


class BigtableRows:
    """The rows of one table, through the app profile of its change stream: the same cluster, which has the change."""

    def __init__(
        self, channels: Channels, table: Table, *, family_pattern: str | None = None, versions: int = 1
    ) -> None:
        """``family_pattern``: a regular expression (RE2) of the families to read, None for all; see `Watched`."""
        self._channels = channels
        self._table = table
        self._filter = _filter(family_pattern, versions)

    async def read(self, row_keys: Sequence[bytes]) -> Mapping[bytes, RowCells]:
        """Return those of the rows that exist and have a cell that is asked for. TransientError, MisconfiguredError."""
        found: dict[bytes, RowCells] = {}
        for rows in await asyncio.gather(*(self._read(keys) for keys in portions(sorted(set(row_keys))))):
            found.update(rows)
        return found

    async def _read(self, row_keys: Sequence[bytes]) -> Mapping[bytes, RowCells]:
        request = _READ.request(table_name=self._table.name, app_profile_id=self._table.app_profile)
        request.rows.row_keys.extend(row_keys)
        request.filter.CopyFrom(self._filter)
        chunks = RowChunks()
        try:
            responses = self._channels.stream(_READ, self._table, request, timeout=_TIMEOUT)
            async with aclosing(responses):
                async for response in responses:
                    chunks.take(response.chunks)
            return chunks.rows()
        except BrokenRowError as error:
            raise TransientError(f"ReadRows on {self._table.name}: {error}") from error


class RowChunks:
    """What has come of an answer so far."""

    def __init__(self) -> None:
        self._rows: dict[bytes, RowCells] = {}
        self._last = b""
        self._key = b""
        """Empty: no row is under way."""
        self._families: RowCells = {}
        self._column: list[CellVersion] | None = None
        self._family = ""
        self._pieces: list[bytes] = []
        self._timestamp = 0
        self._is_cut = False

    def take(self, chunks: Sequence[Any]) -> None:
        """Take chunks, in their order. BrokenRowError."""
        for chunk in chunks:
            if chunk.reset_row:
                self._reset(chunk)
            else:
                self._cell(chunk)

    def rows(self) -> Mapping[bytes, RowCells]:
        """Return the rows, once all has come. BrokenRowError if one is not whole."""
        if self._key:
            raise BrokenRowError("the answer ended within a row")
        return self._rows

    def _reset(self, chunk: Any) -> None:
        if not self._key:
            raise BrokenRowError("a row was taken back before it began")
        if chunk.row_key or chunk.HasField("family_name") or chunk.HasField("qualifier") or chunk.value:
            raise BrokenRowError("a row is taken back by a chunk with content")
        self._begin(b"")

    def _cell(self, chunk: Any) -> None:
        if not self._is_cut:
            self._where(chunk)
            self._timestamp = chunk.timestamp_micros
        elif chunk.row_key and chunk.row_key != self._key:
            raise BrokenRowError("a row begins before a value is whole")
        if chunk.value_size or self._is_cut:
            self._pieces.append(chunk.value)
            self._is_cut = chunk.value_size > 0
            if self._is_cut:
                if chunk.commit_row:
                    raise BrokenRowError("a row is committed before a value is whole")
                return
            value, self._pieces = b"".join(self._pieces), []
        else:
            value = chunk.value
        if self._column is None:
            raise BrokenRowError("a cell without a column")
        self._column.append(CellVersion(self._timestamp, value))
        if chunk.commit_row:
            self._rows[self._key] = self._families
            self._last = self._key
            self._begin(b"")

    def _where(self, chunk: Any) -> None:
        """Follow the chunk to its column."""
        if not self._key:
            if not chunk.row_key or not chunk.HasField("family_name") or not chunk.HasField("qualifier"):
                raise BrokenRowError("a row begins without key, family and qualifier")
            if chunk.row_key <= self._last:
                raise BrokenRowError("rows out of order")
            self._begin(chunk.row_key)
        elif chunk.row_key and chunk.row_key != self._key:
            raise BrokenRowError("a row begins before another is committed")
        if chunk.HasField("family_name"):
            if not chunk.HasField("qualifier"):
                raise BrokenRowError("a family without a qualifier")
            self._family = chunk.family_name.value
        if chunk.HasField("qualifier"):
            self._column = self._families.setdefault(self._family, {}).setdefault(chunk.qualifier.value, [])

    def _begin(self, row_key: bytes) -> None:
        self._key = row_key
        self._families = {}
        self._column, self._family = None, ""
        self._pieces, self._is_cut = [], False


def _filter(family_pattern: str | None, versions: int) -> Any:
    newest = _READ.request().filter
    newest.cells_per_column_limit_filter = versions
    if family_pattern is None:
        return newest
    both = _READ.request().filter
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
