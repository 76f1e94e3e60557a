"""The rows of mirrors in memory, as queries show them; and a source that is asked for its rows."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from services.cdc_consumer.core.delete_missing_rows.deletion import first_sequence, history_beside
from services.cdc_consumer.core.schema.tables import DELETED_COLUMN, TableDefinition
from services.cdc_consumer.ports import MirrorTable, OtherRows, Recorded, RowBuffer
from shared.contracts.change_batch import Change, Header, encode_batch
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.mirrors import SEQUENCE_COLUMN, label_of
from shared.contracts.source_rows import Done, Key
from tests.fakes.cdc_writer import FakeCdcWriter


class FakeMirrorRows:
    """The rows that a `FakeCdcWriter` has applied."""

    def __init__(self, writer: FakeCdcWriter) -> None:
        self._writer = writer
        self.deleted_before: dict[str, int] = {}
        self.queries = 0
        self.announced_at = 0
        """When mirrors that were made anew came to say that they are complete, in microseconds."""

    def find(self, name: str) -> MirrorTable:
        """Return a mirror as it is now."""
        definition = self._writer.tables.there[name]
        soft_delete = DELETED_COLUMN in {column.name for column in definition.columns}
        since = self._writer.tables.complete_since.get(name, 0)
        history = history_beside(definition)
        return MirrorTable(
            definition,
            label_of(definition.mirror_of),
            soft_delete,
            since,
            history=history if history.identity in self._writer.tables.there else None,
        )

    def older(self, mirror: MirrorTable, before: int, into: RowBuffer) -> OtherRows:
        self.queries += 1
        into.clear()
        older, others = (self._rows(mirror, before, older=each) for each in (True, False))
        for start in range(0, len(older), 2):
            into.add(older.slice(start, 2))
        return OtherRows(len(older) + len(others), others.slice(0, 100))

    def count_older(self, mirror: MirrorTable, before: int) -> int:
        self.queries += 1
        return len(self._rows(mirror, before, older=True))

    def record_deletion(self, mirror: MirrorTable, before: int, announced_by: int) -> Recorded:
        name = mirror.definition.identity
        if self.announced_at > announced_by:
            return "early"
        self.deleted_before[name] = max(before, self.deleted_before.get(name, 0))
        return "recorded"

    def _rows(self, mirror: MirrorTable, before: int, *, older: bool) -> pa.Table:
        limit, definition = parse_sequence(first_sequence(before)), mirror.definition
        found = [
            row
            for row in self._writer.rows(definition.identity).values()
            if not row.get(DELETED_COLUMN) and (parse_sequence(row[SEQUENCE_COLUMN]) < limit) is older
        ]
        return _table(definition, sorted(found, key=lambda row: _sortable(row, definition)))


def _sortable(row: Mapping[str, Any], definition: TableDefinition) -> list[tuple[bool, Any]]:
    return [(row[name] is not None, row[name]) for name in definition.primary_key]


def _table(definition: TableDefinition, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    columns = [(column.name, column.type.wire) for column in definition.columns]
    return pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(columns))


class FakeSource:
    """A source with one table, which has a key of one column: its rows by key."""

    def __init__(self, header: Header, rows: Mapping[Any, str] | None = None) -> None:
        self.header = header
        self.rows = dict(rows or {})
        self.asked: list[Key] = []
        self.strays: list[int] = []
        """Keys that it answers with whether it was asked for them or not."""

    def tables(self) -> Sequence[str]:
        return [self.header.table]

    def describe(self, table: str) -> tuple[bytes, Done]:
        assert table == self.header.table
        return encode_batch(msgspec.structs.replace(self.header, origin="snapshot"), []), Done("", "")

    def read_keys(self, table: str, keys: Sequence[Key]) -> tuple[Sequence[bytes], Done]:
        assert table == self.header.table
        self.asked += keys
        there = {str(key) for key in self.rows}
        found = [str(key) for (key,) in keys if str(key) in there] + [str(key) for key in self.strays]
        (name,) = self.header.primary_key
        changes = [
            Change("UPSERT", "SNAPSHOT", first_sequence(1), "", "{}", json.dumps({name: key}), "{}") for key in found
        ]
        return [encode_batch(self.header, changes)], Done("", "", rows=len(found))
