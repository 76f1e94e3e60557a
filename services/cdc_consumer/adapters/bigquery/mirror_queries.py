"""Queries of mirrors: what BigQuery answers, a page at a time, in columns of the types that messages are parsed to.

A query, because nothing else shows changes that BigQuery has taken and not merged yet. Source of the answer's forms:
BigQuery REST reference, `jobs.getQueryResults` (every value a text, a REPEATED one a list of ``{"v": ...}``) and
`DataFormatOptions.useInt64Timestamp` (a TIMESTAMP is a number of microseconds).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import beyond_limits, rest_errors
from services.cdc_consumer.core.schema.tables import DELETED_COLUMN, TableColumn
from services.cdc_consumer.core.types.types import STRING, TIMESTAMP, ColumnType
from services.cdc_consumer.core.types.values import wire_values
from shared.contracts.errors import MisconfiguredError


def answered_column(kind: ColumnType, rows: Sequence[Mapping[str, Any]], place: int) -> pa.Array:
    """Return the column at a place of the answer's rows in its wire type; ValueError where a value is none of it."""
    cells = [row["f"][place]["v"] for row in rows]
    if kind.element is None:
        return _scalars(kind, pa.array(cells, pa.string()))
    lists = pa.array([None if cell is None else [each["v"] for each in cell] for cell in cells], pa.list_(pa.string()))
    elements = _scalars(kind.element, lists.flatten())
    return pa.ListArray.from_arrays(lists.offsets, elements, type=kind.wire, mask=lists.is_null())


def _scalars(kind: ColumnType, texts: pa.Array) -> pa.Array:
    if kind.bigquery == STRING.bigquery:
        return texts
    if pa.types.is_boolean(kind.wire):
        return pc.equal(pc.ascii_lower(texts), "true")
    if pa.types.is_floating(kind.wire) or kind == TIMESTAMP:
        return texts.cast(kind.wire)
    values, misfits = wire_values(kind, texts)
    if misfits:
        raise ValueError(f"{len(misfits)} values that are no {kind.bigquery}")
    return values


_TIMEOUT: Final = 60.0  # seconds for a call
_LONGEST: Final = 3_600.0  # seconds for a query: of all rows of a large table
_NO_RETRY: Final[Any] = None  # retries are not nested
_PAGE: Final = 50_000
"""Rows, at most: BigQuery answers with no more than some megabytes at a time."""


class MirrorQueries:
    """Asks for tables by their full names. TransientError where BigQuery does not answer, or not for this table."""

    def __init__(self, client: bigquery.Client) -> None:
        self._client = client

    def table(self, path: str) -> bigquery.Table | None:
        """Return a table as it is now; None if there is none."""
        with rest_errors(f"table {path}"):
            try:
                return self._client.get_table(path, retry=_NO_RETRY, timeout=_TIMEOUT)
            except exceptions.NotFound:
                return None

    def pages(self, path: str, query: str, parameters: Sequence[Any] = ()) -> Iterator[Sequence[Any]]:
        """Yield the rows that a query of a table answers with, as the REST API writes them, some at a time."""
        config = bigquery.QueryJobConfig(query_parameters=list(parameters), use_query_cache=False)
        with rest_errors(f"table {path}"):
            try:
                answer: Any = self._client.query_and_wait(
                    query,
                    job_config=config,
                    retry=_NO_RETRY,
                    job_retry=_NO_RETRY,
                    api_timeout=_TIMEOUT,
                    wait_timeout=_LONGEST,
                    page_size=_PAGE,
                )
                for page in answer.pages:
                    if rows := page.raw_page.get("rows"):
                        yield rows
            except (exceptions.Forbidden, exceptions.NotFound, exceptions.BadRequest) as error:
                if beyond_limits(error):
                    raise
                if not isinstance(error, exceptions.Forbidden):
                    raise MisconfiguredError(f"table {path}: {error.message}") from error
                raise MisconfiguredError(
                    f"table {path} may not be queried ({error.message}): give this identity roles/bigquery.jobUser on "
                    f"project {self._client.project}, and roles/bigquery.dataViewer on the dataset"
                ) from error

    def tables(
        self, path: str, query: str, columns: Sequence[TableColumn], parameters: Sequence[Any] = ()
    ) -> Iterator[pa.Table]:
        """Yield them in the wire types of the columns that are asked for, in that order."""
        for rows in self.pages(path, query, parameters):
            try:
                arrays = [answered_column(column.type, rows, place) for place, column in enumerate(columns)]
            except (ValueError, pa.ArrowException) as error:
                raise MisconfiguredError(f"table {path} holds what no mirror does: {error}") from error
            yield pa.table(arrays, schema=pa.schema([(column.name, column.type.wire) for column in columns]))


def live(soft_delete: bool) -> str:
    """Return the condition of rows (of ``t``) that are there: one that is kept though it was deleted is not."""
    return f"t.`{DELETED_COLUMN}` IS NOT TRUE" if soft_delete else "TRUE"
