"""Garbage collection by the rules of a table's families, recorded as production records it.

The emulator collects silently, so it does not get the rules; this does the same and puts a record into the stream: type
GARBAGE_COLLECTION, no source cluster, one DeleteFromColumn for each version, [timestamp, timestamp + 1 ms).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from emulators.bigtable_streams.emulator import Emulator
from emulators.bigtable_streams.protocol import DATA, MutateRowRequest
from emulators.bigtable_streams.rows import CellName, RowCells, delete_version, read_prefix, read_row
from emulators.bigtable_streams.tables import Table


class Garbage:
    """Collects a table's garbage on demand."""

    def __init__(self, emulator: Emulator, now: Callable[[], int]) -> None:
        self._emulator = emulator
        self._now = now

    async def collect(self, table: Table) -> tuple[int, int]:
        """Delete what the rules of a table let go; return in how many rows, and how many cells."""
        rows = cells = 0
        if not any(family.HasField("gc_rule") for family in table.families.values()):
            return rows, cells
        for row_key, seen in (await read_prefix(self._emulator, table.name, b"")).items():
            if not self._garbage(table, seen):
                continue
            async with table.locks.rows([row_key]):
                garbage = self._garbage(table, await read_row(self._emulator, table.name, row_key))
                if garbage:
                    await self._delete(table, row_key, [delete_version(cell) for cell in garbage])
                    rows, cells = rows + 1, cells + len(garbage)
        return rows, cells

    def _garbage(self, table: Table, row: RowCells) -> list[CellName]:
        rules = {name: family.gc_rule for name, family in table.families.items() if family.HasField("gc_rule")}
        return list(garbage_of(row, rules, self._now()))

    async def _delete(self, table: Table, row_key: bytes, mutations: list[Any]) -> None:
        request = MutateRowRequest(table_name=table.name, row_key=row_key, mutations=mutations)
        await self._emulator.unary(f"{DATA}MutateRow", request.SerializeToString())
        if table.log is not None:
            table.log.append(row_key, mutations, cluster="", kind="GARBAGE_COLLECTION")


def garbage_of(row: Iterable[CellName], rules: dict[str, Any], now: int) -> Iterator[CellName]:
    """Yield the cells of a row that the rules (GcRule by family) let go at a time."""
    columns: defaultdict[tuple[str, bytes], list[CellName]] = defaultdict(list)
    for cell in row:
        columns[cell.family, cell.qualifier].append(cell)
    for (family, _), cells in columns.items():
        if family in rules:
            newest_first = sorted(cells, key=lambda cell: -cell.timestamp)
            yield from (cell for n, cell in enumerate(newest_first) if _lets_go(rules[family], n, cell.timestamp, now))


def _lets_go(rule: Any, newer: int, timestamp: int, now: int) -> bool:
    match rule.WhichOneof("rule"):
        case "max_num_versions":
            return bool(newer >= rule.max_num_versions)
        case "max_age":
            return bool(timestamp < now - rule.max_age.ToMicroseconds())
        case "union":
            return any(_lets_go(each, newer, timestamp, now) for each in rule.union.rules)
        case "intersection":
            rules = rule.intersection.rules
            return bool(rules) and all(_lets_go(each, newer, timestamp, now) for each in rules)
        case _:
            return False
