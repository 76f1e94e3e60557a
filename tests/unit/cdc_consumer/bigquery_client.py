"""A client of BigQuery in memory: the tables of one dataset, whose calls fail as a test says."""

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from google.api_core import exceptions
from google.cloud import bigquery

_IN_RESOURCE = {"expires": "expirationTime", "time_partitioning": "timePartitioning"}
"""What the fields of an update are called in a table's resource, where it is not the same."""
NOT_FOUND: Any = exceptions.NotFound  # untyped


def resource(name: str, fields: Sequence[Mapping[str, str]] = (), **more: Any) -> dict[str, Any]:
    """Return what the REST API says of a table of dataset ``d``."""
    return {
        "tableReference": {"projectId": "p", "datasetId": "d", "tableId": name},
        "schema": {"fields": list(fields)},
        **more,
    }


class FakeBigQuery:
    """What the REST reference says of tables, and of the defaults that a dataset gives them."""

    def __init__(self, *tables: Mapping[str, Any], **errors: Exception) -> None:
        self.tables: dict[str, Any] = {one["tableReference"]["tableId"]: dict(one) for one in tables}
        self.errors = errors
        """What calls are answered with, by the name of the call."""
        self.defaults: Mapping[str, str] = {}
        """What the dataset gives its tables."""

    def get_dataset(self, path: str, **_more: Any) -> bigquery.Dataset:
        self.fail_if_planned("get_dataset")
        project, dataset = path.split(".")
        return bigquery.Dataset.from_api_repr(
            {"datasetReference": {"projectId": project, "datasetId": dataset}, **self.defaults}
        )

    def get_table(self, path: object, **_more: Any) -> bigquery.Table:
        self.fail_if_planned("get_table")
        name = str(path).rpartition(".")[2]
        if name not in self.tables:
            raise NOT_FOUND("no table")
        return self.called(name)

    def create_table(self, table: bigquery.Table, **_more: Any) -> bigquery.Table:
        self.fail_if_planned("create_table")
        made = deepcopy(table.to_api_repr())
        made["type"] = "VIEW" if "view" in made else "TABLE"
        collation = made.setdefault("defaultCollation", self.defaults.get("defaultCollation", ""))
        for field in made.get("schema", {}).get("fields", ()):
            if field["type"] == "STRING" and collation:
                field.setdefault("collation", collation)
        by_partition = self.defaults.get("defaultPartitionExpirationMs")
        if "timePartitioning" in made and by_partition:
            made["timePartitioning"].setdefault("expirationMs", by_partition)
        elif after := self.defaults.get("defaultTableExpirationMs"):
            made.setdefault("expirationTime", str(int(time.time() * 1_000) + int(after)))
        made["creationTime"] = str(int(time.time() * 1_000))
        self.tables[table.table_id] = made
        return self.called(table.table_id)

    def update_table(self, table: bigquery.Table, fields: Sequence[str], **_more: Any) -> bigquery.Table:
        self.fail_if_planned("update_table")
        patch = deepcopy(table.to_api_repr())
        for name in (_IN_RESOURCE.get(field, field) for field in fields):
            self.tables[table.table_id][name] = patch[name]
        return self.called(table.table_id)

    def called(self, name: str) -> bigquery.Table:
        """Return a table as it is."""
        return bigquery.Table.from_api_repr(deepcopy(self.tables[name]))

    def fail_if_planned(self, call: str) -> None:
        if call in self.errors:
            raise self.errors[call]
