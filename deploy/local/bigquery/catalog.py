"""Datasets and tables as the API describes them, and BigQuery's limits and rules for their names.

Sources: BigQuery, "Stream table updates with change data capture" (16 key columns, 2000 columns), "Specifying a
schema" (column names), "Naming datasets and tables", "Clustered tables" (4 columns).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from deploy.local.bigquery.column_types import ColumnType
from deploy.local.bigquery.errors import invalid

KEY_COLUMNS: Final = 16
CLUSTERING_COLUMNS: Final = 4
COLUMNS: Final = 2000
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)
_TABLE_NAME: Final = re.compile(r"[\w\- ]{1,1024}")
_DATASET_NAME: Final = re.compile(r"\w{1,1024}", re.ASCII)
_RESERVED: Final = (
    "_TABLE_",
    "_FILE_",
    "_PARTITION",
    "_ROW_TIMESTAMP",
    "__ROOT__",
    "_COLIDENTIFIER",
    "_CHANGE_SEQUENCE_NUMBER",
    "_CHANGE_TYPE",
    "_CHANGE_TIMESTAMP",
)

Mode = Literal["NULLABLE", "REQUIRED"]


@dataclass(frozen=True, order=True)
class DatasetName:
    """Project and dataset."""

    project: str
    dataset: str

    def __str__(self) -> str:
        return f"{self.project}:{self.dataset}"


@dataclass(frozen=True, order=True)
class TableName:
    """Project, dataset and table."""

    project: str
    dataset: str
    table: str

    def __str__(self) -> str:
        return f"{self.project}:{self.dataset}.{self.table}"

    @property
    def within(self) -> DatasetName:
        """Return the dataset that the table is in."""
        return DatasetName(self.project, self.dataset)


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: ColumnType
    mode: Mode = "NULLABLE"
    description: str = ""


@dataclass(frozen=True)
class Dataset:
    """A dataset, with what its creator said of it that means nothing here (location, labels, description)."""

    name: DatasetName
    properties: Mapping[str, object]
    created: int


@dataclass(frozen=True)
class Table:
    """A table's definition. ``number`` is unique for ever, so a table made again under its name is another one.

    ``properties`` holds what the API keeps and nothing here depends on: labels, description, maxStaleness.
    """

    name: TableName
    columns: Sequence[Column]
    primary_key: Sequence[str] = ()
    clustering: Sequence[str] = ()
    properties: Mapping[str, object] = field(default_factory=dict)
    number: int = 0
    version: int = 1
    created: int = 0
    modified: int = 0

    def __post_init__(self) -> None:
        check_name("table", _TABLE_NAME, self.name.table)
        _check_columns(self.columns)
        types = {column.name: column.type for column in self.columns}
        _check_among("primary key", self.primary_key, types, KEY_COLUMNS)
        _check_among("clustering", self.clustering, types, CLUSTERING_COLUMNS)

    @property
    def etag(self) -> str:
        """Return the tag of this version of the definition; it changes whenever the definition does."""
        return hashlib.sha256(f"{self.name}/{self.number}/{self.version}".encode()).hexdigest()[:24]

    def changed(self, now: int, **changes: object) -> "Table":
        """Return the next version of the definition."""
        changed: Table = replace(self, version=self.version + 1, modified=now, **changes)  # type: ignore[arg-type]
        return changed


def check_dataset_name(name: DatasetName) -> None:
    """Refuse a dataset name that BigQuery does not take."""
    check_name("dataset", _DATASET_NAME, name.dataset)


def check_name(what: str, pattern: re.Pattern[str], name: str) -> None:
    """Refuse a name that does not match."""
    if pattern.fullmatch(name) is None:
        raise invalid(f'Invalid {what} ID "{name}".')


def check_added_columns(table: Table, columns: Sequence[Column]) -> None:
    """Refuse a new list of columns that is not the old one with nullable columns added, or relaxed to nullable."""
    before = {column.name.lower(): column for column in table.columns}
    after = {column.name.lower(): column for column in columns}
    for name, column in before.items():
        if name not in after:
            raise invalid(
                f"Provided Schema does not match Table {table.name}. Field {column.name} is missing in new schema"
            )
        if after[name].type != column.type:
            raise invalid(
                f"Provided Schema does not match Table {table.name}. Field {column.name} has changed type from "
                f"{column.type.rest} to {after[name].type.rest}"
            )
        if column.mode == "NULLABLE" and after[name].mode == "REQUIRED":
            raise invalid(
                f"Provided Schema does not match Table {table.name}. Field {column.name} has changed mode "
                "from NULLABLE to REQUIRED"
            )
    for name, column in after.items():
        if name not in before and column.mode == "REQUIRED":
            raise invalid(
                f"Provided Schema does not match Table {table.name}. Cannot add required fields to an existing "
                f"schema. (field: {column.name})"
            )


def _check_columns(columns: Sequence[Column]) -> None:
    if len(columns) > COLUMNS:
        raise invalid(f"Too many columns: a table has at most {COLUMNS} top-level columns, not {len(columns)}.")
    seen: set[str] = set()
    for column in columns:
        if _COLUMN_NAME.fullmatch(column.name) is None:
            raise invalid(
                f'Invalid field name "{column.name}". Fields must contain only letters, numbers, and underscores, '
                "start with a letter or underscore, and be at most 300 characters long."
            )
        if column.name.upper().startswith(_RESERVED):
            raise invalid(f'Invalid field name "{column.name}". Its prefix is reserved.')
        if column.name.lower() in seen:
            raise invalid(f"Duplicate column names in the result are not supported. Found duplicate(s): {column.name}")
        seen.add(column.name.lower())


def _check_among(what: str, names: Sequence[str], types: Mapping[str, ColumnType], limit: int) -> None:
    if len(names) > limit:
        raise invalid(f"Too many columns in {what}: at most {limit}, not {len(names)}.")
    if len(set(names)) != len(names):
        raise invalid(f"A column is named twice in {what}.")
    for name in names:
        if name not in types:
            raise invalid(f"The field specified in {what} is not in the schema: {name}.")
        allowed = types[name].in_primary_key if what == "primary key" else types[name].in_clustering
        if not allowed:
            raise invalid(f"A column of type {types[name].googlesql} is not allowed in {what}: {name}.")
