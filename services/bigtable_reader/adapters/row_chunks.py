"""ReadRows: the cells of rows, put together from the chunks that the service cuts them into.

Source: `google.bigtable.v2.ReadRowsResponse.CellChunk`. What a chunk does not say is as in the one before it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from services.bigtable_reader.adapters.connection import Channels, Method, Table
from shared.contracts.errors import TransientError

READ_ROWS = Method("ReadRows", ReadRowsRequest.pb(), ReadRowsResponse.pb())


@dataclass(frozen=True, slots=True)
class Cell:
    """One version of a cell. ``timestamp``: microseconds since 1970-01-01 in UTC."""

    family: str
    qualifier: bytes
    timestamp: int
    value: bytes


@dataclass(slots=True)
class _Unfinished:
    row_key: bytes = b""
    family: str = ""
    qualifier: bytes = b""
    timestamp: int = 0
    value: list[bytes] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)


async def read_rows(channels: Channels, table: Table, request: Any) -> AsyncGenerator[tuple[bytes, list[Cell]], None]:
    """Yield the rows that a raw ReadRowsRequest names and that exist, each with its cells in the service's order.

    TransientError, MisconfiguredError. A row is yielded when all of it is there, or not at all.
    """
    row = _Unfinished()
    async with aclosing(channels.stream(READ_ROWS, table, request)) as responses:
        async for response in responses:
            for chunk in response.chunks:
                if chunk.reset_row:
                    row = _Unfinished()
                    continue
                _add(row, chunk)
                if chunk.commit_row:
                    yield row.row_key, row.cells
                    row = _Unfinished()
    if row.row_key:
        raise TransientError(f"ReadRows on {table.name} ended in the middle of a row")


def _add(row: _Unfinished, chunk: Any) -> None:
    if chunk.row_key:
        row.row_key = chunk.row_key
    if chunk.HasField("family_name"):
        row.family = chunk.family_name.value
    if chunk.HasField("qualifier"):
        row.qualifier = chunk.qualifier.value
    if not row.value:  # the pieces of a value after its first one carry no timestamp
        row.timestamp = chunk.timestamp_micros
    row.value.append(chunk.value)
    if not chunk.value_size:  # not zero where more of this value follows
        row.cells.append(Cell(row.family, row.qualifier, row.timestamp, b"".join(row.value)))
        row.value = []
