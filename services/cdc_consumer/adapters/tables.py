"""The mirrored tables of one dataset: made when first seen, widened as columns appear, checked before they are used.

Source: BigQuery, "Stream table updates with change data capture": a primary key (not enforced) is required, tables
are best clustered by it; `max_staleness` stays unset, so that every query sees what has been applied.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import structlog
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError
from google.cloud import bigquery
from google.cloud.bigquery.table import PrimaryKey, TableConstraints

from services.cdc_consumer.adapters.bigquery_errors import rest_errors
from services.cdc_consumer.core.tables import TableColumn, TableDefinition
from services.cdc_consumer.core.types import COLUMN_TYPES, ColumnType
from services.cdc_consumer.ports import TableTroubleError
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason

_TIMEOUT: Final = 30.0  # seconds for a call
_NO_RETRY: Final[Any] = None  # retries are not nested: the micro-batch has the one policy
_ATTEMPTS: Final = 5  # others may alter the table at the same time, but not for ever
_LEGACY_NAMES: Final = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "DECIMAL": "NUMERIC"}
MIRROR_OF: Final = "millrace_mirror_of"
"""The label by which a table says whose mirror it is: a digest, for a label holds 63 characters of few kinds."""
NEEDS_RESYNC: Final = "millrace_needs_resync"
"""The label by which a table says that rows are missing in it, and why; whoever has healed it takes the label off."""
MADE_ANEW: Final = "table_made_anew"
# Of those that are one type in BigQuery (STRING, PG_NUMERIC) the first stands for all: it is the namesake.
_BY_BIGQUERY_NAME: Final[Mapping[str, ColumnType]] = {
    kind.bigquery: kind for kind in reversed(list(COLUMN_TYPES.values()))
}


def open_client(project: str, emulator_host: str | None) -> bigquery.Client:
    """Return the official client, of the real service or of what listens at ``host:port``."""
    if emulator_host:
        endpoint = emulator_host if "://" in emulator_host else f"http://{emulator_host}"
        anonymous: Any = AnonymousCredentials  # untyped
        options = ClientOptions(api_endpoint=endpoint)
        return bigquery.Client(project=project, credentials=anonymous(), client_options=options)
    try:
        return bigquery.Client(project=project)
    except DefaultCredentialsError as error:
        raise MisconfiguredError(
            f"no credentials for BigQuery ({error}); run: gcloud auth application-default login"
        ) from error


def check_dataset(client: bigquery.Client, project: str, dataset: str) -> None:
    """Raise MisconfiguredError, with the command that mends it, unless the dataset is there."""
    with rest_errors(f"dataset {project}.{dataset}"):
        try:
            client.get_dataset(f"{project}.{dataset}", retry=_NO_RETRY, timeout=_TIMEOUT)
        except exceptions.NotFound as error:
            raise MisconfiguredError(
                f"dataset {project}.{dataset} does not exist; make it: bq --project_id={project} mk --dataset {dataset}"
            ) from error
        except exceptions.Forbidden as error:
            raise MisconfiguredError(
                f"dataset {project}.{dataset} may not be read ({error.message}); give this identity the role "
                "roles/bigquery.dataEditor on it"
            ) from error


class BigQueryTables:
    """The Tables of one dataset. What is known of them is kept for the process."""

    def __init__(self, client: bigquery.Client, project: str, dataset: str) -> None:
        self._client = client
        self._project = project
        self._dataset = dataset
        self._known: dict[str, TableDefinition] = {}
        self._made_at: dict[str, datetime | None] = {}

    def ensure(self, definition: TableDefinition) -> TableDefinition:
        """Make the table, or widen it, and return it as it is; as `Tables.ensure`."""
        known = self._known.get(definition.name)
        if known is None or _missing(known, definition):
            known = self._known[definition.name] = self._brought_about(definition)
        _check(known, definition)
        return known

    def forget(self, table: str) -> None:
        """Look again at the next `ensure`."""
        self._known.pop(table, None)

    def _brought_about(self, definition: TableDefinition) -> TableDefinition:
        for _attempt in range(_ATTEMPTS):
            found = self._read(definition.name)
            with rest_errors(f"table {self._path(definition.name)}"):
                try:
                    if found is None:
                        found = self._create(definition)
                    _check(_definition(found, definition), definition)
                    if _missing(_definition(found, definition), definition):
                        found = self._widen(found, definition)
                    elif MIRROR_OF not in found.labels:
                        found = self._claim(found, definition)
                    found = self._compared_with_before(found)
                except (exceptions.Conflict, exceptions.PreconditionFailed):
                    continue  # another process was faster: look at what it made
            return _definition(found, definition)
        raise TableTroubleError(f"table {self._path(definition.name)}: altered by others all the time")

    def _read(self, name: str) -> bigquery.Table | None:
        with rest_errors(f"table {self._path(name)}"):
            try:
                return self._client.get_table(self._path(name), retry=_NO_RETRY, timeout=_TIMEOUT)
            except exceptions.NotFound:
                pass
        check_dataset(self._client, self._project, self._dataset)
        return None

    def _create(self, definition: TableDefinition) -> bigquery.Table:
        table = bigquery.Table(self._path(definition.name), schema=[_field(c) for c in definition.columns])
        table.table_constraints = TableConstraints(PrimaryKey(list(definition.primary_key)), None)
        table.clustering_fields = list(definition.clustering)
        table.description = f"Mirror of {definition.mirror_of}, kept by Millrace"
        table.labels = {MIRROR_OF: _digest(definition.mirror_of)}
        created = self._client.create_table(table, retry=_NO_RETRY, timeout=_TIMEOUT)
        structlog.get_logger().info("table_created", table=definition.name, columns=len(definition.columns))
        return created

    def _widen(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Add the columns that are missing: one change, with the etag of what was read."""
        new = _missing(_definition(found, definition), definition)
        found.schema = [*found.schema, *(_field(column) for column in new)]
        found.labels = {**found.labels, MIRROR_OF: _digest(definition.mirror_of)}
        widened = self._client.update_table(found, ["schema", "labels"], retry=_NO_RETRY, timeout=_TIMEOUT)
        structlog.get_logger().info("columns_added", table=definition.name, columns=[each.name for each in new])
        return widened

    def _claim(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Let a table that another has made say whose mirror it is now, where that is allowed."""
        found.labels = {**found.labels, MIRROR_OF: _digest(definition.mirror_of)}
        try:
            return self._client.update_table(found, ["labels"], retry=_NO_RETRY, timeout=_TIMEOUT)
        except exceptions.Forbidden as error:
            structlog.get_logger().warning("table_not_claimed", table=definition.name, error=str(error.message))
            return found

    def _compared_with_before(self, found: bigquery.Table) -> bigquery.Table:
        """Say loudly that a table is another one than it was: what had been written to the old one is not in it."""
        if self._made_at.setdefault(found.table_id, found.created) == found.created:
            return found
        structlog.get_logger().error(
            MADE_ANEW,
            table=found.table_id,
            fix="it was dropped and made again while mirrored, and holds only what has changed since: re-sync it",
        )
        made_at, found.labels = found.created, {**found.labels, NEEDS_RESYNC: MADE_ANEW}
        try:
            found = self._client.update_table(found, ["labels"], retry=_NO_RETRY, timeout=_TIMEOUT)
        except exceptions.Forbidden as error:
            structlog.get_logger().warning("table_not_labelled", table=found.table_id, error=str(error.message))
        self._made_at[found.table_id] = made_at
        return found

    def _path(self, name: str) -> bigquery.TableReference:
        return bigquery.DatasetReference(self._project, self._dataset).table(name)


def _field(column: TableColumn) -> bigquery.SchemaField:
    element = column.type.element
    if element is None:
        return bigquery.SchemaField(column.name, column.type.bigquery, mode="NULLABLE")
    return bigquery.SchemaField(column.name, element.bigquery, mode="REPEATED")


def _definition(table: bigquery.Table, wanted: TableDefinition) -> TableDefinition:
    """Return a table as it is. A column that Millrace would not make has a type of which nothing else is equal.

    A table that says nothing of whose mirror it is may become the mirror of what is wanted.
    """
    constraints = table.table_constraints
    key = constraints.primary_key.columns if constraints is not None and constraints.primary_key is not None else ()
    free = table.labels.get(MIRROR_OF) in (None, _digest(wanted.mirror_of))
    mirror_of = wanted.mirror_of if free else str(table.description or "another source table")
    return TableDefinition(table.table_id, tuple(_column(field) for field in table.schema), tuple(key), mirror_of)


def _digest(mirror_of: str) -> str:
    return hashlib.sha256(mirror_of.encode()).hexdigest()[:40]


def _column(field: bigquery.SchemaField) -> TableColumn:
    name = _LEGACY_NAMES.get(field.field_type, field.field_type)
    if field.mode == "REPEATED":
        name = f"ARRAY<{name}>"
    known = _BY_BIGQUERY_NAME.get(name)
    return TableColumn(field.name, known or ColumnType(name, name, COLUMN_TYPES["STRING"].wire, "TYPE_STRING"))


def _missing(seen: TableDefinition, wanted: TableDefinition) -> list[TableColumn]:
    names = {column.name.upper() for column in seen.columns}  # BigQuery does not tell upper from lower case
    return [column for column in wanted.columns if column.name.upper() not in names]


def _check(seen: TableDefinition, wanted: TableDefinition) -> None:
    """Raise PoisonRecordError where rows of a definition do not fit into a table, TableTroubleError where none can."""
    if seen.mirror_of != wanted.mirror_of:
        raise TableTroubleError(
            f"table {wanted.name} holds another source table ({seen.mirror_of}) than {wanted.mirror_of}: "
            "give one of them a dataset of its own; if it is the same table under another name, take its label off: "
            f"bq update --clear_label {MIRROR_OF} <dataset>.{wanted.name}"
        )
    if not seen.primary_key:
        key = ", ".join(f"`{name}`" for name in wanted.primary_key)
        raise TableTroubleError(
            f"table {wanted.name} has no primary key, by which BigQuery applies changes; give it one: "
            f"ALTER TABLE `{wanted.name}` ADD PRIMARY KEY ({key}) NOT ENFORCED"
        )
    if {name.upper() for name in seen.primary_key} != {name.upper() for name in wanted.primary_key}:
        raise PoisonRecordError(
            Reason.SCHEMA_CONFLICT,
            f"table {wanted.name} has the primary key ({', '.join(seen.primary_key)}), "
            f"the source has ({', '.join(wanted.primary_key)})",
        )
    types = {column.name.upper(): column.type.bigquery for column in seen.columns}
    for column in wanted.columns:
        there = types.get(column.name.upper(), column.type.bigquery)
        if there != column.type.bigquery:
            raise PoisonRecordError(
                Reason.SCHEMA_CONFLICT,
                f"table {wanted.name}: column {column.name} is {there}, the source has {column.type.bigquery}",
            )
