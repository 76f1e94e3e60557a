"""Bigtable's rules, plainly: what a row holds after changes, in whatever order they came.

Changes of one row are played in the order of commit time, tiebreaker and place in the call; a set or a delete that
comes later in that order wins. Source: google/bigtable/v2/data.proto (Mutation) and bigtable.proto (tiebreaker).
"""

import struct
from collections.abc import Iterable
from typing import Any

from tests.integration.bigtable_front import Cells
from tests.integration.bigtable_messages import ReadRecord


def row_after(changes: Iterable[ReadRecord]) -> Cells:
    """Return the cells of one row."""
    cells: Cells = {}
    for record in sorted(changes, key=lambda change: (change.commit, change.tiebreaker)):
        for entry in record.entries:
            play(entry, cells)
    return cells


def play(entry: Any, cells: Cells) -> None:
    """Play one mutation, of the kinds that a stream carries, on a row."""
    match entry.WhichOneof("mutation"):
        case "set_cell":
            cell = entry.set_cell
            cells[cell.family_name, cell.column_qualifier, cell.timestamp_micros] = cell.value
        case ("add_to_cell" | "merge_to_cell") as kind:
            cell = getattr(entry, kind)
            name = (cell.family_name, cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros)
            amount = cell.input.int_value if kind == "add_to_cell" else number(cell.input.raw_value)
            cells[name] = struct.pack(">q", number(cells.get(name, bytes(8))) + amount)
        case "delete_from_family":
            keep(cells, lambda name: name[0] != entry.delete_from_family.family_name)
        case "delete_from_column":
            column, times = entry.delete_from_column, entry.delete_from_column.time_range
            start, end = times.start_timestamp_micros, times.end_timestamp_micros
            keep(
                cells,
                lambda name: (
                    name[:2] != (column.family_name, column.column_qualifier)
                    or name[2] < start
                    or (end != 0 and name[2] >= end)
                ),
            )
        case other:
            raise AssertionError(f"a stream does not carry {other}")


def keep(cells: Cells, wanted: Any) -> None:
    """Remove the cells whose names are not wanted."""
    for name in [name for name in cells if not wanted(name)]:
        del cells[name]


def number(data: bytes) -> int:
    """Return a big-endian signed 64-bit number."""
    return int(struct.unpack(">q", data)[0])
