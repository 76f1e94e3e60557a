"""What the Bigtable reader published, as its consumer gets it, played back: the cells that it says a table holds."""

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from services.bigtable_reader.core.changes.images import ImageMaker, RowCells
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.change_batch import Change, Content, Header
from tests.unit.bigtable_reader.consumed import consumed

LOSSLESS: Final = BigtableOptions(row_key="BYTES", qualifiers="base64", timestamps="INT64", versions=10_000)
"""Options under which nothing of a cell is lost on its way."""

Cells = dict[tuple[str, bytes, int], bytes]
"""One row: (family, qualifier, timestamp in microseconds) -> value."""

Batches = Sequence[tuple[Header, Sequence[Change]]]


def rows_of_entries(batches: Batches) -> tuple[dict[bytes, Cells], int]:
    """Return the rows that the lines of the change log make in the order of their sequence, and how many came twice."""
    header, changes = _published(batches, "entries")
    lines = consumed(header, changes)
    times = Counter(line["id"] for line in lines)
    once = {line["id"]: line for line in lines}
    rows: defaultdict[bytes, Cells] = defaultdict(dict)
    backwards = [once[name] for name in sorted(once, reverse=True)]  # what no sequence orders is in the wrong order
    for line in sorted(backwards, key=lambda line: str(line["_millrace_sequence"])):
        _play(line, rows[line["row_key"]])
    return {row_key: cells for row_key, cells in rows.items() if cells}, times.total() - len(times)


def rows_of_images(batches: Batches, images: ImageMaker) -> dict[bytes, Cells]:
    """Return the rows that a mirror has: of each the image with the highest sequence."""
    _header, changes = _published(batches, "images")
    newest: dict[str, Change] = {}
    for change in changes:
        if change.key not in newest or change.sequence > newest[change.key].sequence:
            newest[change.key] = change
    columns = {column.name for column in images.header.columns} - {"row_key"}
    there = consumed(images.header, [change for change in newest.values() if change.op == "UPSERT"])
    return {
        base64.b64decode(row["row_key"]): {
            (column, base64.b64decode(qualifier), version["timestamp_micros"]): base64.b64decode(version["value"])
            for column in columns
            for qualifier, versions in json.loads(row[column] or "{}").items()
            for version in versions
        }
        for row in there
    }


def cells_of(row: RowCells | None) -> Cells:
    """Return the cells of a row that was read."""
    return {
        (family, qualifier, version.timestamp): version.value
        for family, columns in (row or {}).items()
        for qualifier, versions in columns.items()
        for version in versions
    }


def _published(batches: Batches, content: Content) -> tuple[Header, Sequence[Change]]:
    of = [(header, changes) for header, changes in batches if header.content == content]
    return of[-1][0], [change for _header, changes in of for change in changes]


def _play(line: Mapping[str, Any], cells: Cells) -> None:
    """Play a line of the change log on a row."""
    family, qualifier = line["column_family"], line["column"]
    match line["mod_type"]:
        case "SET_CELL":
            cells[family, qualifier, line["timestamp"]] = line["value"]
        case "DELETE_FAMILY":
            _drop([name for name in cells if name[0] == family], cells)
        case "DELETE_CELLS":
            start, end = line["timestamp_from"] or 0, line["timestamp_to"]
            of_column = [name for name in cells if name[:2] == (family, qualifier)]
            _drop([name for name in of_column if start <= name[2] and (end is None or name[2] < end)], cells)
        case "ADD_TO_CELL" | "MERGE_TO_CELL":
            name = (family, qualifier, line["timestamp"])
            cells[name] = (_number(cells.get(name, bytes(8))) + _number(line["value"])).to_bytes(8, "big", signed=True)
        case other:
            raise AssertionError(other)


def _drop(names: Iterable[tuple[str, bytes, int]], cells: Cells) -> None:
    for name in names:
        del cells[name]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)
