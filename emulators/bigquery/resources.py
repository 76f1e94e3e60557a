"""REST resources: datasets and tables as JSON, and JSON as definitions.

Source: BigQuery REST reference, resources `Dataset` and `Table`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from emulators.bigquery.catalog import Dataset, DatasetName, Partitioning, Table, TableName
from emulators.bigquery.column_types import Column, ColumnType, column_type, range_type, struct_type
from emulators.bigquery.errors import ApiError, invalid

_KEPT: Final = ("description", "friendlyName", "labels", "maxStaleness", "expirationTime")
_LABELS: Final = 64
_LABEL_LETTERS: Final = 63
_DATASET_KEPT: Final = (
    "description",
    "friendlyName",
    "labels",
    "location",
    "defaultTableExpirationMs",
    "defaultPartitionExpirationMs",
)


def dataset_resource(dataset: Dataset) -> Mapping[str, Any]:
    """Return a dataset as JSON."""
    return {
        "location": "US",
        **dataset.properties,
        "kind": "bigquery#dataset",
        "id": str(dataset.name),
        "datasetReference": {"projectId": dataset.name.project, "datasetId": dataset.name.dataset},
        "etag": dataset.etag,
        "creationTime": str(dataset.created // 1_000),
        "lastModifiedTime": str(dataset.modified // 1_000),
    }


def read_dataset(project: str, resource: Mapping[str, Any]) -> tuple[DatasetName, Mapping[str, Any]]:
    """Return the name and properties of a dataset that is to be made."""
    reference = resource.get("datasetReference") or {}
    if not reference.get("datasetId"):
        raise ApiError("required", "Required parameter is missing: datasetReference.datasetId")
    name = DatasetName(reference.get("projectId") or project, reference["datasetId"])
    return name, {key: resource[key] for key in _DATASET_KEPT if key in resource}


def read_dataset_changes(resource: Mapping[str, Any], dataset: Dataset, *, patched: bool) -> Mapping[str, object]:
    """Return a dataset's properties after a change by a resource.

    ``patched``: what it does not mention stays, and a null takes off; otherwise what it does not mention is gone.
    Where a dataset lies cannot be changed.
    """
    location = dataset.properties.get("location", "US")
    if str(resource.get("location", location)).upper() != str(location).upper():
        raise invalid(f"Dataset {dataset.name} is in location {location}, which cannot be changed")
    given = {key: resource[key] for key in _DATASET_KEPT if key in resource and key != "location"}
    kept = dict(dataset.properties) if patched else {}
    if patched and resource.get("labels"):
        given["labels"] = {**(kept.get("labels") or {}), **resource["labels"]}  # type: ignore[dict-item]
    if given.get("labels"):
        given["labels"] = {key: value for key, value in given["labels"].items() if value is not None}
    after = {**kept, "location": location, **given}
    return {key: value for key, value in after.items() if value is not None}


def table_resource(table: Table) -> Mapping[str, Any]:
    """Return a table as JSON."""
    name = table.name
    resource = {
        **table.properties,
        "kind": "bigquery#table",
        "type": "VIEW" if table.query else "TABLE",
        "id": str(name),
        "etag": table.etag,
        "location": "US",
        "tableReference": table_reference(name),
        "creationTime": str(table.created // 1_000),
        "lastModifiedTime": str(table.modified // 1_000),
        "schema": {"fields": [_field_resource(column) for column in table.columns]},
    }
    if table.primary_key:
        resource["tableConstraints"] = {"primaryKey": {"columns": list(table.primary_key)}}
    if table.clustering:
        resource["clustering"] = {"fields": list(table.clustering)}
    if table.partitioning is not None:
        kept = table.partitioning.expiration
        resource["timePartitioning"] = {
            "type": table.partitioning.unit,
            "field": table.partitioning.column,
            **({} if kept is None else {"expirationMs": str(kept)}),
        }
    if table.query:
        resource["view"] = {"query": table.query, "useLegacySql": False}
    return resource


def table_reference(name: TableName) -> Mapping[str, str]:
    """Return a table's name as JSON."""
    return {"projectId": name.project, "datasetId": name.dataset, "tableId": name.table}


def read_table(within: DatasetName, resource: Mapping[str, Any]) -> Table:
    """Return the definition of a table that is to be made."""
    reference = resource.get("tableReference") or {}
    if not reference.get("tableId"):
        raise ApiError("required", "Required parameter is missing: tableReference.tableId")
    for unserved in ("materializedView", "externalDataConfiguration", "rangePartitioning"):
        if resource.get(unserved):
            raise ApiError("notImplemented", f"This stand-in does not serve tables with {unserved}")
    parts: dict[str, Any] = {"columns": (), **read_changes(resource)}
    return Table(TableName(within.project, within.dataset, reference["tableId"]), **parts)


def read_changes(
    resource: Mapping[str, Any], table: Table | None = None, *, patched: bool = False
) -> Mapping[str, Any]:
    """Return a resource's part of a definition, as arguments for it; what it does not mention is left out.

    ``patched``: of the labels too, so that one is taken off by a null; otherwise they are replaced.
    """
    changes: dict[str, Any] = {}
    if resource.get("schema") is not None:
        changes["columns"] = read_columns(resource["schema"].get("fields") or ())
    if "tableConstraints" in resource:
        key = (resource["tableConstraints"] or {}).get("primaryKey") or {}
        changes["primary_key"] = tuple(key.get("columns") or ())
    if "clustering" in resource:
        changes["clustering"] = tuple((resource["clustering"] or {}).get("fields") or ())
    if resource.get("timePartitioning"):
        changes["partitioning"] = _read_partitioning(resource["timePartitioning"])
    if resource.get("view"):
        changes["query"] = _read_view(resource["view"])
    properties = dict(table.properties) if table is not None else {}
    for key in _KEPT:
        if key in resource:
            properties[key] = resource[key]
    if resource.get("labels") is not None:
        properties["labels"] = _read_labels(resource["labels"], table if patched else None)
    changes["properties"] = {key: value for key, value in properties.items() if value is not None}
    return changes


def _read_labels(labels: Mapping[str, Any], patched: Table | None) -> Mapping[str, str]:
    """Return labels (BigQuery, "Introduction to labels", requirements); ApiError where one is none."""
    before: Any = (patched.properties.get("labels") if patched is not None else None) or {}
    after = {key: value for key, value in {**before, **labels}.items() if value is not None}
    for key, value in after.items():
        if not (key[:1].isalpha() and _is_label(key) and _is_label(value)):
            raise invalid(f"Invalid label: {key}={value}. Lowercase letters, digits, '-' and '_', 63 at most.")
    if len(after) > _LABELS:
        raise invalid(f"Too many labels: at most {_LABELS}, not {len(after)}.")
    return after


def _is_label(text: str) -> bool:
    return len(text) <= _LABEL_LETTERS and all(c in "-_" or (c.isalnum() and c == c.lower()) for c in text)


def _read_partitioning(resource: Mapping[str, Any]) -> Partitioning:
    if not resource.get("field"):
        raise ApiError("notImplemented", "This stand-in does not serve partitioning by ingestion time")
    if resource.get("requirePartitionFilter"):
        raise ApiError("notImplemented", "This stand-in does not serve partitioning with requirePartitionFilter")
    expiration = resource.get("expirationMs")
    return Partitioning(
        resource["field"], resource.get("type") or "DAY", None if expiration is None else int(expiration)
    )


def _read_view(resource: Mapping[str, Any]) -> str:
    if resource.get("useLegacySql", True):
        raise ApiError("notImplemented", "This stand-in does not serve legacy SQL")
    return str(resource.get("query") or "")


def read_columns(fields: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
    """Return columns from the fields of a schema."""
    columns = []
    for field in fields:
        mode: Any = (field.get("mode") or "NULLABLE").upper()
        if mode not in ("NULLABLE", "REQUIRED", "REPEATED"):
            raise invalid(f"Invalid value for mode: {mode} ({field['name']})")
        for unserved in ("maxLength", "precision", "scale", "defaultValueExpression", "policyTags"):
            if field.get(unserved):
                raise ApiError("notImplemented", f"This stand-in does not serve columns with {unserved}")
        columns.append(Column(field["name"], _read_type(field), mode, field.get("description") or ""))
    return tuple(columns)


def _read_type(field: Mapping[str, Any]) -> ColumnType:
    match str(field["type"]).upper():
        case "RECORD" | "STRUCT":
            return struct_type(read_columns(field.get("fields") or ()))
        case "RANGE":
            return range_type(column_type((field.get("rangeElementType") or {}).get("type") or ""))
        case name:
            return column_type(name)


def _field_resource(column: Column) -> Mapping[str, Any]:
    resource: dict[str, Any] = {"name": column.name, "type": column.type.rest, "mode": column.mode}
    if column.type.fields:
        resource["fields"] = [_field_resource(field) for field in column.type.fields]
    if column.type.element is not None:
        resource["rangeElementType"] = {"type": column.type.element.rest}
    return resource | {"description": column.description} if column.description else resource
