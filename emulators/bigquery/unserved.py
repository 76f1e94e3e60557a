"""Methods of BigQuery's API, version 2, that the stand-in does not serve: each answers 501 and names itself.

Source: BigQuery REST reference, and the paths of BigQuery's discovery document.
"""

from collections.abc import Sequence
from typing import Final

from emulators.bigquery.errors import ApiError

_PROJECT: Final = "/projects/{project}"
_DATASET: Final = f"{_PROJECT}/datasets/{{dataset}}"
_TABLE: Final = f"{_DATASET}/tables/{{table}}"
_POLICIES: Final = f"{_TABLE}/rowAccessPolicies"

_METHODS: Final = (
    ("POST", f"{_TABLE}/insertAll", "tabledata.insertAll"),
    ("DELETE", f"{_PROJECT}/jobs/{{job}}/delete", "jobs.delete"),
    ("POST", f"{_DATASET}:undelete", "datasets.undelete"),
    ("POST", f"{_TABLE}:getIamPolicy", "tables.getIamPolicy"),
    ("POST", f"{_TABLE}:setIamPolicy", "tables.setIamPolicy"),
    ("GET", f"{_PROJECT}/serviceAccount", "projects.getServiceAccount"),
    ("GET", f"{_DATASET}/models", "models.list"),
    ("GET", f"{_DATASET}/models/{{model}}", "models.get"),
    ("PATCH", f"{_DATASET}/models/{{model}}", "models.patch"),
    ("DELETE", f"{_DATASET}/models/{{model}}", "models.delete"),
    ("GET", f"{_DATASET}/routines", "routines.list"),
    ("POST", f"{_DATASET}/routines", "routines.insert"),
    ("POST", f"{_DATASET}/routines/{{routine}}:getIamPolicy", "routines.getIamPolicy"),
    ("POST", f"{_DATASET}/routines/{{routine}}:setIamPolicy", "routines.setIamPolicy"),
    ("POST", f"{_DATASET}/routines/{{routine}}:testIamPermissions", "routines.testIamPermissions"),
    ("GET", f"{_DATASET}/routines/{{routine}}", "routines.get"),
    ("PUT", f"{_DATASET}/routines/{{routine}}", "routines.update"),
    ("DELETE", f"{_DATASET}/routines/{{routine}}", "routines.delete"),
    ("GET", _POLICIES, "rowAccessPolicies.list"),
    ("POST", _POLICIES, "rowAccessPolicies.insert"),
    ("POST", f"{_POLICIES}:batchDelete", "rowAccessPolicies.batchDelete"),
    ("POST", f"{_POLICIES}/{{policy}}:getIamPolicy", "rowAccessPolicies.getIamPolicy"),
    ("POST", f"{_POLICIES}/{{policy}}:testIamPermissions", "rowAccessPolicies.testIamPermissions"),
    ("GET", f"{_POLICIES}/{{policy}}", "rowAccessPolicies.get"),
    ("PUT", f"{_POLICIES}/{{policy}}", "rowAccessPolicies.update"),
    ("DELETE", f"{_POLICIES}/{{policy}}", "rowAccessPolicies.delete"),
)
_UPLOADS: Final = (("POST", "/upload"), ("PUT", "/upload"), ("POST", "/resumable/upload"), ("PUT", "/resumable/upload"))

UNSERVED: Final[Sequence[tuple[str, str, str]]] = (
    *((http, f"/bigquery/v2{path}", name) for http, path, name in _METHODS),
    *((http, f"{path}/bigquery/v2{_PROJECT}/jobs", "jobs.insert with an uploaded file") for http, path in _UPLOADS),
    ("POST", "/batch/bigquery/v2", "batches of calls"),
    ("POST", "/batch", "batches of calls"),
)
"""HTTP method, path, and what it is called."""


def not_served(name: str) -> ApiError:
    """Make the refusal of a call that BigQuery answers and the stand-in does not."""
    return ApiError("notImplemented", f"This stand-in does not serve {name}")
