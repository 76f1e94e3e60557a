"""Query jobs over REST: each is run when it is inserted, so it is always done; its result waits to be read in pages.

Sources: BigQuery REST reference, `jobs.insert`, `jobs.query`, `jobs.get`, `jobs.getQueryResults` and `Job`; "Using
cached query results" (a query's result is in an anonymous table, which `tabledata.list` reads).
"""

import hashlib
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlglot import exp

from emulators.bigquery.catalog import TableName
from emulators.bigquery.errors import ApiError, duplicate, invalid, not_found
from emulators.bigquery.job_history import PastJob
from emulators.bigquery.outcome import Outcome
from emulators.bigquery.resources import table_reference
from emulators.bigquery.rest_values import result_rows, result_schema, timestamp_format
from emulators.bigquery.sql import Defaults, read_parameters
from emulators.bigquery.statements import check, run
from emulators.bigquery.unserved import not_served
from emulators.bigquery.warehouse import Warehouse

_KEPT_JOBS: Final = 200
_UNSERVED_KINDS: Final = {"load": "a load job", "copy": "a copy job", "extract": "an extract job"}
_UNSERVED_OPTIONS: Final = ("destinationTable", "tableDefinitions", "userDefinedFunctionResources", "createSession")
_USER: Final = "anonymous@example.com"
_LISTED_JOBS: Final = 50
_PAGE_ROWS: Final = 20_000
_REQUEST_BYTES: Final = 10 << 20
"""Of a query's request, its parameters included (BigQuery, "Quotas and limits", query jobs: 10 MB)."""
_TOO_LARGE: Final = (
    "Response too large to return. Consider specifying a destination table in your job configuration. For more "
    "details, see https://cloud.google.com/bigquery/troubleshooting-errors"
)


@dataclass(frozen=True)
class _Job:
    project: str
    identifier: str
    configuration: Mapping[str, Any]
    outcome: Outcome
    created: int

    @property
    def result_in(self) -> TableName | None:
        """Return the anonymous table with the result of a query; None of a statement that has none."""
        if self.outcome.rows is None:
            return None
        owner, table = (hashlib.sha256(text.encode()).hexdigest() for text in (f"{self.project}/{_USER}", self.key))
        return TableName(self.project, f"_{owner[:40]}", f"anon{table}")

    @property
    def key(self) -> str:
        """Return the job's identity."""
        return f"{self.project}:US.{self.identifier}"


class Jobs:
    """The latest jobs. Used from several threads."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._jobs: OrderedDict[tuple[str, str], _Job] = OrderedDict()

    def insert(self, project: str, resource: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a job and return it; ApiError where its statement is refused."""
        configuration = resource.get("configuration") or {}
        for kind, name in _UNSERVED_KINDS.items():
            if kind in configuration:
                raise not_served(f"jobs.insert of {name}: it runs query jobs only")
        if "query" not in configuration:
            raise ApiError("required", "Required parameter is missing: configuration.query")
        reference = resource.get("jobReference") or {}
        identifier = reference.get("jobId") or uuid.uuid4().hex
        with self._lock:
            if (project, identifier) in self._jobs:
                raise duplicate(f"Job {project}:US.{identifier}")
        if configuration.get("dryRun"):
            return _dry_resource(project, configuration, self._dry_run(project, configuration["query"]))
        return _resource(self._run(project, identifier, configuration["query"], configuration))

    def query(self, project: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a statement and return the first page of its result."""
        kind = {"kind": "bigquery#queryResponse"}
        if request.get("dryRun"):
            return {**kind, **_dry_page(project, self._dry_run(project, request))}
        configuration = {"query": {"query": request.get("query"), "useLegacySql": False}}
        job = self._run(project, uuid.uuid4().hex, request, configuration)
        page = _page(job, {**request, **(request.get("formatOptions") or {})})
        return {**kind, **page, "totalBytesBilled": str(job.outcome.cost.billed)}

    def listing(self, table: TableName, columns: Sequence[str]) -> str:
        """Return the job that reads a table as it is now, to be listed in pages: any size, for nothing."""
        chosen = ", ".join(f"`{column}`" for column in columns) or "*"
        query = {"query": f"SELECT {chosen} FROM `{table.dotted}`", "useLegacySql": False}
        return self._run(table.project, uuid.uuid4().hex, query, {"query": query}, listing=True).identifier

    def cancel(self, project: str, identifier: str) -> Mapping[str, Any]:
        """Return a job, which is done: there is nothing left to cancel."""
        return {"kind": "bigquery#jobCancelResponse", "job": self.get(project, identifier)}

    def with_result_in(self, table: TableName) -> str:
        """Return the job whose result is in an anonymous table; empty for any other table."""
        if not table.dataset.startswith("_"):
            return ""
        with self._lock:
            return next((job.identifier for job in self._jobs.values() if job.result_in == table), "")

    def result_resource(self, project: str, identifier: str) -> Mapping[str, Any]:
        """Return the anonymous table with a job's result, as `tables.get` describes it."""
        job = self._job(project, identifier)
        assert job.result_in is not None
        assert job.outcome.rows is not None
        millis = str(job.created // 1_000)
        return {
            "kind": "bigquery#table",
            "type": "TABLE",
            "id": str(job.result_in),
            "tableReference": table_reference(job.result_in),
            "schema": {"fields": result_schema(job.outcome.rows.schema)},
            "numRows": str(job.outcome.rows.num_rows),
            "location": "US",
            "creationTime": millis,
            "lastModifiedTime": millis,
        }

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
        self,
        project: str,
        identifier: str,
        query: Mapping[str, Any],
        configuration: Mapping[str, Any],
        *,
        listing: bool = False,
    ) -> _Job:
        text, defaults, parameters = _statement(project, query)
        created = self._warehouse.now()
        most = query.get("maximumBytesBilled")
        outcome = run(self._warehouse, text, defaults, parameters, None if most is None else _number(most))
        if outcome.rows is not None and outcome.rows.nbytes > self._warehouse.response_bytes and not listing:
            raise ApiError("responseTooLarge", _TOO_LARGE)
        self._remember(project, identifier, outcome, created, text)
        job = _Job(project, identifier, configuration, outcome, created)
        with self._lock:
            self._jobs[project, identifier] = job
            while len(self._jobs) > _KEPT_JOBS:
                self._jobs.popitem(last=False)
        return job

    def _dry_run(self, project: str, query: Mapping[str, Any]) -> Outcome:
        text, defaults, parameters = _statement(project, query)
        return check(self._warehouse, text, defaults, parameters)

    def _remember(self, project: str, identifier: str, outcome: Outcome, created: int, text: str) -> None:
        ended = max(created, self._warehouse.now())
        job = PastJob(
            project,
            identifier,
            _USER,
            outcome.statement_type,
            created,
            ended,
            slot_milliseconds=max(1, (ended - created) // 1_000),
            query=text,
            processed=outcome.cost.processed,
            billed=outcome.cost.billed,
            read=outcome.read,
        )
        self._warehouse.history.add(job)

    def _job(self, project: str, identifier: str) -> _Job:
        with self._lock:
            if (project, identifier) not in self._jobs:
                raise not_found(f"Job {project}:US.{identifier}")
            return self._jobs[project, identifier]


def _statement(project: str, query: Mapping[str, Any]) -> tuple[str, Defaults, Mapping[str | int, exp.Expr]]:
    """Return the text of a query job, what completes its names, and its parameters; ApiError where it is not served."""
    if len(msgspec.json.encode(query)) > _REQUEST_BYTES:
        raise invalid(f"Request payload size exceeds the limit: {_REQUEST_BYTES} bytes.")
    text = str(query.get("query") or "")
    first = text.lstrip().partition("\n")[0].strip().lower()
    legacy = first == "#legacysql" or (
        str(query.get("useLegacySql", True)).lower() == "true" and first != "#standardsql"
    )
    if legacy:
        raise not_served("legacy SQL, which a request asks for unless it sets useLegacySql to false")
    for option in _UNSERVED_OPTIONS:
        if query.get(option):
            raise not_served(f"query jobs with {option}")
    dataset = query.get("defaultDataset") or {}
    defaults = Defaults(dataset.get("projectId") or project, dataset.get("datasetId"))
    return text, defaults, read_parameters(query.get("queryParameters") or ())


def _dry_resource(project: str, configuration: Mapping[str, Any], outcome: Outcome) -> Mapping[str, Any]:
    processed = str(outcome.cost.processed)
    statistics: dict[str, Any] = {
        "statementType": outcome.statement_type,
        "totalBytesProcessed": processed,
        "totalBytesProcessedAccuracy": "UPPER_BOUND",
    }
    if outcome.rows is not None:
        statistics["schema"] = {"fields": result_schema(outcome.rows.schema)}
    return {
        "kind": "bigquery#job",
        "jobReference": {"projectId": project, "location": "US"},
        "configuration": {"jobType": "QUERY", **configuration},
        "status": {"state": "DONE"},
        "statistics": {"totalBytesProcessed": processed, "query": statistics},
    }


def _dry_page(project: str, outcome: Outcome) -> Mapping[str, Any]:
    return {
        "jobReference": {"projectId": project, "location": "US"},
        "jobComplete": True,
        "cacheHit": False,
        "totalBytesProcessed": str(outcome.cost.processed),
        "schema": {"fields": result_schema(outcome.rows.schema) if outcome.rows is not None else []},
    }


def _resource(job: _Job) -> Mapping[str, Any]:
    millis = str(job.created // 1_000)
    processed = str(job.outcome.cost.processed)
    statistics: dict[str, Any] = {
        "statementType": job.outcome.statement_type,
        "totalBytesProcessed": processed,
        "totalBytesBilled": str(job.outcome.cost.billed),
    }
    if job.outcome.affected is not None:
        statistics["numDmlAffectedRows"] = str(job.outcome.affected)
    if job.outcome.operation:
        statistics["ddlOperationPerformed"] = job.outcome.operation
        if job.outcome.target is not None:
            statistics["ddlTargetTable"] = table_reference(job.outcome.target)
    configuration = {"jobType": "QUERY", **job.configuration}
    if job.result_in is not None:
        configuration["query"] = {**configuration["query"], "destinationTable": table_reference(job.result_in)}
    return {
        "kind": "bigquery#job",
        "id": job.key,
        "jobReference": _reference(job),
        "configuration": configuration,
        "status": {"state": "DONE"},
        "statistics": {
            "creationTime": millis,
            "startTime": millis,
            "endTime": millis,
            "totalBytesProcessed": processed,
            "query": statistics,
        },
    }


def _reference(job: _Job) -> Mapping[str, str]:
    return {"projectId": job.project, "jobId": job.identifier, "location": "US"}


def _page(job: _Job, options: Mapping[str, Any]) -> Mapping[str, Any]:
    page: dict[str, Any] = {
        "jobReference": _reference(job),
        "jobComplete": True,
        "cacheHit": False,
        "totalBytesProcessed": str(job.outcome.cost.processed),
        "schema": {"fields": []},
    }
    if job.outcome.affected is not None:
        page["numDmlAffectedRows"] = str(job.outcome.affected)
    rows = job.outcome.rows
    if rows is None:
        return page
    if options.get("selectedFields"):
        rows = rows.select(_selected(str(options["selectedFields"]), rows.schema.names))
    start = _number(options.get("pageToken") or options.get("startIndex") or 0)
    limit = min(_number(options.get("maxResults", _PAGE_ROWS)), _PAGE_ROWS)
    page["schema"] = {"fields": result_schema(rows.schema)}
    page["totalRows"] = str(rows.num_rows)
    if limit:
        page["rows"] = result_rows(rows.slice(start, limit), timestamp_format(options))
        if start + limit < rows.num_rows:
            page["pageToken"] = str(start + limit)
    return page


def _selected(fields: str, names: Sequence[str]) -> Sequence[str]:
    known = {name.lower(): name for name in names}
    missing = [field for field in fields.split(",") if field.lower() not in known]
    if missing:
        raise invalid(f"No such field: {missing[0]}")
    return [known[field.lower()] for field in fields.split(",")]


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise invalid(f"Invalid number: {value}") from None
