"""What a `doctor` says of a watched table: whether BigQuery can hold it as the tables file wants it, and what fixes it.

The rules are the consumer's and a test holds the two together; sources: BigQuery, "Specifying a schema" (column names,
reserved prefixes), "Stream table updates with change data capture" (at most 16 key columns and 2000 columns).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from services.spanner_reader.adapters.schema.catalog import StreamDefinition
from services.spanner_reader.adapters.spanner.dialects import Dialect, quoted, stream_options
from services.spanner_reader.core.schema.shapes import ColumnShape, TableShape
from shared.contracts.column_options import RESERVED_PREFIXES
from shared.contracts.tables_file import TableOptions
from shared.runtime.findings import Finding, Level

MIRRORED_TYPES: Final = frozenset(
    {
        *("BOOL", "INT64", "FLOAT64", "FLOAT32", "NUMERIC", "STRING", "BYTES"),
        *("DATE", "TIMESTAMP", "JSON", "PG_JSONB", "PG_NUMERIC", "UUID", "ENUM", "PROTO", "INTERVAL"),
    }
)
"""What the consumer's type map knows, arrays of these too (docs/reference/types.md)."""
MOST_KEY_COLUMNS: Final = 16
_MOST_COLUMNS: Final = 2_000
_OURS: Final = 2
"""Columns that every mirror has beside the source's; one more keeps what is deleted."""
_OF_A_HISTORY: Final = (
    *("_metadata_spanner_mod_type", "_metadata_spanner_table_name", "_metadata_spanner_commit_timestamp"),
    *("_metadata_spanner_server_transaction_id", "_metadata_spanner_record_sequence"),
    "_metadata_spanner_is_last_record_in_transaction_in_partition",
    *("_metadata_spanner_number_of_records_in_transaction", "_metadata_spanner_number_of_partitions_in_transaction"),
    *("_metadata_spanner_transaction_tag", "_metadata_spanner_is_system_transaction"),
    *("_metadata_big_query_commit_timestamp", "_millrace_old_values", "_millrace_sequence"),
    "_millrace_reconstructed",
)
_OF_ITS_VIEW: Final = ("valid_from", "valid_to", "is_current", "millrace_repeat")
_TEXT_KEYS: Final = ("BYTES", "FLOAT64", "FLOAT32")


def inspect_table(name: str, table: TableShape, alter_stream: str, options: TableOptions) -> Iterator[Finding]:
    """Inspect a watched table: its key, its columns' types and names, its size; what is ignored is passed over."""
    what = f"table {name}"
    ignored = {column.lower() for column in options.ignored_columns}
    kept = [each for each in table.columns if each.watched and each.name.lower() not in ignored]
    unfit = len(table.key) > MOST_KEY_COLUMNS or any(each.is_key and not _is_known(each) for each in kept)
    if unfit and "history" in (options.mode, options.unfit_key):
        if options.mode != "history":
            yield _history_alone(what)
        yield from _as_history(what, table, kept, alter_stream, replace(options, mode="history"))
        return
    seen = [
        *_key(what, table, alter_stream),
        *_types(what, kept, alter_stream),
        *_names(what, kept, alter_stream),
        *_names_of_a_history(what, kept, options),
        *_size(what, len(kept), alter_stream, options),
    ]
    if all(one.level is Level.OK for one in seen):
        yield Finding.ok(what, "; ".join(one.detail for one in seen))
    else:
        yield from seen


def _history_alone(what: str) -> Finding:
    return Finding.warning(
        f"{what}: key",
        "no BigQuery key holds it, so a history of the table is kept, and no mirror (unfit_key in the tables file)",
        'give the table mode = "history" in the tables file; a mirror needs a table with another key',
    )


def _as_history(
    what: str, table: TableShape, kept: Sequence[ColumnShape], alter_stream: str, options: TableOptions
) -> Iterator[Finding]:
    """Inspect a table whose key needs no BigQuery key."""
    rest = [each for each in kept if not each.is_key]
    yield from _types(what, rest, alter_stream)
    yield from _names(what, kept, alter_stream)
    yield from _names_of_a_history(what, kept, options)
    yield from _size(what, len(kept), alter_stream, options)
    yield Finding.ok(f"{what}: key", ", ".join(name for name, _kind in table.key))


def inspect_soft_delete(
    name: str, options: TableOptions, stream: str, definition: StreamDefinition
) -> Iterator[Finding]:
    """Check whether a deleted row that is kept has values to keep."""
    if options.soft_delete and options.mode != "history" and definition.value_capture_type in ("NEW_ROW", "NEW_VALUES"):
        old_values = stream_options(definition.dialect, "value_capture_type = 'NEW_ROW_AND_OLD_VALUES'")
        yield Finding.warning(
            f"table {name}: soft_delete",
            "the stream captures NEW_ROW, so a delete carries no values: a deleted row keeps only its key",
            f"ALTER CHANGE STREAM {quoted(definition.dialect, stream)} {old_values}, if the values matter",
        )


def _types(what: str, kept: Sequence[ColumnShape], alter_stream: str) -> Iterator[Finding]:
    unknown = [column for column in kept if not _is_known(column)]
    in_key = [column for column in unknown if column.is_key]
    if in_key:
        yield Finding.error(
            f"{what}: types",
            f"{_typed(in_key)}: this version does not know when two such keys are the same, so every change of the "
            "table becomes a dead letter (key_not_representable)",
            f'{_without(in_key, alter_stream)}, or keep a history of it alone (unfit_key = "history" there)',
        )
    elif unknown:
        yield Finding.warning(
            f"{what}: types",
            f"{_typed(unknown)}: this version does not know the type, and writes the text of its values into a STRING "
            "column",
            f"upgrade Millrace; or {_without(unknown, alter_stream)}",
        )


def _typed(columns: Iterable[ColumnShape]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def _names(what: str, kept: Sequence[ColumnShape], alter_stream: str) -> Iterator[Finding]:
    reserved = [column for column in kept if column.name.upper().startswith(RESERVED_PREFIXES)]
    if reserved:
        yield Finding.error(
            f"{what}: names",
            f"{_listed(reserved)}: BigQuery or Millrace keeps the prefix for itself, so every change of the table "
            "becomes a dead letter (bad_name)",
            _without(reserved, alter_stream),
        )
    alike: Mapping[str, list[ColumnShape]] = defaultdict(list)
    for column in kept:
        alike[column.name.upper()].append(column)
    twice = [column for columns in alike.values() if len(columns) > 1 for column in columns]
    if twice:
        yield Finding.error(
            f"{what}: names",
            f"{_listed(twice)}: BigQuery does not tell upper from lower case, so every change of the table becomes a "
            "dead letter (bad_name)",
            # `ignored_columns` does not distinguish them either
            f"rename them, or {alter_stream}, with only one of each in parentheses",
        )


def _names_of_a_history(what: str, kept: Sequence[ColumnShape], options: TableOptions) -> Iterator[Finding]:
    taken = {name.upper() for name in (*_OF_A_HISTORY, *_OF_ITS_VIEW)}
    found = [column for column in kept if column.name.upper() in taken]
    if found and options.mode != "mirror":
        yield Finding.error(
            f"{what}: names in a history",
            f"{_listed(found)}: a history has columns of its own so named, so every change of the table becomes a dead "
            "letter (bad_name)",
            'set mode = "mirror" for the table in the tables file, or name these columns in its ignored_columns, or '
            "rename them",
        )


def _size(what: str, columns: int, alter_stream: str, options: TableOptions) -> Iterator[Finding]:
    ours = [_OURS + options.soft_delete] if options.mode != "history" else []
    ours += [len(_OF_A_HISTORY)] if options.mode != "mirror" else []
    most = _MOST_COLUMNS - max(ours)
    if columns > most:
        yield Finding.error(
            f"{what}: columns",
            f"{columns}, and BigQuery takes {most} beside ours",
            f"{alter_stream}, with fewer of its columns in parentheses, or name some in the table's ignored_columns in "
            "the tables file",
        )


def _key(what: str, table: TableShape, alter_stream: str) -> Iterator[Finding]:
    key: Sequence[tuple[str, str]] = table.key
    if not key:
        yield Finding.error(
            f"{what}: key", "has no primary key: there is nothing to upsert by", f"{alter_stream}, or a key"
        )
        return
    if len(key) > MOST_KEY_COLUMNS:
        yield Finding.error(
            f"{what}: key",
            f"{len(key)} columns, and BigQuery takes {MOST_KEY_COLUMNS}",
            f'{alter_stream}, or keep a history of it alone (unfit_key = "history" in the tables file)',
        )
    nullable = [column.name for column in table.columns if column.is_key and column.nullable]
    if nullable:
        yield Finding.warning(
            f"{what}: key",
            f"{', '.join(nullable)} may be NULL: a change with NULL in its key becomes a dead letter "
            "(key_not_representable), for no BigQuery key holds NULL",
            _not_null(what, nullable),
        )
    texts = [f"{name} ({kind})" for name, kind in key if kind in _TEXT_KEYS]
    becomes = f"; a STRING in BigQuery: {', '.join(texts)}" if texts else ""
    yield Finding.ok(f"{what}: key", ", ".join(name for name, _kind in key) + becomes)


def _not_null(what: str, columns: Sequence[str]) -> str:
    names: Mapping[bool, str] = {True: "that column", False: "those columns"}
    return f"write no NULL into {names[len(columns) == 1]}: make them NOT NULL where {what} is made"


def _is_known(column: ColumnShape) -> bool:
    return _element(column.type) in MIRRORED_TYPES


def _element(type_name: str) -> str:
    return type_name.removeprefix("ARRAY<").removesuffix(">") if type_name.startswith("ARRAY<") else type_name


def _without(columns: Sequence[ColumnShape], alter_stream: str) -> str:
    """Return how columns are kept out of BigQuery."""
    if any(column.is_key for column in columns):
        return f"a column of the key cannot be ignored: {alter_stream}, or name the table in the tables file's exclude"
    return (
        f"{alter_stream}, with the other columns of the table in parentheses; or, in the tables file, name "
        f"{_listed(columns)} in the table's ignored_columns, or the table in exclude"
    )


def _listed(columns: Iterable[ColumnShape]) -> str:
    return ", ".join(column.name for column in columns)


def alter_stream_to_leave_out(name: str, dialect: Dialect) -> str:
    """Return how a table, or a column of it, is kept out of a stream."""
    return f"leave it out with ALTER CHANGE STREAM {quoted(dialect, name)} SET FOR ..."
