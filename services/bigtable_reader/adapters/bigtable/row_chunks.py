"""ReadRows: the cells of rows, put together from the chunks that the service cuts them into.

Source: `google.bigtable.v2.ReadRowsResponse.CellChunk`: a chunk names its row, family and qualifier only where they
differ from the chunk before; a value may be cut; a row counts once it is committed, and may be taken back before.
"""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final

import msgspec
from google.cloud.bigtable_v2.types import ReadRowsRequest

from services.bigtable_reader.adapters.bigtable.connection import TIMEOUT, BigtableChannels, Method, Table
from services.bigtable_reader.adapters.bigtable.row_messages import NO_MESSAGE, Answer, family_of, qualifier_of
from services.bigtable_reader.core.changes.images import CellVersion, RowCells
from shared.contracts.errors import TransientError

_AROUND_A_VALUE: Final = 4
"""Bytes: quotes, a colon and a comma at least."""
READ_ROWS: Final = Method("ReadRows", ReadRowsRequest.pb(), Answer)


class Cell(msgspec.Struct, frozen=True, gc=False):
    """One version of a cell. ``timestamp``: microseconds since 1970-01-01 in UTC."""

    family: str
    qualifier: bytes
    timestamp: int
    value: bytes


class BrokenRowError(ValueError):
    """The chunks of a row contradict each other; nothing of it can be used."""


async def read_rows(
    channels: BigtableChannels,
    table: Table,
    request: Any,
    timeout: float = TIMEOUT,  # noqa: ASYNC109  the deadline travels with the call
) -> AsyncGenerator[tuple[bytes, list[Cell]], None]:
    """Yield the rows that a raw ReadRowsRequest names and that exist, each with its cells in the service's order.

    TransientError, MisconfiguredError. A row is yielded when all of it is there, or not at all.
    """
    chunks = RowChunks()
    try:
        async with aclosing(channels.stream(READ_ROWS, table, request, timeout=timeout)) as responses:
            async for response in responses:
                for row_key, families in chunks.take(response.chunks):
                    yield row_key, cells_of(families)
        chunks.end()
    except BrokenRowError as error:
        raise TransientError(f"ReadRows on {table.name}: {error}") from error


class RowChunks:
    """What has come of the row that is not yet whole."""

    def __init__(self, versions_kept: Callable[[str, bytes], int | None] | None = None) -> None:
        """``versions_kept`` returns how many versions are kept of a column, by family and qualifier; None: all.

        Of a family of which no column is kept, one is there without a version: the row has a cell in that family.
        """
        self._versions_kept = versions_kept
        self.last = b""
        """The key of the row that was whole last."""
        self._forget_row()

    def take(self, chunks: Iterable[Any]) -> list[tuple[bytes, RowCells]]:
        """Take chunks, in their order; return the rows that are whole with them. BrokenRowError."""
        whole: list[tuple[bytes, RowCells]] = []
        for chunk in chunks:
            if chunk.reset_row:
                self._reset(chunk)
                continue
            if self._is_cut or chunk.value_size > 0:
                self._take_chunk(chunk)
            else:
                if not self._key or chunk.row_key or chunk.family_name != NO_MESSAGE:
                    self._find_column(chunk)
                elif (qualifier := chunk.qualifier) != NO_MESSAGE:
                    self._find_versions(qualifier_of(qualifier))
                self._versions.append(CellVersion(chunk.timestamp_micros, chunk.value))
            if chunk.commit_row:
                self.last = self._key
                whole.append((self._key, self._families))
                self._forget_row()
        return whole

    @property
    def under_way(self) -> tuple[bytes, RowCells]:
        """Return the key of the row that is not whole yet, empty if there is none, and its cells so far."""
        return self._key, self._families

    @property
    def cut_bytes(self) -> int:
        """Return how many bytes the value has at least that is kept and not whole yet; 0 if there is none."""
        return self._cut_bytes

    def end(self) -> None:
        """End the reading. BrokenRowError if a row is not whole."""
        if self._key:
            raise BrokenRowError("the answer ended within a row")

    def _forget_row(self) -> None:
        self._key = b""
        """Empty: no row is under way."""
        self._families: RowCells = {}
        self._family = ""
        self._columns: dict[bytes, list[CellVersion]] = {}
        """Of the family that the chunk before was of."""
        self._versions: list[CellVersion] = []
        """Of its column."""
        self._timestamp = 0
        self._chunks: list[bytes] = []
        self._chunks_bytes = self._cut_bytes = 0
        self._is_cut = False

    def _reset(self, chunk: Any) -> None:
        if not self._key:
            raise BrokenRowError("a row was taken back before it began")
        if chunk.row_key or chunk.value or chunk.family_name != NO_MESSAGE or chunk.qualifier != NO_MESSAGE:
            raise BrokenRowError("a row is taken back by a chunk with content")
        self._forget_row()

    def _take_chunk(self, chunk: Any) -> None:
        """Take a chunk of a cell's value."""
        if not self._is_cut:
            self._find_column(chunk)
            self._timestamp = chunk.timestamp_micros  # which the chunks of a value after its first one do not carry
        elif chunk.row_key and chunk.row_key != self._key:
            raise BrokenRowError("a row begins before a value is whole")
        self._is_cut = chunk.value_size > 0
        if self._is_cut and chunk.commit_row:
            raise BrokenRowError("a row is committed before a value is whole")
        if not _is_full(self._versions):
            self._chunks.append(chunk.value)
            self._chunks_bytes += len(chunk.value)
            self._cut_bytes = max(self._chunks_bytes, chunk.value_size)
        if not self._is_cut:
            value, self._chunks = b"".join(self._chunks), []
            self._chunks_bytes = self._cut_bytes = 0
            self._versions.append(CellVersion(self._timestamp, value))

    def _find_column(self, chunk: Any) -> None:
        row_key, family, qualifier = chunk.row_key, chunk.family_name, chunk.qualifier
        has_family, has_qualifier = family != NO_MESSAGE, qualifier != NO_MESSAGE
        if not self._key:
            if not row_key or not has_family or not has_qualifier:
                raise BrokenRowError("a row begins without key, family and qualifier")
            if row_key <= self.last:
                raise BrokenRowError("rows out of order")
            self._key = row_key
        elif row_key and row_key != self._key:
            raise BrokenRowError("a row begins before another is committed")
        if has_family:
            if not has_qualifier:
                raise BrokenRowError("a family without a qualifier")
            self._family = family_of(family)
            self._columns = self._families.setdefault(self._family, {})
        if has_qualifier:
            self._find_versions(qualifier_of(qualifier))

    def _find_versions(self, qualifier: bytes) -> None:
        versions = self._columns.get(qualifier)
        if versions is None:
            most = None if self._versions_kept is None else self._versions_kept(self._family, qualifier)
            versions = [] if most is None else _Limited(most)
            if most != 0 or not self._columns:
                self._columns[qualifier] = versions
        self._versions = versions


class _Limited(list[CellVersion]):
    """The first versions of a column; others are dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def append(self, version: CellVersion) -> None:
        if len(self) < self.most:
            super().append(version)


def _is_full(versions: list[CellVersion]) -> bool:
    return isinstance(versions, _Limited) and len(versions) >= versions.most


def least_bytes(families: RowCells) -> int:
    """Return a number of bytes that the image of a row has at least, whatever its encodings."""
    return sum(
        len(qualifier) * (len(versions) > 0) + sum(_AROUND_A_VALUE + len(version.value) for version in versions)
        for columns in families.values()
        for qualifier, versions in columns.items()
    )


def cells_of(families: RowCells) -> list[Cell]:
    """Return the cells of a row one by one."""
    return [
        Cell(family, qualifier, version.timestamp, version.value)
        for family, columns in families.items()
        for qualifier, versions in columns.items()
        for version in versions
    ]
