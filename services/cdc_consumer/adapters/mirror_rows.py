"""The rows of mirrors in BigQuery, and which of them are from before a time, by queries through the official client."""

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import structlog
from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery_errors import rest_errors
from services.cdc_consumer.adapters.mirror_labels import COMPLETE_SINCE, label_time, swept, too_early
from services.cdc_consumer.adapters.tables import HISTORY_KEY, key_label, table_column
from services.cdc_consumer.core.sweep import first_sequence, history_beside
from services.cdc_consumer.core.tables import DELETED_COLUMN, TableDefinition
from services.cdc_consumer.core.types import ColumnType
from services.cdc_consumer.ports import MirrorTable, RowCount
from shared.contracts.errors import MisconfiguredError
from shared.contracts.mirrors import HISTORY_OF, MIRROR_OF, SEQUENCE_COLUMN, label_of
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

_TIMEOUT: Final = 60.0  # seconds for a call
_QUERY_TIMEOUT: Final = 600.0
_NO_RETRY: Final[Any] = None  # retries are not nested
_PATIENCE: Final = timedelta(minutes=5)
_ATTEMPTS: Final = 5
_PAGE: Final = 10_000  # rows
_WIDTH: Final = 67  # of a sequence as Millrace writes it: whose text sorts as it does
_OURS: Final = (SEQUENCE_COLUMN, "_millrace_commit_timestamp", DELETED_COLUMN)
_INTERVAL: Final = re.compile(r"0-0 (\d+) (\d+):(\d+):(\d+)", re.ASCII)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class BigQueryMirrorRows:
    """The MirrorRows of one project."""

    def __init__(self, client: bigquery.Client, project: str, dataset: str, stop: Stop) -> None:
        self._client = client
        self._project = project
        self._dataset = dataset
        self._stop = stop

    def find(self, name: str, dataset: str = "") -> MirrorTable:
        """Return a mirror as it is now; MisconfiguredError if there is none of that name."""
        path = f"{self._project}.{dataset or self._dataset}.{name}"
        for attempt in retrying(self._stop, _PATIENCE):
            with attempt, rest_errors(f"table {path}"):
                try:
                    found = self._client.get_table(path, retry=_NO_RETRY, timeout=_TIMEOUT)
                except exceptions.NotFound as error:
                    raise MisconfiguredError(f"there is no table {path}") from error
        mirror = _mirror(found, "" if dataset == self._dataset else dataset)
        return replace(mirror, history=self._history(mirror))

    def _history(self, mirror: MirrorTable) -> TableDefinition | None:
        """Return the history beside a mirror; None if none of the same source table is there."""
        wanted = history_beside(mirror.definition)
        path = f"{self._project}.{wanted.dataset or self._dataset}.{wanted.name}"
        for attempt in retrying(self._stop, _PATIENCE):
            with attempt, rest_errors(f"table {path}"):
                try:
                    labels = self._client.get_table(path, retry=_NO_RETRY, timeout=_TIMEOUT).labels
                except exceptions.NotFound:
                    return None
        if labels.get(HISTORY_OF) != mirror.label:
            return None
        if labels.get(HISTORY_KEY) != key_label(wanted.primary_key):
            fix = "it belongs together by another key than its mirror's: rename it, so that it is made anew"
            structlog.get_logger().warning("history_not_swept", table=wanted.identity, fix=fix)
            return None
        return wanted

    def older(self, mirror: MirrorTable, before: int) -> pa.Table:
        """Return the rows from before a time; as `MirrorRows.older`."""
        rows = self._rows(mirror, _OLDER, before)
        return rows.sort_by([(name, "ascending") for name in mirror.definition.primary_key])

    def newer(self, mirror: MirrorTable, since: int, most: int) -> pa.Table:
        """Return some of the others; as `MirrorRows.newer`."""
        return self._rows(mirror, f"NOT {_OLDER}", since, f" LIMIT {most}")

    def count(self, mirror: MirrorTable, before: int) -> RowCount:
        """Count them; as `MirrorRows.count`."""
        select = f"SELECT COUNTIF({_OLDER}) AS older, COUNT(*) AS n FROM `{self._path(mirror)}` WHERE {_kept(mirror)}"  # noqa: S608  names
        ((older, rows),) = [(row["older"], row["n"]) for row in self._asked(mirror, select, before)]
        return RowCount(older, rows)

    def mark_swept(self, mirror: MirrorTable, before: int, told_by: int) -> bool:
        """Let the mirror say that it is swept; as `MirrorRows.mark_swept`."""
        path = self._path(mirror)
        for _attempt in range(_ATTEMPTS):
            for attempt in retrying(self._stop, _PATIENCE):
                with attempt, rest_errors(f"table {path}"):
                    found = self._client.get_table(path, retry=_NO_RETRY, timeout=_TIMEOUT)
                    if too_early(found.labels, told_by):
                        return False
                    labels = swept(found.labels, before)
                    if labels is None:
                        return True
                    found.labels = labels
                    try:
                        self._client.update_table(found, ["labels"], retry=_NO_RETRY, timeout=_TIMEOUT)
                    except (exceptions.Conflict, exceptions.PreconditionFailed):
                        break
                    except exceptions.Forbidden as error:
                        structlog.get_logger().warning("table_not_labelled", table=path, error=str(error.message))
                    return True
        return True

    def _rows(self, mirror: MirrorTable, which: str, before: int, limit: str = "") -> pa.Table:
        columns = [column for column in mirror.definition.columns if column.name not in _OURS]
        named = ", ".join(_selected(column.name, column.type) for column in columns)
        select = f"SELECT {named} FROM `{self._path(mirror)}` WHERE {which} AND {_kept(mirror)}{limit}"  # noqa: S608  names
        rows = [tuple(row.values()) for row in self._asked(mirror, select, before)]
        values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
        return pa.table(
            [
                pa.array([_wire(column.type, each) for each in some], column.type.wire)
                for column, some in zip(columns, values, strict=True)
            ],
            names=[column.name for column in columns],
        )

    def _asked(self, mirror: MirrorTable, select: str, before: int) -> Sequence[Any]:
        parameter = bigquery.ScalarQueryParameter("before", "STRING", first_sequence(before))
        config = bigquery.QueryJobConfig(query_parameters=[parameter])
        for attempt in retrying(self._stop, _PATIENCE):
            with attempt, rest_errors(f"table {self._path(mirror)}"):
                try:
                    answer = self._client.query_and_wait(
                        select,
                        job_config=config,
                        retry=_NO_RETRY,
                        job_retry=_NO_RETRY,
                        page_size=_PAGE,
                        api_timeout=_TIMEOUT,
                        wait_timeout=_QUERY_TIMEOUT,
                    )
                    return list(answer)
                except exceptions.Forbidden as error:
                    raise MisconfiguredError(
                        f"table {self._path(mirror)} may not be queried ({error.message}): give this identity "
                        f"roles/bigquery.jobUser on project {self._project}"
                    ) from error
                except (exceptions.NotFound, exceptions.BadRequest) as error:
                    raise MisconfiguredError(f"table {self._path(mirror)}: {error.message}") from error
        raise AssertionError("the last attempt returns or raises")

    def _path(self, mirror: MirrorTable) -> str:
        return f"{self._project}.{mirror.definition.dataset or self._dataset}.{mirror.definition.name}"


_OLDER: Final = (
    f"(`{SEQUENCE_COLUMN}` IS NULL OR (LENGTH(`{SEQUENCE_COLUMN}`) = {_WIDTH} AND `{SEQUENCE_COLUMN}` < @before))"
)
"""Rows without a sequence were there before Millrace; one of another form is not ours to judge by its text."""


def _kept(mirror: MirrorTable) -> str:
    return f"(`{DELETED_COLUMN}` IS NULL OR NOT `{DELETED_COLUMN}`)" if mirror.soft_delete else "TRUE"


def _mirror(found: bigquery.Table, dataset: str) -> MirrorTable:
    """Return what is to be known of a table; MisconfiguredError if it is no mirror that can be swept."""
    path, names = str(found.reference), {field.name for field in found.schema}
    constraints = found.table_constraints
    key = tuple(constraints.primary_key.columns) if constraints is not None and constraints.primary_key else ()
    if MIRROR_OF not in found.labels or SEQUENCE_COLUMN not in names or not key:
        raise MisconfiguredError(f"table {path} is no mirror: it has no label {MIRROR_OF}, no key or no sequences")
    soft_delete = DELETED_COLUMN in names
    wanted = {name for name in names if soft_delete} | {*key, *_OURS}
    columns = tuple(
        column for field in found.schema if field.name in wanted and (column := table_column(field)) is not None
    )
    definition = TableDefinition(found.table_id, columns, key, _source_of(found), dataset)
    match = _INTERVAL.fullmatch(found.max_staleness or "")
    days, hours, minutes, seconds = (int(part) for part in match.groups()) if match else (0, 0, 0, 0)
    return MirrorTable(
        definition,
        str(found.labels[MIRROR_OF]),
        soft_delete,
        label_time(found.labels, COMPLETE_SINCE),
        timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds),
    )


def _source_of(found: bigquery.Table) -> str:
    """Return the source table that a mirror is of, if its description still names that; else what its label says."""
    label = str(found.labels[MIRROR_OF])
    named = (found.description or "").removeprefix("Mirror of ").removesuffix(", kept by Millrace")
    return named if label_of(named) == label else label


def _selected(name: str, kind: ColumnType) -> str:
    """Return what a column is asked for by: the client would read JSON, and digits would be lost."""
    if kind.bigquery == "ARRAY<JSON>":
        each = "SELECT TO_JSON_STRING(each) FROM UNNEST"
        return f"ARRAY({each}(`{name}`) AS each WITH OFFSET AS place ORDER BY place) AS `{name}`"
    if kind.bigquery != "JSON":
        return f"`{name}`"
    return f"IF(`{name}` IS NULL, NULL, TO_JSON_STRING(`{name}`)) AS `{name}`"


def _wire(kind: ColumnType, value: Any) -> object:
    """Return a value that the client has read as the append takes it."""
    if kind.element is not None:
        return [_wire(kind.element, each) for each in value or ()]
    return None if value is None else _VALUES.get(kind.bigquery, _as_it_is)(value)


def _as_it_is(value: object) -> object:
    return value


def _numeric(value: Decimal) -> str:
    return f"{value:f}"


def _date(value: dt.date) -> int:
    return (value - _EPOCH.date()).days


def _timestamp(value: dt.datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1)


def _json(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


_VALUES: Final[Mapping[str, Callable[[Any], object]]] = {
    "NUMERIC": _numeric,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "JSON": _json,
}
