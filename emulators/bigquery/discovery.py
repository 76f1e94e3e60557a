"""The discovery document: what `bq --api` reads first, to learn which methods there are and where.

Source: Google API discovery document format; BigQuery's own document, of which this is the part that is served.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_PROJECT: Final = "projects/{+projectId}"
_DATASET: Final = f"{_PROJECT}/datasets/{{+datasetId}}"
_TABLE: Final = f"{_DATASET}/tables/{{+tableId}}"
_PAGE: Final = ("maxResults:integer", "pageToken:string")
_ROWS: Final = (*_PAGE, "startIndex:string", "formatOptions.useInt64Timestamp:boolean")

# resource, method, HTTP method, path, query parameters (name:type), what is sent, what comes back
_METHODS: Final[Sequence[tuple[str, str, str, str, Sequence[str], str, str]]] = (
    ("projects", "list", "GET", "projects", _PAGE, "", "ProjectList"),
    ("datasets", "list", "GET", f"{_PROJECT}/datasets", (*_PAGE, "all:boolean", "filter:string"), "", "DatasetList"),
    ("datasets", "insert", "POST", f"{_PROJECT}/datasets", ("accessPolicyVersion:integer",), "Dataset", "Dataset"),
    ("datasets", "get", "GET", _DATASET, ("accessPolicyVersion:integer", "datasetView:string"), "", "Dataset"),
    (
        "datasets",
        "patch",
        "PATCH",
        _DATASET,
        ("accessPolicyVersion:integer", "updateMode:string"),
        "Dataset",
        "Dataset",
    ),
    ("datasets", "update", "PUT", _DATASET, ("accessPolicyVersion:integer", "updateMode:string"), "Dataset", "Dataset"),
    ("datasets", "delete", "DELETE", _DATASET, ("deleteContents:boolean",), "", ""),
    ("tables", "list", "GET", f"{_DATASET}/tables", _PAGE, "", "TableList"),
    ("tables", "insert", "POST", f"{_DATASET}/tables", (), "Table", "Table"),
    ("tables", "get", "GET", _TABLE, ("selectedFields:string", "view:string"), "", "Table"),
    ("tables", "patch", "PATCH", _TABLE, ("autodetect_schema:boolean",), "Table", "Table"),
    ("tables", "update", "PUT", _TABLE, ("autodetect_schema:boolean",), "Table", "Table"),
    ("tables", "delete", "DELETE", _TABLE, (), "", ""),
    ("tabledata", "list", "GET", f"{_TABLE}/data", (*_ROWS, "selectedFields:string"), "", "TableDataList"),
    ("jobs", "insert", "POST", f"{_PROJECT}/jobs", (), "Job", "Job"),
    ("jobs", "list", "GET", f"{_PROJECT}/jobs", (*_PAGE, "allUsers:boolean", "projection:string"), "", "JobList"),
    ("jobs", "get", "GET", f"{_PROJECT}/jobs/{{+jobId}}", ("location:string",), "", "Job"),
    ("jobs", "cancel", "POST", f"{_PROJECT}/jobs/{{+jobId}}/cancel", ("location:string",), "", "JobCancelResponse"),
    ("jobs", "query", "POST", f"{_PROJECT}/queries", (), "QueryRequest", "QueryResponse"),
    (
        "jobs",
        "getQueryResults",
        "GET",
        f"{_PROJECT}/queries/{{+jobId}}",
        (*_ROWS, "location:string", "timeoutMs:integer"),
        "",
        "GetQueryResultsResponse",
    ),
)
_UPLOAD: Final = {
    "supportsMediaUpload": True,
    "mediaUpload": {
        "accept": ["*/*"],
        "protocols": {"simple": {"multipart": True, "path": f"/upload/bigquery/v2/{_PROJECT}/jobs"}},
    },
}
"""`bq` takes it for granted that a job can bring a file; what is sent there is refused."""


def discovery_document(root: str) -> Mapping[str, Any]:
    """Return the document; ``root`` is the URL that the client has come to, with a slash at its end."""
    resources: dict[str, dict[str, Any]] = {}
    schemas = {"JsonValue": {"id": "JsonValue", "type": "any"}}
    for resource, name, http_method, path, parameters, request, response in _METHODS:
        method: dict[str, Any] = {"id": f"bigquery.{resource}.{name}", "httpMethod": http_method, "path": path}
        methods = resources.setdefault(resource, {"methods": {}})["methods"]
        if method["id"] == "bigquery.jobs.insert":
            method |= _UPLOAD
        methods[name] = {**method, **_parameters(path, parameters), **_bodies(request, response)}
        schemas |= {schema: {"id": schema, "type": "object"} for schema in (request, response) if schema}
    return {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": "bigquery:v2",
        "name": "bigquery",
        "version": "v2",
        "title": "BigQuery API (stand-in)",
        "protocol": "rest",
        "rootUrl": root,
        "servicePath": "bigquery/v2/",
        "baseUrl": f"{root}bigquery/v2/",
        "basePath": "/bigquery/v2/",
        "batchPath": "batch/bigquery/v2",
        "parameters": {
            name: {"type": "string", "location": "query"} for name in ("alt", "fields", "key", "prettyPrint")
        },
        "schemas": schemas,
        "resources": resources,
    }


def _parameters(path: str, query: Sequence[str]) -> Mapping[str, Any]:
    order = re.findall(r"\{\+(\w+)\}", path)
    parameters: dict[str, Any] = {name: {"type": "string", "location": "path", "required": True} for name in order}
    for declared in query:
        name, _, value_type = declared.partition(":")
        parameters[name] = {"type": value_type, "location": "query"}
    return {"parameterOrder": order, "parameters": parameters}


def _bodies(request: str, response: str) -> Mapping[str, Any]:
    bodies = {"request": request, "response": response}
    return {kind: {"$ref": schema} for kind, schema in bodies.items() if schema}
