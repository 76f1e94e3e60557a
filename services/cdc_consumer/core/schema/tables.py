"""What BigQuery table a header asks for: its name, columns and key, within BigQuery's limits or poison with the reason.

Sources: BigQuery, "Specifying a schema" (column names, reserved prefixes), "Stream table updates with change data
capture" (at most 16 key columns and 2000 columns), "Create clustered tables" (at most four clustering columns).
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final
from zlib import crc32

import pyarrow as pa

from services.cdc_consumer.core.schema.masked_columns import MaskedColumns
from services.cdc_consumer.core.types.types import BOOL, KEY_TYPES, STRING, TIMESTAMP, ColumnType, column_type
from shared.contracts.change_batch import Column, Header
from shared.contracts.column_options import RESERVED_PREFIXES
from shared.contracts.errors import PoisonRecordError
from shared.contracts.mirrors import SEQUENCE_COLUMN, source_table
from shared.contracts.reasons import Reason

COMMIT_TIMESTAMP_COLUMN: Final = "_millrace_commit_timestamp"
DELETED_COLUMN: Final = "_millrace_deleted"
"""TRUE where a deleted row is kept (soft delete); FALSE or NULL else."""

CHANGE_TYPE: Final = "_CHANGE_TYPE"
CHANGE_SEQUENCE_NUMBER: Final = "_CHANGE_SEQUENCE_NUMBER"
PSEUDO_COLUMNS: Final = (CHANGE_TYPE, CHANGE_SEQUENCE_NUMBER)
"""They follow a mirror's columns in every row that is appended; both are text."""

_KEY_LIMIT: Final = 16
_AS_HISTORY: Final = '. Keep a history of the table alone (unfit_key = "history" in the tables file), or leave it out'
COLUMN_LIMIT: Final = 2000
_CLUSTERING_LIMIT: Final = 4
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)
_OUR_PREFIXES: Final = ("_MILLRACE_", "_METADATA_", "BIG_QUERY_COMMIT_TIMESTAMP")
"""What the columns begin with that Millrace adds to mirrors, histories and change logs."""
_NOT_ALPHANUMERIC: Final = re.compile(r"[^A-Za-z0-9]+")
_TABLE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,1024}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a BigQuery table."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A BigQuery table as it is to be: ``columns`` in order, ours last, and the key of the rows that it is about."""

    name: str
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...]
    """Of a mirror its key, by which changes are applied; of a history what its rows belong together by.

    Of a table of entries what tells one entry from another: rows that agree in it are repeats.
    """
    mirror_of: str
    """The one source table whose rows it holds: two with the same BigQuery name must never be mixed in one."""
    dataset: str = ""
    """Empty: the consumer's own."""
    append_only: bool = False
    """Whether it is a history, or holds entries: one row for each change, and none is ever replaced."""
    entries: bool = False
    """Whether it holds the entries of a change log as they came."""
    clustered_by: tuple[str, ...] = ()
    """Empty: the primary key."""
    commit_timestamp: str = COMMIT_TIMESTAMP_COLUMN
    """Which column says when a row was committed."""
    max_staleness: timedelta | None = None
    """None: left as it is."""
    instead_of: str = ""
    """Of a history the name of the mirror that is not kept beside it; empty: it is."""
    keep: timedelta | None = None
    """How long a history keeps a change; None: left as it is."""
    masked_columns: MaskedColumns = field(default_factory=MaskedColumns)
    """Of the columns that are masked or renamed."""

    @property
    def identity(self) -> str:
        """Return what tells the table from every other: its name, and its dataset where that is not the usual one."""
        return f"{self.dataset}.{self.name}" if self.dataset else self.name

    @property
    def column_list(self) -> str:
        """Return a name of this column list of this source table: the same in every process."""
        return f"{crc32(repr((self.mirror_of, self.primary_key, self.columns)).encode()):08x}"

    @property
    def clustering(self) -> tuple[str, ...]:
        """Return the columns to cluster by: no more than four, which is as many as BigQuery takes."""
        return (self.clustered_by or self.primary_key)[:_CLUSTERING_LIMIT]

    @property
    def pseudo_columns(self) -> tuple[str, ...]:
        """Return the pseudo-columns that follow the columns in every row that is appended; all are text."""
        return () if self.append_only else PSEUDO_COLUMNS


def checked_name(name: str, table: str) -> str:
    """Return the name that a source table has in BigQuery; BAD_NAME if that is none."""
    if _TABLE_NAME.fullmatch(name) is None:
        raise PoisonRecordError(
            Reason.BAD_NAME, f"table name {_shown(table)}: only letters, digits, '_', '-' and '.', 1 to 1024 characters"
        )
    return name


def shown_name(table: str) -> str:
    """Return what a source table is called where it is shown: its BigQuery name, or its own where it has none."""
    name = table.replace(".", "_")  # in a name that is shown, a dot is behind a dataset
    return name if _TABLE_NAME.fullmatch(name) else _shown(table).replace(".", "_")


def mirror_definition(
    header: Header,
    name: str,
    columns: Sequence[TableColumn],
    dataset: str = "",
    max_staleness: timedelta | None = None,
    *,
    soft_delete: bool = False,
) -> TableDefinition:
    """Return a mirror with these columns of the source's and ours."""
    ours = [TableColumn(SEQUENCE_COLUMN, STRING), TableColumn(COMMIT_TIMESTAMP_COLUMN, TIMESTAMP)]
    if soft_delete:
        ours.append(TableColumn(DELETED_COLUMN, BOOL))
    return TableDefinition(
        name,
        within_limit(header, (*columns, *ours)),
        header.primary_key,
        source_table(header),
        dataset,
        max_staleness=max_staleness,
    )


def source_columns(header: Header, ignored: Container[str] = (), *, without_key: bool = False) -> Sequence[TableColumn]:
    """Return the columns of a header but those ``ignored``; PoisonRecordError where BigQuery could not hold them.

    ``without_key``: of a table that has no primary key in BigQuery, a history: any text can tell its rows apart.
    """
    if not header.primary_key:
        raise PoisonRecordError(
            Reason.NO_PRIMARY_KEY,
            f"table {header.table}: BigQuery applies upserts and deletes by primary key only; leave it out (exclude)",
        )
    if len(header.primary_key) > _KEY_LIMIT and not without_key:
        raise PoisonRecordError(
            Reason.TOO_MANY_COLUMNS,
            f"table {header.table}: {len(header.primary_key)} key columns; BigQuery takes {_KEY_LIMIT}{_AS_HISTORY}",
        )
    columns = [column for column in header.columns if column.name not in ignored]
    check_names([column.name for column in columns])
    if len(set(header.primary_key)) != len(header.primary_key):
        raise PoisonRecordError(Reason.BAD_NAME, f"a column is twice in the primary key {list(header.primary_key)}")
    key = frozenset(header.primary_key)
    return [TableColumn(each.name, _typed(each, in_key=each.name in key, without_key=without_key)) for each in columns]


def within_limit(header: Header, columns: tuple[TableColumn, ...]) -> tuple[TableColumn, ...]:
    """Return a table's columns; TOO_MANY_COLUMNS if there are more than BigQuery takes."""
    if len(columns) > COLUMN_LIMIT:
        raise PoisonRecordError(
            Reason.TOO_MANY_COLUMNS,
            f"table {header.table}: {len(columns)} columns, Millrace's among them; BigQuery takes {COLUMN_LIMIT}",
        )
    return columns


def together(definitions: Sequence[TableDefinition]) -> TableDefinition:
    """Return the first definition with the columns that the others of this table and key have besides."""
    first, columns = definitions[0], dict[str, TableColumn]()
    for each in definitions:
        if replace(each, columns=first.columns) == first:
            for column in each.columns:
                columns.setdefault(column.name.upper(), column)
    return replace(first, columns=tuple(columns.values()))


def beside(wanted: TableDefinition, there: TableDefinition) -> Mapping[str, str]:
    """Return the columns that a table has with another type, and the columns beside them that take their values.

    ``Born``, an INT64 where the table has a DATE, is ``Born_INT64``: no change waits until a person has altered the
    table. Once such a column is there, the values go on into it, until ``Born`` is an INT64 itself. A column of the
    key has none beside it, nor has one of Millrace's own, or one whose name beside it is taken or too long: a conflict.
    """
    seen = {column.name.upper(): column.type.bigquery for column in there.columns}
    taken = {column.name.upper() for column in wanted.columns}
    fixed = {name.upper() for name in (*wanted.primary_key, wanted.commit_timestamp)}
    found = {}
    for column in wanted.columns:
        upper, kind = column.name.upper(), column.type.bigquery
        now = seen.get(upper)
        if now == kind or upper in fixed or upper.startswith(_OUR_PREFIXES):
            continue
        name = f"{column.name}_{_NOT_ALPHANUMERIC.sub('_', kind).strip('_')}"
        other = seen.get(name.upper())
        if name.upper() in taken or _COLUMN_NAME.fullmatch(name) is None:
            continue
        if other == kind or (other is None and now is not None):
            found[column.name] = name
            taken.add(name.upper())
    return found


def with_names(definition: TableDefinition, names: Mapping[str, str]) -> TableDefinition:
    """Return a definition some of whose columns have other names."""
    if not names:
        return definition
    columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in definition.columns)
    return replace(definition, columns=columns)


def row_schema(definition: TableDefinition) -> pa.Schema:
    """Return the Arrow schema of a table's rows on the wire: its columns, then its pseudo-columns."""
    columns = [(column.name, column.type.wire) for column in definition.columns]
    return pa.schema(columns + [(name, pa.string()) for name in definition.pseudo_columns])


def check_names(names: Sequence[str]) -> None:
    """Raise BAD_NAME where a table could not have columns of these names."""
    seen: set[str] = set()
    for name in names:
        if _COLUMN_NAME.fullmatch(name) is None:
            raise PoisonRecordError(
                Reason.BAD_NAME,
                f"column name {_shown(name)}: letters, digits and '_', not a digit first, 1 to 300 characters",
            )
        upper = name.upper()
        if upper.startswith(RESERVED_PREFIXES):
            raise PoisonRecordError(Reason.BAD_NAME, f"column name {_shown(name)}: its prefix is reserved")
        if upper in seen:
            raise PoisonRecordError(
                Reason.BAD_NAME, f"column name {_shown(name)}: twice (BigQuery does not tell upper from lower case)"
            )
        seen.add(upper)


def _typed(column: Column, *, in_key: bool, without_key: bool) -> ColumnType:
    try:
        kind = column_type(column.type)
    except PoisonRecordError as error:
        raise PoisonRecordError(error.reason, f"column {column.name}: {error.detail}") from None
    if not in_key:
        return kind
    if kind in KEY_TYPES:
        return KEY_TYPES[kind]
    what = f"key column {column.name} of type {column.type}: BigQuery has no such keys"
    if kind.bigquery != STRING.bigquery:
        raise PoisonRecordError(Reason.KEY_NOT_REPRESENTABLE, f"{what}, and rows cannot be told apart by it")
    if not without_key:
        raise PoisonRecordError(Reason.KEY_NOT_REPRESENTABLE, f"{what}{_AS_HISTORY}")
    return kind


def _shown(name: str) -> str:
    """Quote a name for a detail, cut: what is no name could be of any length."""
    return repr(name if len(name) <= 80 else name[:80] + "...")
