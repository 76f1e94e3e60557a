"""Rows as the emulator holds them: read whole, and followed through mutations that are not applied yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from deploy.local.bigtable_change_streams.emulator import Emulator
from deploy.local.bigtable_change_streams.protocol import DATA, Mutation, ReadRowsRequest, ReadRowsResponse


@dataclass(frozen=True, slots=True, order=True)
class CellName:
    """Which cell: a family, a column, and a version of it in microseconds."""

    family: str
    qualifier: bytes
    timestamp: int


class RowCells:
    """The names of the cells of one row, in the order they were read; mutations can be played on them."""

    def __init__(self, cells: Iterable[CellName] = ()) -> None:
        self._cells = dict.fromkeys(cells)

    def __iter__(self) -> Any:
        return iter(self._cells)

    def families(self) -> Sequence[str]:
        """Return the families in which the row has data."""
        return sorted({cell.family for cell in self._cells})

    def apply(self, mutation: Any) -> None:
        """Play a mutation on the row."""
        match mutation.WhichOneof("mutation"):
            case "set_cell":
                cell = mutation.set_cell
                self._cells[CellName(cell.family_name, cell.column_qualifier, cell.timestamp_micros)] = None
            case ("add_to_cell" | "merge_to_cell") as kind:
                cell = getattr(mutation, kind)
                self._cells[
                    CellName(cell.family_name, cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros)
                ] = None
            case "delete_from_row":
                self._cells.clear()
            case _:
                self._cells = {cell: None for cell in self._cells if not deletes(mutation, cell)}

    def copy(self) -> Self:
        """Return a row that can be played with."""
        return type(self)(self._cells)


def deletes(mutation: Any, cell: CellName) -> bool:
    """Tell whether a mutation deletes a cell that is there."""
    match mutation.WhichOneof("mutation"):
        case "delete_from_family":
            return bool(mutation.delete_from_family.family_name == cell.family)
        case "delete_from_column":
            column = mutation.delete_from_column
            times = column.time_range
            return (
                (column.family_name, column.column_qualifier) == (cell.family, cell.qualifier)
                and times.start_timestamp_micros <= cell.timestamp
                and (not times.end_timestamp_micros or cell.timestamp < times.end_timestamp_micros)
            )
        case kind:
            return bool(kind == "delete_from_row")


def delete_family(family: str) -> Any:
    """Make the mutation that deletes a family of a row."""
    mutation = Mutation()
    mutation.delete_from_family.family_name = family
    return mutation


def delete_version(cell: CellName) -> Any:
    """Make the mutation that deletes one version of a column; versions are a millisecond apart."""
    mutation = Mutation()
    column = mutation.delete_from_column
    column.family_name, column.column_qualifier = cell.family, cell.qualifier
    column.time_range.start_timestamp_micros = cell.timestamp
    column.time_range.end_timestamp_micros = cell.timestamp + 1_000
    return mutation


async def read_row(emulator: Emulator, table: str, row_key: bytes) -> RowCells:
    """Return the cells of one row; none if there is no such row."""
    request = ReadRowsRequest(table_name=table)
    request.rows.row_keys.append(row_key)
    rows = await _read(emulator, request)
    return rows.get(row_key, RowCells())


async def read_prefix(emulator: Emulator, table: str, prefix: bytes) -> dict[bytes, RowCells]:
    """Return the cells of every row whose key begins with a prefix."""
    request = ReadRowsRequest(table_name=table)
    keys = request.rows.row_ranges.add()
    keys.start_key_closed = prefix
    if end := _after_prefix(prefix):
        keys.end_key_open = end
    return await _read(emulator, request)


async def _read(emulator: Emulator, request: Any) -> dict[bytes, RowCells]:
    request.filter.strip_value_transformer = True
    rows: dict[bytes, RowCells] = {}
    cells: list[CellName] = []
    row_key, family, qualifier = b"", "", b""
    async for data in emulator.server_streaming(f"{DATA}ReadRows", request.SerializeToString()):
        for chunk in ReadRowsResponse.FromString(data).chunks:
            row_key = chunk.row_key or row_key
            if chunk.reset_row:
                cells = []
                continue
            if chunk.HasField("family_name"):
                family = chunk.family_name.value
            if chunk.HasField("qualifier"):
                qualifier = chunk.qualifier.value
            cells.append(CellName(family, qualifier, chunk.timestamp_micros))
            if chunk.commit_row:
                rows[row_key], cells = RowCells(cells), []
    return rows


def _after_prefix(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with the prefix; empty if there is none."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else b""
