"""Queries of mirrors: what BigQuery answers, a page at a time, in columns of the types that messages are parsed to.

A query, because nothing else shows changes that BigQuery has taken and not merged yet. All rows of a mirror go into a
table that expires, and are read from there: the answer to a query has 10 GB at most (BigQuery, "Quotas and limits",
query jobs), and a page that does not come is asked for again without another query. That query has a name, by which it
is found again after a call that failed: it runs, and is billed, once.

Source of the answer's forms: BigQuery REST reference, `jobs.getQueryResults` (every value a text, a REPEATED one a list
of ``{"v": ...}``) and `DataFormatOptions.useInt64Timestamp` (a TIMESTAMP is a number of microseconds).
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import reason_of, rest_errors
from services.cdc_consumer.core.schema.tables import DELETED_COLUMN, TableColumn
from services.cdc_consumer.core.types.types import STRING, TIMESTAMP, ColumnType
from services.cdc_consumer.core.types.values import wire_values
from services.cdc_consumer.ports import BytesLimitError, QuerySpend
from shared.bigquery.client import beyond_limits
from shared.contracts.errors import MisconfiguredError, TransientError


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
    values, invalid = wire_values(kind, texts)
    if invalid:
        raise ValueError(f"{len(invalid)} values that are no {kind.bigquery}")
    return values


TEMPORARY: Final = "millrace_temporary_"
"""What the names of tables begin with that hold a mirror's rows while they are read."""
_EXPIRY: Final = timedelta(hours=48)
"""When BigQuery drops such a table, if it still exists."""
_TIMEOUT: Final = 60.0  # seconds for a call
_LONGEST: Final = 3_600  # seconds for a query: of all rows of a large table
_NO_RETRY: Final[Any] = None  # retries are not nested
_PAGE: Final = 50_000
"""Rows, at most: BigQuery answers with no more than some megabytes at a time."""
_REQUIRED: Final = re.compile(r"(\d+) or higher required")


class MirrorQueries:
    """Asks for tables by their full names. TransientError where BigQuery does not answer, or not for this table.

    ``max_bytes``: what all queries may be billed for together; BytesLimitError where the next one would go beyond it.
    """

    def __init__(self, client: bigquery.Client, max_bytes: int | None = None) -> None:
        self.client = client
        self._max_bytes = max_bytes
        self._locations: dict[str, str | None] = {}
        self.spent = QuerySpend()

    def table(self, path: str) -> bigquery.Table | None:
        """Return a table as it is now; None if there is none."""
        with rest_errors(f"table {path}"):
            try:
                found = self.client.get_table(path, retry=_NO_RETRY, timeout=_TIMEOUT)
            except exceptions.NotFound:
                return None
        self._locations[path] = found.location
        return found

    def rows(self, path: str, query: str, parameters: Sequence[Any] = ()) -> Sequence[Any]:
        """Return the rows that a query of a table answers with, as the REST API writes them: a few thousand."""
        with self._refusals(path):
            job = self._begin(path, query, str(uuid.uuid4()), parameters)
            return [row for page in self._finish(job).pages for row in page.raw_page.get("rows") or ()]

    def estimate(self, path: str, query: str, parameters: Sequence[Any] = ()) -> int:
        """Return how many bytes BigQuery expects a query of a table to read; nothing is read."""
        config = bigquery.QueryJobConfig(query_parameters=list(parameters), dry_run=True, use_query_cache=False)
        with self._refusals(path):
            job = self.client.query(
                query,
                config,
                location=self._locations.get(path),
                retry=_NO_RETRY,
                job_retry=_NO_RETRY,
                timeout=_TIMEOUT,
            )
            return int(job.total_bytes_processed or 0)

    def copied(self, path: str, query: str, columns: Sequence[TableColumn], dataset: str = "") -> "CopiedRows":
        """Return the rows that a query of a table answers with, however many, as a table that is dropped afterwards.

        Nothing is asked yet. ``dataset`` (with its project) is where the table is made; the queried table's if empty.
        """
        place = f"{dataset or path.rpartition('.')[0]}.{TEMPORARY}{uuid.uuid4().hex}"
        return CopiedRows(self, path, query, columns, place)

    def begin_copy(self, path: str, query: str, place: str, job: str) -> Any:
        """Let a job put what a query answers with into a new table; if it was begun before, return that one."""
        expiry = f"TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL {_EXPIRY // timedelta(hours=1)} HOUR)"
        statement = f"CREATE TABLE `{place}` OPTIONS (expiration_timestamp = {expiry}) AS {query}"
        with self._refusals(path, place):
            with suppress(exceptions.Conflict):
                return self._begin(path, statement, job)
            try:
                location = self._locations.get(path)
                return self.client.get_job(job, location=location, retry=_NO_RETRY, timeout=_TIMEOUT)
            except exceptions.NotFound as error:  # python-bigquery #2134: for a moment, a job is there and is not found
                raise TransientError(f"table {path}: its query cannot be found: {error.message}") from error

    def finish_copy(self, path: str, place: str, job: Any) -> None:
        """Wait until a job has put all rows into its table."""
        with self._refusals(path, place):
            self._finish(job)

    def listed(self, place: str, schema: Sequence[bigquery.SchemaField]) -> Iterator[Sequence[Any]]:
        """Yield the rows of a table without a query, as the REST API writes them, some at a time."""
        table = bigquery.Table(place, schema=schema)  # all columns: a URL does not hold the names of thousands
        with self._refusals(place):
            listing = self.client.list_rows(table, page_size=_PAGE, retry=_NO_RETRY, timeout=_TIMEOUT)
            for page in listing.pages:
                if rows := page.raw_page.get("rows"):
                    yield rows

    def drop(self, place: str) -> None:
        """Drop a table, if it is there and that can be done; it expires."""
        with suppress(exceptions.GoogleAPICallError, TransientError, MisconfiguredError), rest_errors(place):
            self.client.delete_table(place, retry=_NO_RETRY, timeout=_TIMEOUT, not_found_ok=True)

    def _begin(self, path: str, query: str, job: str, parameters: Sequence[Any] = ()) -> Any:
        config = bigquery.QueryJobConfig(query_parameters=list(parameters), use_query_cache=False)
        if self._max_bytes is not None:
            config.maximum_bytes_billed = max(1, self._max_bytes - self.spent.bytes_billed)
        return self.client.query(
            query,
            config,
            job_id=job,
            location=self._locations.get(path),
            retry=_NO_RETRY,
            job_retry=_NO_RETRY,
            timeout=_TIMEOUT,
        )

    def _finish(self, job: Any) -> Any:
        """Wait for a job; return its rows. A call that takes longer than it may is made again, for an hour."""
        for _call in range(round(_LONGEST / _TIMEOUT)):
            with suppress(TimeoutError):
                found = job.result(page_size=_PAGE, retry=_NO_RETRY, job_retry=_NO_RETRY, timeout=_TIMEOUT)
                billed = self.spent.bytes_billed + int(job.total_bytes_billed or 0)
                self.spent = QuerySpend(self.spent.queries + 1, billed)
                return found
        raise TransientError(f"query {job.job_id} has run for {_LONGEST} s")

    @contextmanager
    def _refusals(self, path: str, place: str = "") -> Iterator[None]:
        """Translate what the client raises where a query of a table is refused."""
        with rest_errors(f"table {path}"):
            try:
                yield
            except exceptions.GoogleAPICallError as error:
                if reason_of(error) == "bytesBilledLimitExceeded":
                    raise self._beyond(path, error.message) from error
                if beyond_limits(error) or not isinstance(
                    error, exceptions.Forbidden | exceptions.NotFound | exceptions.BadRequest
                ):
                    raise
                if not isinstance(error, exceptions.Forbidden):
                    raise MisconfiguredError("bigquery-query-refused", f"table {path}: {error.message}") from error
                if reason_of(error) == "responseTooLarge":
                    raise MisconfiguredError(
                        "recheck-answer-too-large",
                        f"table {path}: more rows have to be rechecked than BigQuery returns in one answer "
                        f"({error.message}): take a snapshot of the table, and delete missing rows after that",
                    ) from error
                raise MisconfiguredError(
                    "query-denied",
                    f"table {path} may not be queried ({error.message}): give this identity roles/bigquery.jobUser on "
                    f"project {self.client.project}, and roles/bigquery.dataViewer on the dataset{_may_write(place)}",
                ) from error

    def _beyond(self, path: str, words: str) -> BytesLimitError:
        found = _REQUIRED.search(words)
        if self._max_bytes is None or found is None:
            return BytesLimitError(
                "project-bytes-limit",
                f"table {path}: {words}: that is a limit of the project; --max-bytes sets another one",
            )
        needed, spent = int(found[1]), self.spent
        before = f" after {spent.bytes_billed} for {spent.queries} queries" if spent.queries else ""
        return BytesLimitError(
            "max-bytes-reached",
            f"table {path}: BigQuery would bill {needed} bytes for the next query{before}, which is more than "
            f"--max-bytes {self._max_bytes} allows: ask again with --max-bytes {spent.bytes_billed + needed} or more",
        )


def _may_write(place: str) -> str:
    if not place:
        return ""
    dataset = place.rpartition(".")[0]
    return (
        f"; its rows are read from a table that expires, which takes roles/bigquery.dataEditor on dataset {dataset}: "
        "--temporary-dataset names another dataset"
    )


class CopiedRows:
    """Rows that a query answers with, in a table of their own for as long as the block runs."""

    def __init__(
        self, queries: MirrorQueries, path: str, query: str, columns: Sequence[TableColumn], place: str
    ) -> None:
        self._queries = queries
        self._path = path
        self._query = query
        self._columns = columns
        self._place = place
        self._job = str(uuid.uuid4())
        self._there = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._queries.drop(self._place)

    def pages(self) -> Iterator[pa.Table]:
        """Yield all rows, some at a time, in the wire types of the columns; the query is run the first time only."""
        if not self._there:
            self._copy()
        schema = [bigquery.SchemaField(column.name, *_field_type(column.type)) for column in self._columns]
        for rows in self._queries.listed(self._place, schema):
            yield wire_table(self._path, rows, self._columns)

    def _copy(self) -> None:
        job = self._queries.begin_copy(self._path, self._query, self._place, self._job)
        try:
            self._queries.finish_copy(self._path, self._place, job)
        except TransientError:
            if job.error_result is not None:  # it has ended: the next attempt is another job
                self._job = str(uuid.uuid4())
            raise
        self._there = True


def _field_type(kind: ColumnType) -> tuple[str, str]:
    return (kind.bigquery, "NULLABLE") if kind.element is None else (kind.element.bigquery, "REPEATED")


def wire_table(path: str, rows: Sequence[Any], columns: Iterable[TableColumn]) -> pa.Table:
    """Return rows of the REST API in the wire types of their columns; MisconfiguredError where one holds another."""
    columns = list(columns)
    try:
        arrays = [answered_column(column.type, rows, place) for place, column in enumerate(columns)]
    except (ValueError, pa.ArrowException) as error:
        raise MisconfiguredError("mirror-value-invalid", f"table {path} holds what no mirror does: {error}") from error
    return pa.table(arrays, schema=pa.schema([(column.name, column.type.wire) for column in columns]))


def live(soft_delete: bool) -> str:
    """Return the condition of rows (of ``t``) that are there: one that is kept though it was deleted is not."""
    return f"t.`{DELETED_COLUMN}` IS NOT TRUE" if soft_delete else "TRUE"
