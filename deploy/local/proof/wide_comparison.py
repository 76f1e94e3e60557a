"""Whether BigQuery equals Bigtable: each row of a mirror as its cells are, and a change log that replays to all cells.

What a mirror has to hold is computed here from the cells themselves and from the tables file.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.api_core.exceptions import NotFound

from deploy.local.demo.wide_tables import CellColumn, WideTable
from deploy.local.platform.cells import Cells, DeleteCells, DeleteFamily, Mutation, Row, SetCell, Versions, newest
from deploy.local.platform.target import SEQUENCE, BigQueryDataset
from deploy.local.proof.comparison import TableComparison, TableShape, compare

ROW_KEY: Final = "row_key"
CHANGELOG: Final = "_changelog"
ONCE: Final = "_changelog_once"
BIGTABLE: Final = "Bigtable"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(slots=True)
class ChangeLogComparison:
    """What replaying a change log came to."""

    table: str
    entries: int = 0
    """Entries that differ."""
    rows: int = 0
    """Rows of the change log, repeats included."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """How many entries there are of each kind."""
    result: TableComparison = field(default_factory=lambda: TableComparison(""))

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return self.result.equal


def compare_wide(table: WideTable, source: Mapping[bytes, Row], dataset: BigQueryDataset) -> TableComparison:
    """Compare a mirror with the cells that are to be in it."""
    shape = shape_of(table)
    rows = [mirrored(table, row_key, row) for row_key, row in source.items()]
    return compare(shape, rows, dataset.rows(table.name))


def shape_of(table: WideTable) -> TableShape:
    """Return the columns that a table's mirror has."""
    columns = {ROW_KEY: "STRING"}
    for column in table.columns:
        columns[column.name] = column.type
        if column.timestamp is not None:
            columns[column.timestamp] = "TIMESTAMP"
    return TableShape(table.name, columns | dict.fromkeys(table.families, "JSON"), [ROW_KEY], BIGTABLE)


def mirrored(table: WideTable, row_key: bytes, row: Row) -> dict[str, Any]:
    """Return what the mirror's row of some cells has to hold."""
    values: dict[str, Any] = {ROW_KEY: row_key.decode()}
    for column in table.columns:
        versions = row.get(column.family, {}).get(column.qualifier)
        values[column.name] = None if versions is None else _value(column, newest(versions))
        if column.timestamp is not None:
            values[column.timestamp] = None if versions is None else _EPOCH + max(versions) * _MICROSECOND
    apart = {(column.family, column.qualifier) for column in table.columns}
    for family in table.families:
        cells = {
            qualifier.decode(): _member(table, versions)
            for qualifier, versions in row.get(family, {}).items()
            if (family, qualifier) not in apart
        }
        values[family] = cells or None
    return values


def compare_change_log(table: str, source: Mapping[bytes, Row], dataset: BigQueryDataset) -> ChangeLogComparison:
    """Replay a change log from the beginning, and compare what it leaves behind with a table's cells."""
    found = ChangeLogComparison(table)
    view = table + ONCE
    found.result = TableComparison(view, len(source))
    try:
        (counted,) = dataset.query(f"SELECT COUNT(*) AS total FROM `{table}{CHANGELOG}`")
        entries = dataset.query(f"SELECT * FROM `{view}` ORDER BY {SEQUENCE}")
    except NotFound:
        found.result.differs(f"{view}: no such view in BigQuery")
        return found
    replayed, kinds = Cells(), dict[str, int]()
    for entry in entries:
        kinds[entry["mod_type"]] = kinds.get(entry["mod_type"], 0) + 1
        replayed.mutate(entry[ROW_KEY].encode(), entry_of(entry))
    found.rows, found.entries, found.kinds = int(counted["total"]), len(entries), kinds
    for row_key in sorted({*source, *replayed}):
        wanted, got = _flat(source.get(row_key, {})), _flat(replayed.row(row_key))
        for cell in sorted(wanted.keys() | got.keys()):
            if wanted.get(cell) != got.get(cell):
                family, qualifier, timestamp = cell
                name = f"{view}[{row_key.decode()} {family}:{qualifier.decode()} {timestamp}]"
                found.result.differs(f"{name}: {got.get(cell)!r} replayed and {wanted.get(cell)!r} in Bigtable")
    return found


def entry_of(entry: Mapping[str, Any]) -> Mutation:
    """Return what an entry of a change log did to its row."""
    family, column = entry["column_family"], entry["column"]
    match entry["mod_type"]:
        case "SET_CELL":
            return SetCell(family, column.encode(), _micros(entry["timestamp"]), entry["value"])
        case "DELETE_CELLS":
            start, end = _micros(entry["timestamp_from"]), _micros(entry["timestamp_to"])
            return DeleteCells(family, column.encode(), start, end)
        case "DELETE_FAMILY":
            return DeleteFamily(family)
        case kind:
            raise ValueError(f"an entry of kind {kind}, which no workload makes")


def _flat(row: Row) -> dict[tuple[str, bytes, int], bytes]:
    return {
        (family, qualifier, timestamp): value
        for family, columns in row.items()
        for qualifier, versions in columns.items()
        for timestamp, value in versions.items()
    }


def _value(column: CellColumn, value: bytes) -> float | int:
    return int.from_bytes(value, signed=True) if column.type == "INT64" else float(value)


def _member(table: WideTable, versions: Versions) -> Any:
    newest_first = sorted(versions.items(), reverse=True)[: table.versions]
    members = [
        {"value": _text(table, value), "timestamp_micros": timestamp} if table.with_timestamps else _text(table, value)
        for timestamp, value in newest_first
    ]
    return members if table.versions > 1 else members[0]


def _text(table: WideTable, value: bytes) -> str:
    return base64.b64encode(value).decode() if table.values == "base64" else value.decode()


def _micros(time: datetime | None) -> int:
    return 0 if time is None else (time - _EPOCH) // _MICROSECOND
