"""Rows as the emulator holds them: read whole, and followed through mutations that are not applied yet."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from emulators.bigtable_streams.emulator import Emulator
from emulators.bigtable_streams.protocol import DATA, Mutation, ReadRowsRequest, ReadRowsResponse


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

    def __iter__(self) -> Iterator[CellName]:
        return iter(self._cells)

    def families(self) -> Sequence[str]:
        """Return the families in which the row has data."""
        return sorted({cell.family for cell in self._cells})

    def apply(self, mutation: Any) -> None:
        """Play a mutation on the row."""
        written = written_cell(mutation)
        if written is not None:
            self._cells[written] = None
        else:
            self._cells = {cell: None for cell in self._cells if not deletes(mutation, cell)}

    def copy(self) -> Self:
        """Return a row that can be played with."""
        return type(self)(self._cells)


def written_cell(mutation: Any) -> CellName | None:
    """Return the cell that a mutation writes or adds to, or None if it deletes."""
    match mutation.WhichOneof("mutation"):
        case "set_cell":
            cell = mutation.set_cell
            return CellName(cell.family_name, cell.column_qualifier, cell.timestamp_micros)
        case ("add_to_cell" | "merge_to_cell") as kind:
            cell = getattr(mutation, kind)
            return CellName(cell.family_name, cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros)
        case _:
            return None


def deletes(mutation: Any, cell: CellName) -> bool:
    """Return whether a mutation deletes a cell that is there."""
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


def set_value(cell: CellName, value: bytes) -> Any:
    """Make the mutation that writes a cell."""
    mutation = Mutation()
    mutation.set_cell.family_name, mutation.set_cell.column_qualifier = cell.family, cell.qualifier
    mutation.set_cell.timestamp_micros, mutation.set_cell.value = cell.timestamp, value
    return mutation


async def read_row(emulator: Emulator, table: str, row_key: bytes) -> RowCells:
    """Return the cells of one row; none if there is no such row."""
    request = ReadRowsRequest(table_name=table)
    request.rows.row_keys.append(row_key)
    request.filter.strip_value_transformer = True
    rows = await _read(emulator, request)
    return RowCells(rows.get(row_key, {}))


async def read_values(emulator: Emulator, table: str, row_key: bytes) -> dict[CellName, bytes]:
    """Return the cells of one row with their values."""
    request = ReadRowsRequest(table_name=table)
    request.rows.row_keys.append(row_key)
    return (await _read(emulator, request)).get(row_key, {})


async def read_prefix(emulator: Emulator, table: str, prefix: bytes) -> dict[bytes, RowCells]:
    """Return the cells of every row whose key begins with a prefix."""
    request = ReadRowsRequest(table_name=table)
    keys = request.rows.row_ranges.add()
    keys.start_key_closed = prefix
    if end := _after_prefix(prefix):
        keys.end_key_open = end
    request.filter.strip_value_transformer = True
    return {row_key: RowCells(cells) for row_key, cells in (await _read(emulator, request)).items()}


async def _read(emulator: Emulator, request: Any) -> dict[bytes, dict[CellName, bytes]]:
    rows: dict[bytes, dict[CellName, bytes]] = {}
    cells: dict[CellName, bytes] = {}
    row_key, family, qualifier, value = b"", "", b"", b""
    async for data in emulator.server_streaming(f"{DATA}ReadRows", request.SerializeToString()):
        for chunk in ReadRowsResponse.FromString(data).chunks:
            row_key = chunk.row_key or row_key
            if chunk.reset_row:
                cells, value = {}, b""
                continue
            if chunk.HasField("family_name"):
                family = chunk.family_name.value
            if chunk.HasField("qualifier"):
                qualifier = chunk.qualifier.value
            value += chunk.value
            if not chunk.value_size:  # the value is whole
                cells[CellName(family, qualifier, chunk.timestamp_micros)] = value
                value = b""
            if chunk.commit_row:
                rows[row_key], cells = cells, {}
    return rows


def _after_prefix(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with the prefix; empty if there is none."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else b""
