"""Asks BigQuery for what `advise` goes by: one query for each kind of figure. Nothing is changed.

What may not be read, or does not answer, is a problem with its fix, and the rest is asked all the same. Sources of the
queries: BigQuery, "Stream table updates with change data capture" (its own queries of JOBS, JOBS_TIMELINE, TABLES and
TABLE_OPTIONS); "JOBS view", "ASSIGNMENTS view" and "RESERVATIONS view".
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent import futures
from datetime import timedelta
from typing import Any, Final, TypeVar

from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import rest_errors
from services.cdc_consumer.adapters.bigquery.staleness import interval_of, read_watermarks
from services.cdc_consumer.adapters.doctor.dataset_inspection import datasets_of_schemas
from services.cdc_consumer.core.advice.figures import (
    AdviceProblem,
    ApplyDuration,
    Assignment,
    JobTotals,
    MirrorFigures,
    RegionFigures,
)
from shared.bigquery.client import beyond_limits
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.mirrors import MIRROR_OF

_TIMEOUT: Final = 60.0  # seconds
_NO_RETRY: Final[Any] = None  # the command is typed again
_AT_ONCE: Final = 8

T = TypeVar("T")

APPLIES: Final = """SELECT
  project_id,
  destination_table.dataset_id,
  destination_table.table_id,
  APPROX_QUANTILES((TIMESTAMP_DIFF(end_time, creation_time,MILLISECOND)/1000), 100)[OFFSET(95)]
    AS p95_background_apply_duration_in_seconds,
  CEILING(APPROX_QUANTILES((TIMESTAMP_DIFF(end_time, creation_time,MILLISECOND)/1000), 100)[OFFSET(95)]*2/60)+7
    AS recommended_max_staleness_with_buffer_in_minutes
FROM `REGION`.INFORMATION_SCHEMA.JOBS AS job
WHERE
  project_id = 'PROJECT_ID'
  AND DATE(creation_time) BETWEEN DATE_SUB(CURRENT_DATE(), INTERVAL 7 DAY) AND CURRENT_DATE()
  AND job_id LIKE "%cdc_background%"
GROUP BY 1,2,3"""
"""The document's query of the durations of background applies."""
SLOTS: Final = """SELECT
  period_start,
  SUM(period_slot_ms) / (1000 * 60) AS slots_used
FROM
  `REGION`.INFORMATION_SCHEMA.JOBS_TIMELINE_BY_PROJECT
WHERE
  DATE(job_creation_time) BETWEEN DATE_SUB(CURRENT_DATE(), INTERVAL 7 DAY)
  AND CURRENT_DATE()
  AND job_id LIKE '%cdc_background%'
GROUP BY
  period_start
ORDER BY
  period_start DESC"""
"""The document's query of the slots that they used."""
_TOTALS: Final = """
  COUNT(*) AS jobs, SUM(total_slot_ms) AS slot_ms, SUM(total_bytes_billed) AS size,
  MAX(TIMESTAMP_DIFF(end_time, creation_time, MILLISECOND)/1000) AS longest,
  COUNTIF(error_result IS NOT NULL) AS failed"""
_LATELY: Final = "DATE(creation_time) BETWEEN DATE_SUB(CURRENT_DATE(), INTERVAL 7 DAY) AND CURRENT_DATE()"
APPLY_JOBS: Final = f"""SELECT destination_table.dataset_id, destination_table.table_id, {_TOTALS}
FROM `REGION`.INFORMATION_SCHEMA.JOBS AS job
WHERE project_id = 'PROJECT_ID' AND {_LATELY} AND job_id LIKE '%cdc_background%'
GROUP BY 1,2"""  # noqa: S608  constants
QUERY_JOBS: Final = f"""SELECT referenced.dataset_id, referenced.table_id, {_TOTALS}
FROM `REGION`.INFORMATION_SCHEMA.JOBS AS job, UNNEST(referenced_tables) AS referenced
WHERE
  job.project_id = 'PROJECT_ID' AND referenced.project_id = 'PROJECT_ID' AND job_type = 'QUERY'
  AND {_LATELY} AND job_id NOT LIKE '%cdc_background%'
GROUP BY 1,2"""  # noqa: S608  constants
ASSIGNMENTS: Final = """SELECT
  assignment.reservation_name, assignment.job_type, assignment.assignee_type, assignment.assignee_id, edition
FROM `ADMIN_PROJECT`.`REGION`.INFORMATION_SCHEMA.ASSIGNMENTS AS assignment
LEFT JOIN `ADMIN_PROJECT`.`REGION`.INFORMATION_SCHEMA.RESERVATIONS AS reservation
  ON reservation.reservation_name = assignment.reservation_name"""
_OPTIONS: Final = (
    "SELECT table_name, option_value FROM `{}`.INFORMATION_SCHEMA.TABLE_OPTIONS WHERE option_name = 'max_staleness'"
)
_ORDERED: Final = (
    "SELECT table_name, column_name, is_partitioning_column = 'YES' AS parts, clustering_ordinal_position AS place "
    "FROM `{}`.INFORMATION_SCHEMA.COLUMNS "
    "WHERE is_partitioning_column = 'YES' OR clustering_ordinal_position IS NOT NULL ORDER BY place"
)


class AdviceFigures:
    """Asks with one client; ``unread`` grows by what could not be asked."""

    def __init__(self, client: bigquery.Client, project: str, admin_project: str) -> None:
        self._client = client
        self._project = project
        self._admin_project = admin_project
        self.unread: list[AdviceProblem] = []

    def regions(
        self, datasets: Iterable[str], templates: Collection[str] = (), tables: Sequence[str] = ()
    ) -> Sequence[RegionFigures]:
        """Return the figures of all mirrors in some datasets, or of those that are named, by region.

        ``templates``: of the names of further datasets. ``tables``: ``dataset.table``, or the table alone;
        MisconfiguredError for one that is no mirror there.
        """
        datasets = sorted(set(datasets))
        if templates:
            ask = (datasets_of_schemas, self._client, self._project, templates, datasets)
            datasets += self._read("datasets by schema", _GRANT_DATA, *ask) or ()
        places: dict[str, dict[str, Sequence[str]]] = {}
        for dataset in datasets:
            for location, mirrors in self._read(f"dataset {dataset}", _GRANT_DATA, self._mirrors_in, dataset) or ():
                places.setdefault(location, {})[dataset] = mirrors
        there = [f"{dataset}.{name}" for found in places.values() for dataset in found for name in found[dataset]]
        wanted = _wanted(there, tables, all_seen=not self.unread)
        return [self._region(location, found, wanted) for location, found in places.items()]

    def _mirrors_in(self, dataset: str) -> Sequence[tuple[str, Sequence[str]]]:
        path = f"{self._project}.{dataset}"
        location = self._client.get_dataset(path, retry=_NO_RETRY, timeout=_TIMEOUT).location or "US"
        listed = self._client.list_tables(path, retry=_NO_RETRY, timeout=_TIMEOUT)
        return [(location, [one.table_id for one in listed if MIRROR_OF in one.labels])]

    def _region(self, location: str, datasets: Mapping[str, Sequence[str]], wanted: Iterable[str]) -> RegionFigures:
        jobs = f"jobs of region-{location.lower()}"

        def asked(query: str, grant: str, check: str = jobs) -> Sequence[Sequence[Any]] | None:
            text = query.replace("REGION", f"region-{location.lower()}").replace("ADMIN_PROJECT", self._admin_project)
            return self._read(check, grant, self._rows, text.replace("PROJECT_ID", self._project), location)

        applies = asked(APPLIES, _GRANT_JOBS)
        rest = [
            asked(query, _GRANT_JOBS) or ()
            for query in ((APPLY_JOBS, QUERY_JOBS, SLOTS) if applies is not None else ())
        ]
        apply_jobs, query_jobs, slots = rest or ((), (), ())
        assignments = asked(ASSIGNMENTS, _GRANT_RESERVATIONS, f"assignments of region-{location.lower()}")
        return RegionFigures(
            location=location,
            mirrors=[
                one
                for dataset, names in datasets.items()
                for one in self._mirrors(
                    dataset, location, [name for name in names if f"{dataset}.{name}" in set(wanted)]
                )
            ],
            applies={f"{row[1]}.{row[2]}": ApplyDuration(float(row[3]), float(row[4])) for row in applies or ()},
            apply_jobs=_totals(apply_jobs),
            query_jobs=_totals(query_jobs),
            slots_used=[float(used) for _period, used in slots],
            assignments=None
            if assignments is None
            else [Assignment(*("" if cell is None else str(cell) for cell in row)) for row in assignments],
        )

    def _mirrors(self, dataset: str, location: str, names: Sequence[str]) -> Sequence[MirrorFigures]:
        path, check = f"{self._project}.{dataset}", f"dataset {dataset}"
        if not names:
            return ()
        options, ordered = (
            self._read(check, _GRANT_DATA, self._rows, query.format(path), location) or ()
            for query in (_OPTIONS, _ORDERED)
        )
        watermarks = self._read(check, _GRANT_DATA, read_watermarks, self._client, path, _TIMEOUT) or {}
        staleness = {name: interval_of(value) for name, value in options}

        def size_of(name: str) -> int | None:
            return self._read(f"size of {dataset}.{name}", _GRANT_DATA, self._size, f"{path}.{name}", location)

        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:  # a dry run each: one after the other they take minutes
            sizes = list(pool.map(size_of, names))
        return [
            MirrorFigures(
                name=f"{dataset}.{name}",
                max_staleness=staleness.get(name, timedelta()),
                watermark=watermarks.get(name),
                size=size,
                clustered_by=[column for table, column, _parts, place in ordered if table == name and place],
                partitioned_by=", ".join(column for table, column, parts, _place in ordered if table == name and parts),
            )
            for name, size in zip(names, sizes, strict=True)
        ]

    def _size(self, path: str, location: str) -> int:
        """Return the bytes of all columns, which BigQuery estimates without running the query."""
        config = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False)
        query = f"SELECT * FROM `{path}`"  # noqa: S608  names of a listing
        job = self._client.query(query, config, location=location, retry=_NO_RETRY, job_retry=_NO_RETRY)
        return int(job.total_bytes_processed or 0)

    def _rows(self, query: str, location: str | None) -> Sequence[Any]:
        rows = self._client.query_and_wait(
            query, location=location, retry=_NO_RETRY, api_timeout=_TIMEOUT, wait_timeout=_TIMEOUT
        )
        return [tuple(row.values()) for row in rows]

    def _read(self, check: str, grant: str, ask: Callable[..., T], *arguments: Any) -> T | None:
        """Return what is answered; None, with a problem noted once, where it is not."""
        try:
            with rest_errors(check):
                try:
                    return ask(*arguments)
                except futures.TimeoutError as error:
                    raise TransientError(f"{check}: no answer within {_TIMEOUT:.0f} s") from error
                except exceptions.Forbidden as error:
                    if beyond_limits(error):
                        raise
                    problem = AdviceProblem(check, f"may not be read: {error.message}", grant, unread=True)
                except (exceptions.NotFound, exceptions.BadRequest) as error:
                    fix = "check BIGQUERY_DATASET, BIGQUERY_PROJECT and --admin-project, and where the dataset lies"
                    problem = AdviceProblem(check, f"cannot be read: {error.message}", fix, unread=True)
        except (TransientError, MisconfiguredError) as error:
            problem = AdviceProblem(check, str(error), "ask again", unread=True)
        if problem.check not in {one.check for one in self.unread}:
            self.unread.append(problem)
        return None


_GRANT_JOBS: Final = (
    "grant this identity roles/bigquery.resourceViewer (bigquery.jobs.listAll) and roles/bigquery.jobUser on the "
    "project"
)
_GRANT_DATA: Final = (
    "grant this identity roles/bigquery.dataViewer on the dataset, and roles/bigquery.jobUser on the project"
)
_GRANT_RESERVATIONS: Final = (
    "grant this identity roles/bigquery.resourceViewer (bigquery.reservationAssignments.list, "
    "bigquery.reservations.list) on the project that owns reservations, and name that with --admin-project"
)


def _wanted(there: Sequence[str], tables: Sequence[str], *, all_seen: bool) -> Sequence[str]:
    unknown = [table for table in tables if not any(_named(one, table) for one in there)]
    if unknown and all_seen:
        raise MisconfiguredError(
            "mirror-unknown",
            f"no mirror is called {', '.join(unknown)}: the mirrors are {', '.join(sorted(there)) or 'none yet'}; a "
            "mirror has its name in BigQuery, with its dataset or without",
        )
    return [one for one in there if not tables or any(_named(one, table) for table in tables)]


def _named(mirror: str, table: str) -> bool:
    return mirror == table or mirror.partition(".")[2] == table


def _totals(rows: Iterable[Sequence[Any]]) -> Mapping[str, JobTotals]:
    return {
        f"{dataset}.{table}": JobTotals(
            int(jobs), int(slot_ms or 0), None if size is None else int(size), float(longest or 0), int(failed)
        )
        for dataset, table, jobs, slot_ms, size, longest, failed in rows
    }
