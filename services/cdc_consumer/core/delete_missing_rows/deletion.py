"""What a deletion deletes and as what, how a history says so, and a mirror's keys as its source writes them."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.reconcile.row_keys import wire_keys
from services.cdc_consumer.core.schema.history import (
    CHANGELOG_SUFFIX,
    COMMITTED_COLUMN,
    MOD_TYPE_COLUMN,
    SOURCE_TABLE_COLUMN,
    WRITTEN_COLUMN,
)
from services.cdc_consumer.core.schema.tables import (
    CHANGE_SEQUENCE_NUMBER,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_COLUMN,
    DELETED_COLUMN,
    TableColumn,
    TableDefinition,
    row_schema,
)
from services.cdc_consumer.core.types.types import KEY_TYPES, STRING, TIMESTAMP, column_type
from shared.contracts.change_batch import Header
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError
from shared.contracts.mirrors import SEQUENCE_COLUMN, label_of, source_table
from shared.contracts.source_rows import Key
from shared.contracts.timestamps import Nanoseconds, microseconds

_LAST: Final = (1 << 64) - 1
_ENDING: Final = (
    TableColumn(MOD_TYPE_COLUMN, STRING),
    TableColumn(SOURCE_TABLE_COLUMN, STRING),
    TableColumn(COMMITTED_COLUMN, TIMESTAMP),
    TableColumn(WRITTEN_COLUMN, TIMESTAMP),
    TableColumn(SEQUENCE_COLUMN, STRING),
)
"""What is said of a row that is no more, beside its key."""


def first_sequence(before: int) -> str:
    """Return the sequence of a snapshot row that was read at a time in microseconds: what has a lower one is older."""
    return str(four_sections(before))


def last_sequence_before(before: int) -> str:
    """Return the highest sequence of what is older than a time in microseconds.

    A delete with it is newer than all that it is to delete; a row of the snapshot, or any change since, wins.
    """
    return str(four_sections(before - 1, _LAST, _LAST, _LAST))


def deletions(definition: TableDefinition, rows: pa.Table, before: int, *, soft_delete: bool) -> pa.Table:
    """Return rows of a mirror as they are to be appended so that they are deleted, just before a time.

    With soft delete they keep their values, and say that they are deleted.
    """
    sequence = last_sequence_before(before)
    ours: dict[str, object] = {
        SEQUENCE_COLUMN: sequence,
        COMMIT_TIMESTAMP_COLUMN: before - 1,
        DELETED_COLUMN: True,
        CHANGE_TYPE: "UPSERT" if soft_delete else "DELETE",
        CHANGE_SEQUENCE_NUMBER: sequence,
    }
    return _with(ours, rows, definition)


def history_beside(mirror: TableDefinition) -> TableDefinition:
    """Return the history that may be kept beside a mirror: as much of it as the end of a row needs."""
    key = [column for column in mirror.columns if column.name in mirror.primary_key]
    return TableDefinition(
        mirror.name + CHANGELOG_SUFFIX,
        (*key, *_ENDING),
        mirror.primary_key,
        mirror.mirror_of,
        mirror.dataset,
        append_only=True,
        commit_timestamp=COMMITTED_COLUMN,
    )


def endings(history: TableDefinition, rows: pa.Table, before: int, now: Nanoseconds) -> pa.Table:
    """Return what is to be appended to a history so that the last versions of a mirror's rows end, just before a time.

    However often that is done by one time, it is one delete: repeats of a sequence are none.
    """
    _database, _, table = history.mirror_of.rpartition("/tables/")
    ours: dict[str, object] = {
        MOD_TYPE_COLUMN: "DELETE",
        SOURCE_TABLE_COLUMN: table or None,
        COMMITTED_COLUMN: before - 1,
        WRITTEN_COLUMN: microseconds(now),
        SEQUENCE_COLUMN: last_sequence_before(before),
    }
    return _with(ours, rows, history)


def _with(ours: Mapping[str, object], rows: pa.Table, definition: TableDefinition) -> pa.Table:
    """Return rows under a definition, some of whose columns hold the same in all of them."""
    schema = row_schema(definition)
    columns = [
        pa.array([ours[field.name]] * len(rows), field.type) if field.name in ours else rows.column(field.name)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def check_same_table(header: Header, definition: TableDefinition, label: str) -> None:
    """Refuse a source that is not a mirror's own: what it does not have says nothing of the mirror's rows."""
    if label != label_of(source_table(header)):
        raise MisconfiguredError(
            "mirror-of-another-table",
            f"table {definition.identity} is not a mirror of {source_table(header)}, which is what the source's "
            "command answers for: name the right one with --source or SOURCE_ROWS",
        )
    theirs = {name.upper(): KEY_TYPES[column_type(kind)].bigquery for name, kind in header.key_types()}
    types = {column.name.upper(): column.type.bigquery for column in definition.columns}
    if theirs != {name.upper(): types[name.upper()] for name in definition.primary_key}:
        raise MisconfiguredError(
            "mirror-key-differs",
            f"table {definition.identity} has another key than its source ({', '.join(header.primary_key)}): drop "
            "the table in BigQuery, and take a snapshot five minutes (CLOCK_MARGIN) after it was made again",
        )


def with_whole_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return those rows of a mirror whose keys hold no NULL: others are no row of a source's, nor can be deleted."""
    for name in key:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    return rows


def source_keys(rows: pa.Table, header: Header) -> Sequence[Key | None]:
    """Return the keys of a mirror's rows, none of which holds a NULL, as its source writes them in change batches.

    None is one that no row of the source can have: it is no value of the key's type there.
    """
    names = {name.upper(): name for name in rows.schema.names}
    kinds = {names[name.upper()]: KEY_TYPES[column_type(kind)] for name, kind in header.key_types()}
    return wire_keys(rows, kinds)
