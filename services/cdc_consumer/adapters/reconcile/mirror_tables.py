"""The rows of a mirror, asked of BigQuery by queries: all of them, or those of some keys, to be compared."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.mirror_queries import CopiedRows, MirrorQueries, live, wire_table
from services.cdc_consumer.adapters.bigquery.staleness import staleness_of
from services.cdc_consumer.adapters.schema.tables import as_found, check_dataset
from services.cdc_consumer.core.reconcile.row_keys import key_kinds
from services.cdc_consumer.core.reconcile.source_table import Mirrored
from services.cdc_consumer.core.schema.masked_columns import MASKS
from services.cdc_consumer.core.schema.tables import COMMIT_TIMESTAMP_COLUMN, DELETED_COLUMN, TableColumn, beside
from services.cdc_consumer.core.types.types import DATE, NUMERIC, STRING, TIMESTAMP, ColumnType
from services.cdc_consumer.ports import (
    FoundMirror,
    MirrorProgress,
    MirrorReading,
    QueryEstimate,
    QuerySpend,
    TableTroubleError,
)
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.mirrors import MIRROR_OF, SEQUENCE_COLUMN, label_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PRIME: Final = 1_000_000_007
_REQUEST_BYTES: Final = 6_000_000
"""Of the keys that one query asks for: a request has 10 MB at most (BigQuery, "Quotas and limits", query jobs)."""
_PARAMETER_BYTES: Final = 20
"""What a value takes in a request beside itself."""
_PLACE: Final = "_millrace_place"
"""The place of a key among those that a query asks for: a name that no column of a source has."""


class BigQueryMirrorTables:
    """The mirrors of one dataset, and of others that definitions name."""

    def __init__(
        self, client: bigquery.Client, project: str, dataset: str, *, temporary: str = "", max_bytes: int | None = None
    ) -> None:
        """``temporary``: the dataset that rows are copied into while they are read; each mirror's own if empty."""
        self._client = client
        self._queries = MirrorQueries(client, max_bytes)
        self._project = project
        self._dataset = dataset
        self._temporary = temporary and f"{project}.{temporary}"

    def find(self, table: Mirrored) -> FoundMirror:
        """Return the mirror of a source table; MisconfiguredError where there is none that can be compared with it."""
        definition = table.definition
        path = f"{self._project}.{definition.dataset or self._dataset}.{definition.name}"
        found = self._queries.table(path)
        if found is None:
            check_dataset(self._client, self._project, definition.dataset or self._dataset)
            raise MisconfiguredError(
                "mirror-not-made-yet",
                f"there is no table {path}: the consumer makes it with its first change; check BIGQUERY_DATASET",
            )
        names = {field.name.lower() for field in found.schema}
        if SEQUENCE_COLUMN not in names or found.labels.get(MIRROR_OF) != label_of(definition.mirror_of):
            raise MisconfiguredError(
                "mirror-of-another-source",
                f"table {path} is not the mirror of {definition.mirror_of} (by its label {MIRROR_OF}): does the "
                "source's command read another database than the readers do?",
            )
        try:
            names_there = beside(definition, as_found(found, definition))
        except PoisonRecordError as error:
            raise MisconfiguredError("mirror-has-other-columns", error.detail) from error
        except TableTroubleError as error:
            raise MisconfiguredError("mirror-has-other-columns", str(error)) from error
        if why := definition.masked_columns.changed({name.upper() for name in names}, found.labels.get(MASKS, ""), ()):
            raise MisconfiguredError(
                "mirror-masks-differ",
                f"table {path} was written with other masks than this command has: {why}. Give the command the "
                "consumer's tables file and mask key, or let the consumer run with these first",
            )
        compared = {names_there.get(column.name, column.name).lower() for column in table.columns}
        ours = {column.name.lower() for column in definition.columns} | {DELETED_COLUMN}
        return FoundMirror(
            path=path,
            lacking=frozenset(
                column.name
                for column in table.columns
                if names_there.get(column.name, column.name).lower() not in names
            ),
            names=names_there,
            left_out=tuple(f.name for f in found.schema if f.name.lower() not in compared | ours),
            staleness=staleness_of(found),
            bytes=found.num_bytes or 0,
            soft_delete=DELETED_COLUMN in names,
        )

    @contextmanager
    def reading(self, table: Mirrored, mirror: FoundMirror) -> Iterator[MirrorReading]:
        """Read a mirror; as `MirrorTables.reading`."""
        columns = _columns(table, mirror)
        with self._queries.copied(mirror.path, _select(table, mirror), columns, self._temporary) as copied:
            yield _CopiedMirror(copied, table)

    def recheck(
        self, table: Mirrored, mirror: FoundMirror, keys: pa.Table, until: str
    ) -> tuple[pa.Table, MirrorProgress]:
        """Return the rows that there are under some keys; as `MirrorTables.recheck`."""
        columns, chunks = _columns(table, mirror), _requests(keys)
        found, progress = [table.schema.empty_table()], MirrorProgress("", "")
        for some in chunks:
            query, parameters = _select_keys(table, mirror, some, until)
            rows = self._queries.rows(mirror.path, query, parameters)
            there = [row for row in rows if row["f"][-1]["v"] is None]
            found.append(_whole(wire_table(mirror.path, there, columns), table))
            for row in rows:
                newest, committed, count = (cell["v"] for cell in row["f"][-3:])
                if count is not None:
                    progress = MirrorProgress(str(newest or ""), f"{[committed, count]}")
        return pa.concat_tables(found), progress

    def estimate(self, table: Mirrored, mirror: FoundMirror) -> QueryEstimate:
        """Return what BigQuery expects to read; as `MirrorTables.estimate`."""
        schema = pa.schema([table.schema.field(name) for name in key_kinds(table.definition)])
        again = _select_keys(table, mirror, schema.empty_table(), "")
        return QueryEstimate(
            self._queries.estimate(mirror.path, _select(table, mirror)), self._queries.estimate(mirror.path, *again)
        )

    def spent(self) -> QuerySpend:
        """Return what all queries until now have cost."""
        return self._queries.spent


class _CopiedMirror:
    """The MirrorReading of rows that are copied."""

    def __init__(self, copied: CopiedRows, table: Mirrored) -> None:
        self._copied = copied
        self._table = table

    def pages(self) -> Iterator[pa.Table]:
        """Yield all rows; as `MirrorReading.pages`."""
        for rows in self._copied.pages():
            yield _whole(rows, self._table)


def _whole(rows: pa.Table, table: Mirrored) -> pa.Table:
    """Return rows with all columns of a table: those that the mirror does not have are NULL."""
    arrays = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in table.schema
    ]
    return pa.table(arrays, schema=table.schema)


def _requests(keys: pa.Table) -> Sequence[pa.Table]:
    """Return keys in as few parts as requests can hold: one, unless they are long."""
    size = 3 * keys.nbytes + _PARAMETER_BYTES * keys.num_rows * keys.num_columns
    rows = max(1, -(-len(keys) // max(1, -(-size // _REQUEST_BYTES))))
    return [keys.slice(start, rows) for start in range(0, len(keys), rows)] or [keys]


def _columns(table: Mirrored, mirror: FoundMirror) -> Sequence[TableColumn]:
    there = [column for column in table.columns if column.name not in mirror.lacking]
    return [*there, TableColumn(SEQUENCE_COLUMN, STRING)]


def _select(table: Mirrored, mirror: FoundMirror) -> str:
    names = _names(table, mirror)
    return f"SELECT {names} FROM `{mirror.path}` AS t WHERE {live(mirror.soft_delete)}"  # noqa: S608  of names


def _select_keys(table: Mirrored, mirror: FoundMirror, keys: pa.Table, until: str) -> tuple[str, Sequence[Any]]:
    """Return the query of the rows whose keys are parameters, one array a column, and of how far the mirror is.

    The first column stands in a condition of its own, by which BigQuery passes over the blocks of a clustered table.
    The last row says how far the mirror is, in three columns that all others have NULL in: one query, for each query
    of a mirror may have to read all of it.
    """
    kinds = key_kinds(table.definition)
    parameters: list[Any] = [
        bigquery.ScalarQueryParameter("last", "INT64", len(keys) - 1),
        bigquery.ScalarQueryParameter("until", "STRING", until),
    ]
    parameters += [
        bigquery.ArrayQueryParameter(
            f"k{place}", kind.bigquery, [_parameter(kind, value) for value in keys.column(name).to_pylist()]
        )
        for place, (name, kind) in enumerate(kinds.items())
    ]
    same = " AND ".join(f"t.`{name}` = @k{place}[OFFSET({_PLACE})]" for place, name in enumerate(kinds))
    where = f"t.`{next(iter(kinds))}` IN UNNEST(@k0) AND {live(mirror.soft_delete)}"
    rows = (
        f"SELECT {_names(table, mirror)}, CAST(NULL AS STRING), CAST(NULL AS INT64), CAST(NULL AS INT64) "  # noqa: S608
        f"FROM UNNEST(GENERATE_ARRAY(0, @last)) AS {_PLACE} JOIN `{mirror.path}` AS t ON {same} WHERE {where}"
    )
    sequence = f"t.`{SEQUENCE_COLUMN}`"
    past = f"LENGTH({sequence}) = LENGTH(@until) AND {sequence} <= @until"
    nothing = ", ".join(f"CAST(NULL AS {column.type.bigquery})" for column in _columns(table, mirror))
    committed = f"SUM(MOD(UNIX_MICROS(t.`{COMMIT_TIMESTAMP_COLUMN}`), {_PRIME}))"
    progress = (
        f"SELECT {nothing}, MAX(IF({past}, {sequence}, NULL)), {committed}, COUNT(*) "  # noqa: S608
        f"FROM `{mirror.path}` AS t"
    )
    return f"{rows} UNION ALL {progress}", parameters


def _names(table: Mirrored, mirror: FoundMirror) -> str:
    columns = [column.name for column in _columns(table, mirror)[:-1]]
    names = [f"t.`{mirror.names[name]}` AS `{name}`" if name in mirror.names else f"t.`{name}`" for name in columns]
    return ", ".join([*names, f"COALESCE(t.`{SEQUENCE_COLUMN}`, '') AS `{SEQUENCE_COLUMN}`"])


def _parameter(kind: ColumnType, value: Any) -> object:
    """Return a key's value as the client takes it."""
    if kind == NUMERIC:
        return Decimal(value)
    if kind == DATE:
        return date.fromordinal(_EPOCH.toordinal() + value)
    return _EPOCH + timedelta(microseconds=value) if kind == TIMESTAMP else value
