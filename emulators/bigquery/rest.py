"""The REST server: BigQuery's API, version 2, as far as the official clients use it, and the control endpoint.

Source: BigQuery REST reference. Handlers are plain functions, which Starlette runs in threads.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from emulators.bigquery.bodies import unpacked
from emulators.bigquery.catalog import Dataset, DatasetName, Table, TableName
from emulators.bigquery.control import Control
from emulators.bigquery.discovery import discovery_document
from emulators.bigquery.errors import ApiError, invalid, not_found
from emulators.bigquery.faults import Faults
from emulators.bigquery.resources import (
    dataset_resource,
    read_changes,
    read_dataset,
    read_dataset_changes,
    read_table,
    table_resource,
)
from emulators.bigquery.rest_jobs import Jobs
from emulators.bigquery.unserved import UNSERVED, not_served
from emulators.bigquery.views import with_columns
from emulators.bigquery.warehouse import Warehouse

_API: Final = "/bigquery/v2/projects/{project}"
log = structlog.get_logger()


class Call:
    """One request: its path's parts, query parameters, headers and JSON body."""

    def __init__(self, request: Request, body: bytes) -> None:
        self.path: Mapping[str, str] = request.path_params
        self.parameters: Mapping[str, str] = request.query_params
        self.root = str(request.base_url)
        self.if_match = request.headers.get("if-match", "")
        try:
            self.body: Any = msgspec.json.decode(body) if body else {}
        except (msgspec.MsgspecError, RecursionError):
            raise invalid("Parse Error: the request's body is not JSON") from None
        if not isinstance(self.body, dict):
            raise invalid("Parse Error: the request's body is not a JSON object")

    @property
    def of_the_api(self) -> bool:
        """Return whether it is a call of BigQuery's API."""
        return "project" in self.path

    @property
    def about(self) -> str:
        """Return the table (``project.dataset.table``) that is read, altered or to be made; empty where it is none."""
        table = self.path.get("table") or (self.body.get("tableReference") or {}).get("tableId")
        return self.table_named(table).dotted if table and "dataset" in self.path else ""

    @property
    def dataset(self) -> DatasetName:
        """Return the dataset that the path names."""
        return DatasetName(self.path["project"], self.path["dataset"])

    @property
    def table(self) -> TableName:
        """Return the table that the path names."""
        return self.table_named(self.path["table"])

    def table_named(self, table: str) -> TableName:
        """Return the name of a table in the dataset that the path names."""
        return TableName(self.path["project"], self.path["dataset"], table)


Handler = Callable[[Call], Any]


def rest_app(warehouse: Warehouse, control: Control) -> Starlette:
    """Return the application."""
    jobs = Jobs(warehouse)
    api = _Api(warehouse, jobs, control.faults)
    dataset, table = f"{_API}/datasets/{{dataset}}", f"{_API}/datasets/{{dataset}}/tables/{{table}}"
    handlers: Sequence[tuple[str, str, Handler]] = (
        ("GET", "/$discovery/rest", lambda call: discovery_document(call.root)),
        ("GET", "/discovery/v1/apis/bigquery/v2/rest", lambda call: discovery_document(call.root)),
        ("GET", "/bigquery/v2/projects", api.list_projects),
        ("GET", f"{_API}/datasets", api.list_datasets),
        ("POST", f"{_API}/datasets", api.insert_dataset),
        ("GET", dataset, lambda call: dataset_resource(warehouse.dataset(call.dataset))),
        ("PATCH", dataset, lambda call: api.alter_dataset(call, patched=True)),
        ("PUT", dataset, lambda call: api.alter_dataset(call, patched=False)),
        ("DELETE", dataset, api.delete_dataset),
        ("GET", f"{dataset}/tables", api.list_tables),
        ("POST", f"{dataset}/tables", lambda call: table_resource(api.insert_table(call))),
        ("POST", f"{table}:testIamPermissions", api.test_rights),
        ("GET", table, api.get_table),
        ("PATCH", table, api.patch_table),
        ("PUT", table, api.update_table),
        ("DELETE", table, lambda call: warehouse.drop_table(call.table)),
        ("GET", f"{table}/data", api.list_rows),
        ("POST", f"{_API}/jobs", lambda call: jobs.insert(call.path["project"], call.body)),
        ("GET", f"{_API}/jobs", lambda call: jobs.list(call.path["project"], call.parameters)),
        ("POST", f"{_API}/jobs/{{job}}/cancel", lambda call: jobs.cancel(call.path["project"], call.path["job"])),
        ("GET", f"{_API}/jobs/{{job}}", lambda call: jobs.get(call.path["project"], call.path["job"])),
        ("POST", f"{_API}/queries", lambda call: jobs.query(call.path["project"], call.body)),
        ("GET", f"{_API}/queries/{{job}}", api.query_results),
        ("GET", "/control/stats", lambda _call: control.stats()),
        ("POST", "/control/faults", lambda call: control.add_fault(call.body)),
        ("DELETE", "/control/faults", lambda call: control.clear_faults(call.body)),
        ("POST", "/control/applies/hold", lambda call: control.pause_applies(call.body)),
        ("POST", "/control/applies/release", lambda call: control.resume_applies(call.body)),
        ("POST", "/control/applies/run", lambda call: control.apply_now(call.body)),
        ("POST", "/control/applies/past", lambda call: control.add_past_apply(call.body)),
        ("POST", "/control/delay", lambda call: control.set_delay(call.body)),
        ("DELETE", "/control/delay", lambda _call: control.clear_delay()),
        ("POST", "/control/limits", lambda call: control.set_limits(call.body)),
        ("POST", "/control/idle", lambda call: control.set_idle(call.body)),
        ("POST", "/control/clock", lambda call: control.advance_clock(call.body)),
    )
    # `{table}` matches `t:getIamPolicy` too: what is not served comes first.
    routes = [Route(path, _refusing(name), methods=[method]) for method, path, name in UNSERVED]
    routes += [Route(path, _endpoint(handler, control.faults), methods=[method]) for method, path, handler in handlers]
    return Starlette(
        routes=routes,
        exception_handlers={404: _no_such_method, 405: _no_such_method},
        middleware=[Middleware(_MethodOverride)],
    )


class _MethodOverride:
    """Takes a POST for the HTTP method in its header X-HTTP-Method-Override, as Google's front ends do.

    java-bigquery sends each PATCH so: the HTTP client of its platform knows no PATCH.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            override = dict(scope["headers"]).get(b"x-http-method-override", b"").decode("latin-1").upper()
            scope = {**scope, "method": override or "POST"}
        await self._app(scope, receive, send)


def _refusing(name: str) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        async for _ in request.stream():  # an upload, of any kind and size: answered when it has come
            pass
        return _error(not_served(name))

    return answer


class _Api:
    def __init__(self, warehouse: Warehouse, jobs: Jobs, faults: Faults) -> None:
        self._warehouse = warehouse
        self._jobs = jobs
        self._faults = faults

    def list_projects(self, _call: Call) -> Mapping[str, Any]:
        projects = [
            {"kind": "bigquery#project", "id": name, "projectReference": {"projectId": name}, "friendlyName": name}
            for name in self._warehouse.projects()
        ]
        return {"kind": "bigquery#projectList", "projects": projects, "totalItems": len(projects)}

    def list_datasets(self, call: Call) -> Mapping[str, Any]:
        datasets = self._warehouse.datasets(call.path["project"])
        keys = ("kind", "id", "datasetReference", "location")
        return {"kind": "bigquery#datasetList", "datasets": [_only(dataset_resource(d), keys) for d in datasets]}

    def insert_dataset(self, call: Call) -> Mapping[str, Any]:
        name, properties = read_dataset(call.path["project"], call.body)
        return dataset_resource(self._warehouse.create_dataset(name, properties))

    def alter_dataset(self, call: Call, *, patched: bool) -> Mapping[str, Any]:
        def change(dataset: Dataset) -> Mapping[str, object]:
            return read_dataset_changes(call.body, dataset, patched=patched)

        return dataset_resource(self._warehouse.alter_dataset(call.dataset, change, etag=call.if_match))

    def delete_dataset(self, call: Call) -> None:
        contents = call.parameters.get("deleteContents", "false").lower() == "true"
        self._warehouse.drop_dataset(call.dataset, contents)

    def list_tables(self, call: Call) -> Mapping[str, Any]:
        tables = self._warehouse.tables(call.dataset)
        keys = ("kind", "id", "tableReference", "type", "creationTime", "clustering", "labels")
        return {
            "kind": "bigquery#tableList",
            "tables": [_only(table_resource(table), keys) for table in tables],
            "totalItems": len(tables),
        }

    def insert_table(self, call: Call) -> Any:
        definition = read_table(call.dataset, call.body)
        if definition.query:
            definition = with_columns(self._warehouse, definition)
        return self._warehouse.create_table(definition)

    def get_table(self, call: Call) -> Mapping[str, Any]:
        if job := self._jobs.with_result_in(call.table):
            return self._jobs.result_resource(call.path["project"], job)
        return table_resource(self._warehouse.table(call.table))

    def test_rights(self, call: Call) -> Mapping[str, Any]:
        self._warehouse.table(call.table)  # of one that is there; and every caller may do anything
        if self._faults.no_rights(call.about):
            return {}
        return {"permissions": list(call.body.get("permissions") or ())}

    def patch_table(self, call: Call) -> Mapping[str, Any]:
        return self._alter_table(call, patched=True)

    def update_table(self, call: Call) -> Mapping[str, Any]:
        return self._alter_table(call, patched=False)

    def _alter_table(self, call: Call, *, patched: bool) -> Mapping[str, Any]:
        def change(table: Table) -> Mapping[str, object]:
            changes = dict(read_changes(call.body, table, patched=patched))
            if "query" in changes:
                changes["columns"] = with_columns(self._warehouse, replace(table, query=changes["query"])).columns
            return changes

        return table_resource(self._warehouse.alter_table(call.table, change, etag=call.if_match))

    def list_rows(self, call: Call) -> Mapping[str, Any]:
        # The pages of one listing are pages of one query's result, so that rows written meanwhile do not shift them.
        project = call.path["project"]
        job, _, start = call.parameters.get("pageToken", "").partition(":")
        job = job or self._jobs.with_result_in(call.table)
        if not job:
            columns = call.parameters.get("selectedFields")
            job = self._jobs.listing(self._warehouse.table(call.table).name, columns.split(",") if columns else ())
        page = dict(self._jobs.results(project, job, {**call.parameters, "pageToken": start}))
        if "pageToken" in page:
            page["pageToken"] = f"{job}:{page['pageToken']}"
        return {"kind": "bigquery#tableDataList", **_only(page, ("totalRows", "rows", "pageToken"))}

    def query_results(self, call: Call) -> Mapping[str, Any]:
        return self._jobs.results(call.path["project"], call.path["job"], call.parameters)


def _endpoint(handler: Handler, faults: Faults) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        body = await request.body()
        try:
            body = unpacked(body, request.headers.get("content-encoding", ""))
            call = Call(request, body)
            if call.of_the_api:  # the control endpoint meets no faults
                await faults.meet_call("before", call.about, request.method, body)
            result = await run_in_threadpool(handler, call)
            if call.of_the_api:
                await faults.meet_call("after", call.about, request.method, body)
        except ApiError as error:
            return _error(error)
        except Exception:  # whatever a request provokes, the server lives on
            log.exception("request_failed", path=request.url.path)
            return _error(ApiError("internalError", "This stand-in failed on the request; its log has the error"))
        return Response(status_code=204) if result is None else _json(result, 200)

    return answer


async def _no_such_method(request: Request, _error_raised: Exception) -> Response:
    return _error(not_found(f"{request.method} {quote(request.url.path)}: BigQuery's API has no such method"))


def _error(error: ApiError) -> Response:
    detail = {"message": error.message, "domain": "global", "reason": error.reason}
    body = {"code": error.http_code, "message": error.message, "status": error.status, "errors": [detail]}
    return _json({"error": body}, error.http_code)


def _json(value: Any, status: int) -> Response:
    headers = {}
    with suppress(TypeError, KeyError):
        headers["etag"] = value["etag"]
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json", headers=headers)


def _only(resource: Mapping[str, Any], keys: Sequence[str]) -> Mapping[str, Any]:
    return {key: resource[key] for key in keys if key in resource}
