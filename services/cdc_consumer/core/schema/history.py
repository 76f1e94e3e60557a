"""A history: a table with one row for every change, and a view of it that shows how long each version was current.

The columns are named as in Google's "Spanner change streams to BigQuery" template, so that queries written for its
changelog tables run on ours; with our sequence beside them, by which the view orders versions and drops repeats.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.schema.tables import TableColumn, TableDefinition, within_limit
from services.cdc_consumer.core.types.arrays import by_halves, json_table, one_array
from services.cdc_consumer.core.types.sequence_array import normal_sequences
from services.cdc_consumer.core.types.types import BOOL, INT64, JSON, STRING, TIMESTAMP
from services.cdc_consumer.core.types.values import wire_values
from shared.contracts.change_batch import RECONSTRUCTED, ChangeBatch, Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.mirrors import SEQUENCE_COLUMN, source_table
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, microseconds

CHANGELOG_SUFFIX: Final = "_changelog"

MOD_TYPE_COLUMN: Final = "_metadata_spanner_mod_type"
"""The source's own word, and DELETE of whatever deletes."""
SOURCE_TABLE_COLUMN: Final = "_metadata_spanner_table_name"
COMMITTED_COLUMN: Final = "_metadata_spanner_commit_timestamp"
WRITTEN_COLUMN: Final = "_metadata_big_query_commit_timestamp"
"""When the change was on its way into BigQuery; of a change that is repeated each row has its own."""
OLD_VALUES_COLUMN: Final = "_millrace_old_values"
"""What the row was before, as the source writes it, where the stream carries that."""

RECONSTRUCTED_COLUMN: Final = "_millrace_reconstructed"
"""Whether the row may hold values of another time: the stream carried some columns, and the others were read later."""

_PLACE: Final = {
    "server_transaction_id": STRING,
    "record_sequence": STRING,
    "is_last_record_in_transaction_in_partition": BOOL,
    "number_of_records_in_transaction": INT64,
    "number_of_partitions_in_transaction": INT64,
    "transaction_tag": STRING,
    "is_system_transaction": BOOL,
    RECONSTRUCTED: BOOL,
}
"""What the place of a change tells, and of which type."""
_PREFIX: Final = "_metadata_spanner_"
_PLACE_COLUMNS: Final = {name: RECONSTRUCTED_COLUMN if name == RECONSTRUCTED else _PREFIX + name for name in _PLACE}
_PLACE_SCHEMA: Final = pa.schema([(name, kind.wire) for name, kind in _PLACE.items()])
_LINE_SCHEMA: Final = pa.schema([("o", pa.struct(_PLACE_SCHEMA))])
"""Of places one level down: a line that is null ends the process, by a fault in pyarrow."""

_OURS: Final = (
    TableColumn(MOD_TYPE_COLUMN, STRING),
    TableColumn(SOURCE_TABLE_COLUMN, STRING),
    TableColumn(COMMITTED_COLUMN, TIMESTAMP),
    *(TableColumn(_PLACE_COLUMNS[name], kind) for name, kind in _PLACE.items()),
    TableColumn(WRITTEN_COLUMN, TIMESTAMP),
    TableColumn(OLD_VALUES_COLUMN, JSON),
    TableColumn(SEQUENCE_COLUMN, STRING),
)
_OUR_NAMES: Final = frozenset(column.name for column in _OURS)
_IN_VIEW: Final = ("valid_from", "valid_to", "is_current", "millrace_repeat")

_object: Final = msgspec.json.Decoder(dict[str, object])


def history_definition(header: Header, name: str, columns: Sequence[TableColumn], dataset: str) -> TableDefinition:
    """Return the table with the changes of a table of this name; PoisonRecordError where it cannot be."""
    taken = {each.upper() for each in (*_OUR_NAMES, *_IN_VIEW)}
    for column in columns:
        if column.name.upper() in taken:
            raise PoisonRecordError(
                Reason.BAD_NAME, f"column name {column.name!r}: a history has a column of its own so named"
            )
    return TableDefinition(
        name + CHANGELOG_SUFFIX,
        within_limit(header, (*columns, *_OURS)),
        header.primary_key,
        source_table(header),
        dataset,
        append_only=True,
        commit_timestamp=COMMITTED_COLUMN,
    )


def history_view_query(changelog: str, columns: Sequence[str], primary_key: Sequence[str]) -> str:
    """Return the view over a history, by the full name of its table (``project.dataset.table``) and all its columns.

    A version holds from its commit until that of the next change of its row, a delete among them; after a delete
    there is none until the row is inserted again. What a later change of the same transaction replaced was never
    to be seen, and is not here either. Change sequence numbers are text of one length there, so text orders them.
    Of one change that was completed twice, before its row's past was forgotten and after it, the view shows the former.
    """
    exact = f"IFNULL(`{RECONSTRUCTED_COLUMN}`, FALSE), " if RECONSTRUCTED_COLUMN in columns else ""
    keys = ", ".join(f"`{name}`" for name in primary_key)
    shown = ", ".join(f"`{name}`" for name in columns)
    return (
        f"SELECT {shown}, valid_from, valid_to, valid_to IS NULL AS is_current\n"  # noqa: S608  of names only
        f"FROM (\n"
        f"  SELECT *, `{COMMITTED_COLUMN}` AS valid_from,\n"
        f"    LEAD(`{COMMITTED_COLUMN}`) OVER (PARTITION BY {keys} ORDER BY `{SEQUENCE_COLUMN}`) AS valid_to\n"
        f"  FROM (\n"
        f"    SELECT *, ROW_NUMBER() OVER (\n"
        f"      PARTITION BY {keys}, `{SEQUENCE_COLUMN}` ORDER BY {exact}`{WRITTEN_COLUMN}`) AS millrace_repeat\n"
        f"    FROM `{changelog}`\n"
        f"  )\n"
        f"  WHERE millrace_repeat = 1\n"
        f")\n"
        f"WHERE `{MOD_TYPE_COLUMN}` != 'DELETE' AND (valid_to IS NULL OR valid_from < valid_to)"
    )


def history_columns(
    source: str,
    batches: Sequence[ChangeBatch],
    rewrite: Callable[[Sequence[bytes]], list[bytes]] | None,
    op: pa.StringArray,
    sequence: pa.StringArray,
    commit: pa.Array,
    now: Nanoseconds,
) -> Mapping[str, pa.Array]:
    """Return what the rows of a history hold beside the source's columns; ``rewrite`` masks old values, if need be."""
    mod_type = pa.array(list(chain.from_iterable(batch.mod_type for batch in batches)), pa.string())
    place = _places(list(chain.from_iterable(batch.place for batch in batches)))
    return {
        MOD_TYPE_COLUMN: pc.if_else(pc.equal(op, "DELETE"), "DELETE", mod_type),
        SOURCE_TABLE_COLUMN: pa.repeat(pa.scalar(source), len(op)),
        COMMITTED_COLUMN: commit,
        **{_PLACE_COLUMNS[name]: place.column(name).combine_chunks() for name in _PLACE},
        WRITTEN_COLUMN: pa.repeat(pa.scalar(microseconds(now), pa.int64()), len(op)),
        OLD_VALUES_COLUMN: _old_values(batches, rewrite),
        SEQUENCE_COLUMN: normal_sequences(sequence),
    }


def _places(places: Sequence[msgspec.Raw]) -> pa.Table:
    """Return what the places of changes tell in columns; what one does not tell, or not in its type, is NULL."""

    def fast(start: int, stop: int) -> pa.Table | None:
        # A place is exactly one JSON value, so whatever it holds its line is one document of the block.
        text = b'{"o":' + b'}\n{"o":'.join(places[start:stop]) + b"}\n"
        table = json_table(_LINE_SCHEMA, text, "ignore")
        if table is None or table.schema != _LINE_SCHEMA or len(table) != stop - start:
            return None
        return pa.table(one_array(table.column("o")).flatten(), schema=_PLACE_SCHEMA)

    def exact(start: int, stop: int) -> pa.Table:
        return pa.Table.from_pylist([_place(bytes(each)) for each in places[start:stop]], schema=_PLACE_SCHEMA)

    if not places:
        return _PLACE_SCHEMA.empty_table()
    return pa.concat_tables(by_halves(0, len(places), fast, exact))


def _place(text: bytes) -> Mapping[str, object]:
    kinds = {BOOL: bool, INT64: int, STRING: str}
    try:
        decoded = _object.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    of_type = {name: decoded[name] for name, kind in _PLACE.items() if type(decoded.get(name)) is kinds[kind]}
    return {name: value for name, value in of_type.items() if type(value) is not int or -(1 << 63) <= value < 1 << 63}


def _old_values(batches: Sequence[ChangeBatch], rewrite: Callable[[Sequence[bytes]], list[bytes]] | None) -> pa.Array:
    texts = [bytes(old) for batch in batches for old in batch.old]
    if all(text == b"null" for text in texts):
        return pa.nulls(len(texts), pa.string())
    if rewrite is not None:
        texts = rewrite(texts)
    column = pa.array(texts, pa.binary()).cast(pa.string())
    values, _unfit = wire_values(JSON, pc.if_else(pc.equal(column, "null"), None, column))
    return values
