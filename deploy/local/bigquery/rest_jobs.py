"""Query jobs over REST: each is run when it is inserted, so it is always done; its result waits to be read in pages.

Source: BigQuery REST reference, `jobs.insert`, `jobs.query`, `jobs.get`, `jobs.getQueryResults`.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from deploy.local.bigquery.errors import ApiError, duplicate, invalid, not_found
from deploy.local.bigquery.job_history import PastJob
from deploy.local.bigquery.outcome import Outcome
from deploy.local.bigquery.resources import table_reference
from deploy.local.bigquery.rest_values import result_rows, result_schema, timestamp_format
from deploy.local.bigquery.sql import Defaults, read_parameters
from deploy.local.bigquery.statements import run
from deploy.local.bigquery.warehouse import Warehouse

_KEPT_JOBS: Final = 200
_USER: Final = "anonymous@example.com"
_LISTED_JOBS: Final = 50
_PAGE_ROWS: Final = 20_000


@dataclass(frozen=True)
class _Job:
    project: str
    identifier: str
    configuration: Mapping[str, Any]
    outcome: Outcome
    created: int


class Jobs:
    """The latest jobs. Used from several threads."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._jobs: OrderedDict[tuple[str, str], _Job] = OrderedDict()

    def insert(self, project: str, resource: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a job and return it; ApiError where its statement is refused."""
        configuration = resource.get("configuration") or {}
        if "query" not in configuration:
            raise ApiError("notImplemented", "This stand-in runs query jobs only")
        reference = resource.get("jobReference") or {}
        identifier = reference.get("jobId") or uuid.uuid4().hex
        with self._lock:
            if (project, identifier) in self._jobs:
                raise duplicate(f"Job {project}:US.{identifier}")
        query = configuration["query"]
        job = self._run(project, identifier, query, bool(configuration.get("dryRun")), configuration)
        return _resource(job)

    def query(self, project: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a statement and return the first page of its result."""
        dry_run = bool(request.get("dryRun"))
        job = self._run(project, uuid.uuid4().hex, request, dry_run, {"query": {"query": request.get("query")}})
        return {"kind": "bigquery#queryResponse", **_page(job, {**request, **(request.get("formatOptions") or {})})}

    def get(self, project: str, identifier: str) -> Mapping[str, Any]:
        """Return a job."""
        return _resource(self._job(project, identifier))

    def list(self, project: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a project's latest jobs, the latest first."""
        limit = _number(parameters.get("maxResults", _LISTED_JOBS))
        with self._lock:
            jobs = [job for job in reversed(self._jobs.values()) if job.project == project][:limit]
        listed = [{**_resource(job), "state": "DONE", "user_email": _USER} for job in jobs]
        return {"kind": "bigquery#jobList", "jobs": listed}

    def results(self, project: str, identifier: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a page of a job's result."""
        options = {key.removeprefix("formatOptions."): value for key, value in parameters.items()}
        return {"kind": "bigquery#getQueryResultsResponse", **_page(self._job(project, identifier), options)}

    def _run(
        self, project: str, identifier: str, query: Mapping[str, Any], dry_run: bool, configuration: Mapping[str, Any]
    ) -> _Job:
        if dry_run:
            raise ApiError("notImplemented", "This stand-in does not serve dry runs")
        if str(query.get("useLegacySql", False)).lower() == "true":
            raise ApiError("notImplemented", "This stand-in does not serve legacy SQL")
        dataset = query.get("defaultDataset") or {}
        defaults = Defaults(dataset.get("projectId") or project, dataset.get("datasetId"))
        parameters = read_parameters(query.get("queryParameters") or ())
        created = self._warehouse.now()
        text = str(query.get("query") or "")
        outcome = run(self._warehouse, text, defaults, parameters)
        self._remember(project, identifier, outcome, created, text)
        job = _Job(project, identifier, configuration, outcome, created)
        with self._lock:
            self._jobs[project, identifier] = job
            while len(self._jobs) > _KEPT_JOBS:
                self._jobs.popitem(last=False)
        return job

    def _remember(self, project: str, identifier: str, outcome: Outcome, created: int, text: str) -> None:
        ended = max(created, self._warehouse.now())
        slot_milliseconds = max(1, (ended - created) // 1_000)
        self._warehouse.history.add(
            PastJob(project, identifier, _USER, outcome.statement_type, created, ended, slot_milliseconds, query=text)
        )

    def _job(self, project: str, identifier: str) -> _Job:
        with self._lock:
            if (project, identifier) not in self._jobs:
                raise not_found(f"Job {project}:US.{identifier}")
            return self._jobs[project, identifier]


def _resource(job: _Job) -> Mapping[str, Any]:
    millis = str(job.created // 1_000)
    statistics: dict[str, Any] = {"statementType": job.outcome.statement_type, "totalBytesProcessed": "0"}
    if job.outcome.affected is not None:
        statistics["numDmlAffectedRows"] = str(job.outcome.affected)
    if job.outcome.operation:
        statistics["ddlOperationPerformed"] = job.outcome.operation
        if job.outcome.target is not None:
            statistics["ddlTargetTable"] = table_reference(job.outcome.target)
    return {
        "kind": "bigquery#job",
        "id": f"{job.project}:US.{job.identifier}",
        "jobReference": _reference(job),
        "configuration": {"jobType": "QUERY", **job.configuration},
        "status": {"state": "DONE"},
        "statistics": {"creationTime": millis, "startTime": millis, "endTime": millis, "query": statistics},
    }


def _reference(job: _Job) -> Mapping[str, str]:
    return {"projectId": job.project, "jobId": job.identifier, "location": "US"}


def _page(job: _Job, options: Mapping[str, Any]) -> Mapping[str, Any]:
    page: dict[str, Any] = {
        "jobReference": _reference(job),
        "jobComplete": True,
        "cacheHit": False,
        "totalBytesProcessed": "0",
        "schema": {"fields": []},
    }
    if job.outcome.affected is not None:
        page["numDmlAffectedRows"] = str(job.outcome.affected)
    rows = job.outcome.rows
    if rows is None:
        return page
    start = _number(options.get("pageToken") or options.get("startIndex") or 0)
    limit = min(_number(options.get("maxResults", _PAGE_ROWS)), _PAGE_ROWS)
    page["schema"] = {"fields": result_schema(rows.schema)}
    page["totalRows"] = str(rows.num_rows)
    if limit:
        page["rows"] = result_rows(rows.slice(start, limit), timestamp_format(options))
        if start + limit < rows.num_rows:
            page["pageToken"] = str(start + limit)
    return page


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise invalid(f"Invalid number: {value}") from None
