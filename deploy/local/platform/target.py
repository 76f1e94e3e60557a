"""The target side of the local platform: a dataset of the BigQuery stand-in, through the official client."""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

SEQUENCE: Final = "_millrace_sequence"
COMMIT_TIMESTAMP: Final = "_millrace_commit_timestamp"
_TIMEOUT: Final = 60.0


class BigQueryDataset:
    """One dataset. May be used from several threads."""

    def __init__(self, address: str, project: str, dataset: str) -> None:
        self.dataset = dataset
        self._prefix = f"{project}.{dataset}."
        self._address = address
        self._client = bigquery.Client(
            project=project,
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options=ClientOptions(api_endpoint=f"http://{address}"),
            default_query_job_config=bigquery.QueryJobConfig(default_dataset=f"{project}.{dataset}"),
        )

    def create(self) -> None:
        """Create the dataset; one that is there is left as it is."""
        self._client.create_dataset(self.dataset, exists_ok=True, timeout=_TIMEOUT)

    def delete(self) -> None:
        """Delete the dataset and all that is in it."""
        self._client.delete_dataset(self.dataset, delete_contents=True, timeout=_TIMEOUT)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a query; table names without a dataset are this one's."""
        config = bigquery.QueryJobConfig(query_parameters=list(parameters))
        rows = self._client.query(sql, job_config=config, timeout=_TIMEOUT).result(timeout=_TIMEOUT)
        names = [field.name for field in rows.schema]
        return [{name: row[name] for name in names} for row in rows]  # `items` copies every value deeply

    def tables(self) -> list[str]:
        """Return the names of the tables and views."""
        return sorted(one.table_id for one in self._client.list_tables(self.dataset, timeout=_TIMEOUT))

    def rows(self, table: str) -> list[dict[str, Any]] | None:
        """Return all rows of a table, or None where there is no such table."""
        try:
            return self.query(f"SELECT * FROM `{table}`")
        except NotFound:
            return None

    def columns(self, table: str) -> list[str]:
        """Return a table's columns in their order; none where there is no such table."""
        try:
            return [field.name for field in self._client.get_table(f"{self._prefix}{table}", timeout=_TIMEOUT).schema]
        except NotFound:
            return []

    def labels(self, table: str) -> Mapping[str, str]:
        """Return a table's labels."""
        return dict(self._client.get_table(f"{self._prefix}{table}", timeout=_TIMEOUT).labels)

    def applied(self, table: str, key: Sequence[str], values: Sequence[tuple[Any, ...]]) -> Mapping[Any, datetime]:
        """Return, by key, the commit timestamps of the changes that a query sees in these rows just now."""
        parameters, conditions = [], []
        for number, one in enumerate(values):
            names = [f"k{number}_{part}" for part in range(len(key))]
            conditions.append(" AND ".join(f"`{column}` = @{name}" for column, name in zip(key, names, strict=True)))
            parameters += [
                bigquery.ScalarQueryParameter(name, _TYPES[type(value)], value)
                for name, value in zip(names, one, strict=True)
            ]
        columns = ", ".join(f"`{column}`" for column in key)
        where = " OR ".join(f"({condition})" for condition in conditions)
        try:
            rows = self.query(f"SELECT {columns}, {COMMIT_TIMESTAMP} FROM `{table}` WHERE {where}", parameters)
        except NotFound:
            return {}
        return {tuple(row[column] for column in key): row[COMMIT_TIMESTAMP] for row in rows}

    def rows_written(self) -> dict[str, int]:
        """Return how many rows each table was sent and took, as the stand-in (not BigQuery) counts them."""
        with urllib.request.urlopen(f"http://{self._address}/control/stats", timeout=_TIMEOUT) as answer:
            tables: Mapping[str, Mapping[str, int]] = json.load(answer)["tables"]
        return {
            name.removeprefix(self._prefix): counts.get("rows_accepted", 0)
            for name, counts in tables.items()
            if name.startswith(self._prefix)
        }

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()  # type: ignore[no-untyped-call]


_TYPES: Final = {str: "STRING", int: "INT64", date: "DATE", datetime: "TIMESTAMP"}
