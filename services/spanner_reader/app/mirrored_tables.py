"""Which tables are mirrored, and what makes changes of their rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from services.spanner_reader.core.snapshot.snapshot import RowMaker
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.ports import DatabaseCatalog, WatchedTable
from shared.contracts.change_batch import Header
from shared.contracts.timestamps import Nanoseconds


@dataclass(frozen=True, slots=True)
class MirroredTables:
    """The tables of the stream; ``included`` returns whether the tables file includes a table."""

    catalog: DatabaseCatalog
    changes: ChangeMaker
    included: Callable[[str], bool]

    def snapshot_header(self, table: WatchedTable) -> Header:
        """Return the header of a table's snapshot rows.

        Its key is in the table's own order, by which rows are read, also where the reader has not learnt that yet.
        """
        header = self.changes.header(table.name, table.column_types, table.value_capture_type)
        return msgspec.structs.replace(header, origin="snapshot", primary_key=tuple(table.primary_key))

    def row_maker(self, table: WatchedTable, read_at: Nanoseconds) -> tuple[WatchedTable, RowMaker]:
        """Return what makes changes of rows read at a time, and the table with its columns in the order of these."""
        header = self.snapshot_header(table)
        types = {column.name: column for column in table.column_types}
        ordered = replace(table, column_types=tuple(types[column.name] for column in header.columns))
        return ordered, RowMaker(header, read_at, self.changes.buckets_of(table.name))
