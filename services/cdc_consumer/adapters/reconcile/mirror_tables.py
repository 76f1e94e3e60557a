"""The rows of a mirror, asked of BigQuery by queries: all of them, or those of some keys, to be compared."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.mirror_queries import MirrorQueries, live
from services.cdc_consumer.adapters.bigquery.staleness import staleness_of
from services.cdc_consumer.adapters.schema.tables import as_found, check_dataset
from services.cdc_consumer.core.reconcile.row_keys import key_kinds
from services.cdc_consumer.core.reconcile.source_table import Mirrored
from services.cdc_consumer.core.schema.tables import COMMIT_TIMESTAMP_COLUMN, DELETED_COLUMN, TableColumn
from services.cdc_consumer.core.types.types import DATE, NUMERIC, STRING, TIMESTAMP, ColumnType
from services.cdc_consumer.ports import FoundMirror, MirrorProgress, TableTroubleError
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.mirrors import MIRROR_OF, SEQUENCE_COLUMN, label_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PRIME: Final = 1_000_000_007
_KEYS: Final = 500
"""Rows that one query asks for."""
_PLACE: Final = "_millrace_place"
"""The place of a key among those that a query asks for: a name that no column of a source has."""


class BigQueryMirrorTables:
    """The mirrors of one dataset, and of others that definitions name."""

    def __init__(self, client: bigquery.Client, project: str, dataset: str) -> None:
        self._client = client
        self._queries = MirrorQueries(client)
        self._project = project
        self._dataset = dataset

    def find(self, table: Mirrored) -> FoundMirror:
        """Return the mirror of a source table; MisconfiguredError where there is none that can be compared with it."""
        definition = table.definition
        path = f"{self._project}.{definition.dataset or self._dataset}.{definition.name}"
        found = self._queries.table(path)
        if found is None:
            check_dataset(self._client, self._project, definition.dataset or self._dataset)
            raise MisconfiguredError(f"there is no table {path}: nothing has been mirrored there yet")
        names = {field.name.lower() for field in found.schema}
        if SEQUENCE_COLUMN not in names or found.labels.get(MIRROR_OF) != label_of(definition.mirror_of):
            raise MisconfiguredError(
                f"table {path} is not the mirror of {definition.mirror_of} (by its label {MIRROR_OF}): does the "
                "source's command look at another database than the readers do?"
            )
        try:
            as_found(found, definition)
        except PoisonRecordError as error:
            raise MisconfiguredError(error.detail) from error
        except TableTroubleError as error:
            raise MisconfiguredError(str(error)) from error
        compared = {column.name.lower() for column in table.columns}
        ours = {column.name.lower() for column in definition.columns} | {DELETED_COLUMN}
        return FoundMirror(
            path=path,
            lacking=frozenset(column.name for column in table.columns if column.name.lower() not in names),
            left_out=tuple(f.name for f in found.schema if f.name.lower() not in compared | ours),
            staleness=staleness_of(found),
            bytes=found.num_bytes or 0,
            soft_delete=DELETED_COLUMN in names,
        )

    def read(self, table: Mirrored, mirror: FoundMirror) -> Iterator[pa.Table]:
        """Yield all rows, some at a time."""
        yield from self._asked(table, mirror, _select(table, mirror), [])

    def look(self, table: Mirrored, mirror: FoundMirror, keys: pa.Table) -> pa.Table:
        """Return the rows that there are under some keys, none of which holds a NULL."""
        found = [table.schema.empty_table()]
        for start in range(0, len(keys), _KEYS):
            some = keys.slice(start, _KEYS)
            query, parameters = _select_keys(table, mirror, some)
            found += self._asked(table, mirror, query, parameters)
        return pa.concat_tables(found)

    def progress(self, mirror: FoundMirror, until: str) -> MirrorProgress:
        """Return how far a mirror is; as `MirrorTables.progress`."""
        sequence = f"`{SEQUENCE_COLUMN}`"
        past = f"LENGTH({sequence}) = LENGTH(@until) AND {sequence} <= @until"
        committed = f"SUM(MOD(UNIX_MICROS(`{COMMIT_TIMESTAMP_COLUMN}`), {_PRIME}))"
        query = (
            f"SELECT MAX(IF({past}, {sequence}, NULL)) AS newest, {committed} AS committed, COUNT(*) AS n "  # noqa: S608
            f"FROM `{mirror.path}`"
        )
        parameter = bigquery.ScalarQueryParameter("until", "STRING", until)
        for page in self._queries.pages(mirror.path, query, [parameter]):
            newest, *state = (cell["v"] for cell in page[0]["f"])
            return MirrorProgress(str(newest or ""), f"{state}")
        return MirrorProgress("", "")

    def _asked(self, table: Mirrored, mirror: FoundMirror, query: str, parameters: Sequence[Any]) -> Iterator[pa.Table]:
        for rows in self._queries.tables(mirror.path, query, _columns(table, mirror), parameters):
            arrays = [
                rows.column(field.name) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
                for field in table.schema
            ]
            yield pa.table(arrays, schema=table.schema)


def _columns(table: Mirrored, mirror: FoundMirror) -> Sequence[TableColumn]:
    there = [column for column in table.columns if column.name not in mirror.lacking]
    return [*there, TableColumn(SEQUENCE_COLUMN, STRING)]


def _select(table: Mirrored, mirror: FoundMirror) -> str:
    names = _names(table, mirror)
    return f"SELECT {names} FROM `{mirror.path}` AS t WHERE {live(mirror.soft_delete)}"  # noqa: S608  of names


def _select_keys(table: Mirrored, mirror: FoundMirror, keys: pa.Table) -> tuple[str, Sequence[Any]]:
    """Return the query of the rows whose keys are parameters, one array a column.

    The first column stands in a condition of its own, by which BigQuery passes over the blocks of a clustered table.
    """
    kinds = key_kinds(table.definition)
    parameters: list[Any] = [bigquery.ScalarQueryParameter("last", "INT64", len(keys) - 1)]
    parameters += [
        bigquery.ArrayQueryParameter(
            f"k{place}", kind.bigquery, [_parameter(kind, value) for value in keys.column(name).to_pylist()]
        )
        for place, (name, kind) in enumerate(kinds.items())
    ]
    same = " AND ".join(f"t.`{name}` = @k{place}[OFFSET({_PLACE})]" for place, name in enumerate(kinds))
    where = f"t.`{next(iter(kinds))}` IN UNNEST(@k0) AND {live(mirror.soft_delete)}"
    query = (
        f"SELECT {_names(table, mirror)} FROM UNNEST(GENERATE_ARRAY(0, @last)) AS {_PLACE} "  # noqa: S608  of names
        f"JOIN `{mirror.path}` AS t ON {same} WHERE {where}"
    )
    return query, parameters


def _names(table: Mirrored, mirror: FoundMirror) -> str:
    names = [f"t.`{column.name}`" for column in _columns(table, mirror)[:-1]]
    return ", ".join([*names, f"COALESCE(t.`{SEQUENCE_COLUMN}`, '') AS `{SEQUENCE_COLUMN}`"])


def _parameter(kind: ColumnType, value: Any) -> object:
    """Return a key's value as the client takes it."""
    if kind == NUMERIC:
        return Decimal(value)
    if kind == DATE:
        return date.fromordinal(_EPOCH.toordinal() + value)
    return _EPOCH + timedelta(microseconds=value) if kind == TIMESTAMP else value
