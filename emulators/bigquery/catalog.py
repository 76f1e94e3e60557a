"""Datasets and tables as the API describes them, and BigQuery's limits and rules for their names.

Sources: BigQuery, "Stream table updates with change data capture" (16 key columns, 2000 columns), "Specifying a
schema" (column names), "Specify nested and repeated columns" (15 levels), "Naming datasets and tables", "Clustered
tables" (4 columns), "Partitioned tables".
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from emulators.bigquery.column_types import Column
from emulators.bigquery.errors import ApiError, invalid
from emulators.bigquery.intervals import interval_microseconds

KEY_COLUMNS: Final = 16
CLUSTERING_COLUMNS: Final = 4
COLUMNS: Final = 2000
TIME_TRAVEL: Final = 7 * 86_400 * 1_000_000
"""For how many microseconds the name of a dropped column is reserved: BigQuery, "Data retention with time travel"."""
NESTED: Final = 15
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)
_FLEXIBLE_NAME: Final = re.compile(r"""[^!"$()*,./;?@\[\\\]^`{}~\x00-\x08\x0a-\x1f]{1,300}""")
"""BigQuery, "Specifying a schema", section "Flexible column names"."""
PSEUDO_COLUMNS: Final = frozenset({"_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER", "_CHANGE_TIMESTAMP"})
"""What streamed rows may carry beside a table's columns: no statement can name them."""
_TABLE_NAME: Final = re.compile(r"[\w\- ]+")
_TABLE_NAME_BYTES: Final = 1024
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
    def dotted(self) -> str:
        """Return the name as SQL has it."""
        return f"{self.project}.{self.dataset}.{self.table}"

    @property
    def within(self) -> DatasetName:
        """Return the dataset that the table is in."""
        return DatasetName(self.project, self.dataset)


@dataclass(frozen=True)
class Partitioning:
    """By which DATE, DATETIME or TIMESTAMP column a table is partitioned, and how finely."""

    column: str
    unit: str = "DAY"
    expiration: int | None = None
    """After how many milliseconds a partition goes; kept and told, but partitions do not expire here."""

    def __post_init__(self) -> None:
        if self.unit not in ("HOUR", "DAY", "MONTH", "YEAR"):
            raise invalid(f"Invalid value for partitioning type: {self.unit}")


@dataclass(frozen=True)
class Dataset:
    """A dataset, with the options that mean nothing here (location, labels, description)."""

    name: DatasetName
    properties: Mapping[str, object]
    created: int
    modified: int = 0
    version: int = 1

    @property
    def etag(self) -> str:
        """Return the tag of this version of the dataset's properties."""
        return hashlib.sha256(f"{self.name}/{self.created}/{self.version}".encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Table:
    """A table's or a view's definition. ``number`` is unique for ever: one made again under its name is another one.

    ``query`` is a view's; a table has none. ``properties`` holds what the API keeps: labels, description, maxStaleness.
    """

    name: TableName
    columns: Sequence[Column]
    primary_key: Sequence[str] = ()
    clustering: Sequence[str] = ()
    partitioning: Partitioning | None = None
    query: str = ""
    properties: Mapping[str, object] = field(default_factory=dict)
    number: int = 0
    version: int = 1
    created: int = 0
    modified: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """When columns that are no longer there were dropped, by their names in lower case."""

    def __post_init__(self) -> None:
        check_name("table", _TABLE_NAME, self.name.table)
        if len(self.name.table.encode()) > _TABLE_NAME_BYTES:
            raise invalid(f"Invalid table ID: {len(self.name.table.encode())} bytes; {_TABLE_NAME_BYTES} at most")
        _check_columns(self.columns)
        columns = {column.name: column for column in self.columns}
        _check_among("primary key", self.primary_key, columns, KEY_COLUMNS)
        _check_among("clustering", self.clustering, columns, CLUSTERING_COLUMNS)
        _check_partitioning(self.partitioning, columns)
        if self.max_staleness < 0:
            raise invalid(f"Invalid value for max_staleness: {self.properties['maxStaleness']}")

    @property
    def etag(self) -> str:
        """Return the tag of this version of the definition; it changes whenever the definition does."""
        return hashlib.sha256(f"{self.name}/{self.number}/{self.version}".encode()).hexdigest()[:24]

    @property
    def max_staleness(self) -> int:
        """Return how old, in microseconds, what a query reads may be; 0 where nothing is set."""
        return interval_microseconds(str(self.properties.get("maxStaleness") or "0-0 0 0:0:0"))

    def without(self, dropped: Collection[str], now: int) -> Mapping[str, int]:
        """Return whose names are reserved once these columns, in lower case, are dropped, and since when."""
        reserved = {name: at for name, at in self.dropped.items() if now - at < TIME_TRAVEL}
        return reserved | {column.name.lower(): now for column in self.columns if column.name.lower() in dropped}

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


def check_added_columns(
    table: Table, columns: Sequence[Column], dropped: Collection[str] = (), reserved: Collection[str] = ()
) -> None:
    """Refuse a new list of columns that is not the old one with nullable columns added, or relaxed to nullable.

    The same holds of the fields of a STRUCT. ``dropped``: which columns, in lower case, a DROP COLUMN has named;
    ``reserved``: which of these and of those dropped before may not be added again yet.
    """
    for column in columns:
        if column.name.lower() in reserved:
            raise invalid(
                f"Column `{column.name}` was recently deleted in the table `{table.name.table}`. Deleted column name "
                "is reserved for up to the time travel duration, use a different column name instead."
            )
    kept = [column for column in table.columns if column.name.lower() not in dropped]
    _check_added(f"Provided Schema does not match Table {table.name}.", kept, columns, "")


def _check_added(refusal: str, columns: Sequence[Column], provided: Sequence[Column], path: str) -> None:
    before = {column.name.lower(): column for column in columns}
    after = {column.name.lower(): column for column in provided}
    for name, column in before.items():
        whole = path + column.name
        if name not in after:
            raise invalid(f"{refusal} Field {whole} is missing in new schema")
        changed = after[name]
        if column.type.fields and changed.type.fields:
            _check_added(refusal, column.type.fields, changed.type.fields, f"{whole}.")
        elif changed.type != column.type:
            raise invalid(f"{refusal} Field {whole} has changed type from {column.type.rest} to {changed.type.rest}")
        if changed.mode not in (column.mode, "NULLABLE") or (column.repeated and not changed.repeated):
            raise invalid(f"{refusal} Field {whole} has changed mode from {column.mode} to {changed.mode}")
    for name, column in after.items():
        if name not in before and column.mode == "REQUIRED":
            raise invalid(f"{refusal} Cannot add required fields to an existing schema. (field: {path}{column.name})")


def _check_columns(columns: Sequence[Column]) -> None:
    if len(columns) > COLUMNS:
        raise invalid(f"Too many columns: a table has at most {COLUMNS} top-level columns, not {len(columns)}.")
    _check_names(columns, 1)


def _check_names(columns: Sequence[Column], depth: int) -> None:
    if depth > NESTED + 1:
        raise invalid(f"The schema is nested too deep: at most {NESTED} levels of RECORD.")
    seen: set[str] = set()
    for column in columns:
        if _COLUMN_NAME.fullmatch(column.name) is None:
            if _FLEXIBLE_NAME.fullmatch(column.name):
                raise ApiError(
                    "notImplemented",
                    f'This stand-in does not serve flexible column names: "{column.name}" has more than letters, '
                    "numbers and underscores, or begins with a number",
                )
            raise invalid(
                f'Invalid field name "{column.name}". Fields must contain only letters, numbers, and underscores, '
                "start with a letter or underscore, and be at most 300 characters long."
            )
        if column.name.upper().startswith(_RESERVED):
            raise invalid(f'Invalid field name "{column.name}". Its prefix is reserved.')
        if column.name.lower() in seen:
            raise invalid(f"Duplicate column names in the result are not supported. Found duplicate(s): {column.name}")
        seen.add(column.name.lower())
        if column.type.fields:
            _check_names(column.type.fields, depth + 1)


def _check_among(what: str, names: Sequence[str], columns: Mapping[str, Column], limit: int) -> None:
    if len(names) > limit:
        raise invalid(f"Too many columns in {what}: at most {limit}, not {len(names)}.")
    if len(set(names)) != len(names):
        raise invalid(f"A column is named twice in {what}.")
    for name in names:
        if name not in columns:
            raise invalid(f"The field specified in {what} is not in the schema: {name}.")
        column = columns[name]
        allowed = column.type.in_primary_key if what == "primary key" else column.type.in_clustering
        if not allowed or column.repeated:
            raise invalid(f"A column of type {column.data_type} is not allowed in {what}: {name}.")


def _check_partitioning(partitioning: Partitioning | None, columns: Mapping[str, Column]) -> None:
    if partitioning is None:
        return
    column = columns.get(partitioning.column)
    if column is None:
        raise invalid(f"The field specified for partitioning cannot be found in the schema: {partitioning.column}.")
    if column.type.googlesql not in ("DATE", "DATETIME", "TIMESTAMP") or column.repeated:
        raise invalid(
            f"The field specified for partitioning must be a DATE, DATETIME or TIMESTAMP: {partitioning.column}."
        )
    if column.type.googlesql == "DATE" and partitioning.unit == "HOUR":
        raise invalid(f"A DATE cannot be partitioned by HOUR: {partitioning.column}.")
