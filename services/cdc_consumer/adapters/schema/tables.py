"""The tables that are written: made when first seen, widened as columns appear, checked before they are used.

Source: BigQuery, "Stream table updates with change data capture": a primary key (not enforced) is required, tables
are best clustered by it; while `max_staleness` is unset every query sees what has been accepted. A history has no key,
for one that does not hold would mislead queries; it is partitioned by when changes were committed.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, permutations
from typing import Final

import structlog
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery.table import PrimaryKey, TableConstraints

from services.cdc_consumer.adapters.bigquery.errors import ONE_CALL, rest_errors, update_fields
from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    CLOCK_MARGIN,
    DEAD_LETTERS,
    RESYNC_AFTER,
    NoTableError,
    change_labels,
    completed,
    dead_lettered,
    label_time,
    labelled,
    lacks_its_rows,
    left_out,
    mask_label,
    recreated,
    remasked,
    rows_too_old,
    taken_up,
    until,
)
from services.cdc_consumer.adapters.bigquery.staleness import as_stale, interval_text
from services.cdc_consumer.adapters.bigquery.unanswered import AnsweringClient, TableClient
from services.cdc_consumer.adapters.schema.dataset_defaults import (
    case_sensitive,
    collated,
    default_collation,
    expiring,
    kept_as_long,
    lasting,
    milliseconds,
    of_its_dataset,
    warn_of_expiry,
)
from services.cdc_consumer.adapters.schema.history_views import HistoryViews, view_path
from services.cdc_consumer.adapters.schema.write_rights import WriteRights
from services.cdc_consumer.core.schema.masked_columns import MASKS
from services.cdc_consumer.core.schema.tables import COLUMN_LIMIT, TableColumn, TableDefinition, beside, with_names
from services.cdc_consumer.core.schema.views import view_name
from services.cdc_consumer.core.types.types import COLUMN_TYPES, ColumnType
from services.cdc_consumer.ports import (
    LEFT_OUT,
    MAKE_AGAIN,
    MASKS_CHANGED,
    RESYNC,
    ROWS_TOO_OLD,
    DatasetRefusedError,
    NotLabelledError,
    TableTroubleError,
)
from shared.bigquery.client import beyond_limits
from shared.contracts.errors import MisconfiguredError, PoisonRecordError, TransientError
from shared.contracts.mirrors import HISTORY_OF, MIRROR_OF, SEQUENCE_COLUMN, label_of
from shared.contracts.reasons import Reason

_ATTEMPTS: Final = 5  # others may alter the table at the same time, but not for ever
_LEGACY_NAMES: Final = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "DECIMAL": "NUMERIC"}
_EMPTY_COLUMNS: Final = (
    "rows that are there have NULL in them until they change; take a snapshot of the table, unless the source has just "
    "added these columns"
)
_RESERVED_NAME: Final = "was recently deleted"
"""BigQuery's words where a column is added whose name it reserves, since one of that name was dropped lately."""
HISTORY_KEY: Final = "millrace_history_key"
"""The label by which a history says what its rows belong together by: a digest of the names."""
_MOST_ORDERS: Final = 40_320  # of a key of eight columns
# Of those that are one type in BigQuery (STRING, PG_NUMERIC) the first stands for all: it is the namesake.
_BY_BIGQUERY_NAME: Final[Mapping[str, ColumnType]] = {
    kind.bigquery: kind for kind in reversed(list(COLUMN_TYPES.values()))
}


def check_dataset(
    client: TableClient, project: str, dataset: str, within: timedelta = timedelta(seconds=30)
) -> bigquery.Dataset:
    """Return the dataset; MisconfiguredError, with the command that makes it, unless it is there.

    TransientError where that is not answered ``within`` a time.
    """
    with rest_errors(f"dataset {project}.{dataset}"):
        try:
            return client.get_dataset(f"{project}.{dataset}", **{**ONE_CALL, "timeout": within.total_seconds()})
        except exceptions.NotFound as error:
            raise MisconfiguredError(
                "dataset-missing",
                f"dataset {project}.{dataset} does not exist (BIGQUERY_DATASET, or the tables file, names it); make "
                f"it: bq --location=LOCATION --project_id={project} mk --dataset {dataset}; LOCATION is the region or "
                "multi-region of its source, and can never be changed",
            ) from error
        except exceptions.Forbidden as error:
            if beyond_limits(error):
                raise
            raise MisconfiguredError(
                "dataset-denied",
                f"dataset {project}.{dataset} may not be read ({error.message}); give this identity the role "
                "roles/bigquery.dataEditor on it",
            ) from error


class BigQueryTables:
    """The Tables of one dataset, and of others that definitions name. What is known of them is kept for the process."""

    def __init__(
        self,
        client: bigquery.Client,
        project: str,
        dataset: str,
        *,
        clock_margin: timedelta = CLOCK_MARGIN,
        progressed: Callable[[], None] = lambda: None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock_margin``: how far ahead of BigQuery's clock a source's times may be.

        ``progressed`` is called for each table that is read or made: a task may have a thousand of them to make.
        ``seconds``: a clock that never goes back.
        """
        self._client = AnsweringClient(client)
        self._project = project
        self._dataset = dataset
        self._clock_margin = clock_margin
        self._progressed = progressed
        self._views = HistoryViews(self._client, seconds)
        self._rights = WriteRights(self._client, project, dataset, seconds)
        self._known: dict[str, TableDefinition] = {}
        self._made_at: dict[str, datetime | None] = {}
        self._dead_lettered: dict[str, int] = {}
        self._began = time.time_ns() // 1_000
        self._beside: set[tuple[str, str]] = set()

    def ensure(self, definition: TableDefinition) -> TableDefinition:
        """Make the table, or widen it, and return it as it is; as the port."""
        known = self._known.get(definition.identity)
        if known is None or _missing(known, _placed(definition, known)):
            known = self._known[definition.identity] = self._brought_about(definition)
            self._progressed()
        elif self._views.is_due(definition):
            with suppress(TransientError):  # its rows can be written
                known = self._known[definition.identity] = self._brought_about(definition)
        _check(known, _placed(definition, known), self._path(definition))
        self._report_columns_beside(definition, known)
        return known

    def asked_ahead(self, definitions: Iterable[TableDefinition]) -> AbstractContextManager[None]:
        """Ask ahead for what `ensure` reads first of tables that are not known; as the port."""
        unknown = [each for each in definitions if each.identity not in self._known]
        paths = [view_path(self._path(each), each) if each.append_only else self._path(each) for each in unknown]
        return self._client.get_tables_ahead(map(str, paths), **ONE_CALL)

    def forget(self, table: str) -> None:
        """Inspect the table again at the next `ensure`."""
        self._known.pop(table, None)

    def check_rights(self, definition: TableDefinition) -> None:
        """Raise DatasetRefusedError if this identity may write to no table there; as the port."""
        if not definition.dataset:
            self._rights.check(definition.name, [each for each in self._made_at if "." not in each])

    def complete(self, definition: TableDefinition, since: int, read_since: int) -> None:
        """Let a mirror say since when all rows of its source are in it, or on their way; as the port."""

        def labels(found: bigquery.Table) -> Mapping[str, str | None] | None:
            now = time.time_ns() // 1_000
            if lacks_its_rows(found.labels, since, read_since):
                structlog.get_logger().warning(
                    "table_pending_resync",
                    table=definition.identity,
                    snapshot_read=min(since, read_since),
                    resync_after=label_time(found.labels, RESYNC_AFTER),
                    fix="rows of this snapshot came too late to be applied: take another snapshot of "
                    f"{definition.mirror_of}: {RESYNC}",
                )
            return completed(found.labels, found.created, since, read_since, now, self._clock_margin)

        if change_labels(self._client, str(self._path(definition)), labels):
            structlog.get_logger().info("table_complete", table=definition.identity, complete_since=since)

    def note_dead_letters(self, name: str, dataset: str, at: int) -> None:
        """Let a mirror say that changes of its source table have become dead letters; as the port."""
        path, margin = f"{self._project}.{dataset or self._dataset}.{name}", self._clock_margin
        needed, beyond = until(at, margin), until(at, 2 * margin)  # so that it need not be said again at once
        wanted = False
        if needed <= self._dead_lettered.get(path, 0):
            return

        def labels(found: bigquery.Table) -> Mapping[str, str] | None:
            nonlocal wanted
            self._dead_lettered[path] = label_time(found.labels, DEAD_LETTERS)
            changed = dead_lettered(found.labels, needed, beyond)
            wanted = changed is not None
            return changed

        with suppress(NoTableError):
            if change_labels(self._client, path, labels):
                self._dead_lettered[path] = beyond
            elif wanted:
                raise NotLabelledError(f"table {path}: its labels may not be written")

    def set_pending_resync(self, definition: TableDefinition, newest: int) -> None:
        """Let a mirror say that it lacks rows of a snapshot; as the port."""
        path, refused = str(self._path(definition)), False

        def labels(found: bigquery.Table) -> Mapping[str, str | None] | None:
            nonlocal refused
            changed = rows_too_old(found.labels, newest)
            refused = changed is not None
            return changed

        if change_labels(self._client, path, labels):
            fix = f"take another snapshot of {definition.mirror_of}: {RESYNC}"
            structlog.get_logger().error(ROWS_TOO_OLD, table=definition.identity, fix=fix)
        elif refused:
            raise NotLabelledError(
                f"table {path} lacks snapshot rows that came too late to be applied, and its labels, which have to say "
                "so, may not be written: give this identity the role roles/bigquery.dataEditor on it"
            )

    def _brought_about(self, definition: TableDefinition) -> TableDefinition:
        path = self._path(definition)
        for _attempt in range(_ATTEMPTS):
            # Before the table: what a view found now lacks, the table read after it has.
            view = self._views.found(path, definition) if definition.append_only else None
            found = self._read(definition)
            with rest_errors(f"table {path}"):
                try:
                    if found is None:
                        found = self._create(definition, self._dataset_of(definition))
                    else:
                        found = self._lasting(found, definition)
                    seen = _definition(found, definition)
                    placed = _placed(definition, seen)
                    _check(seen, placed, path)
                    _check_keys_are_case_sensitive(found, seen)
                    found = self._masked(found, definition)  # never a table that is refused: it may be another's
                    if _missing(seen, placed):
                        found = self._widen(found, placed)
                    elif not _labels(definition).items() <= found.labels.items():
                        found = self._labelled(found, {**found.labels, **_labels(definition)})
                    if not as_stale(found, definition.max_staleness):
                        found = self._set_staleness(found, definition)
                    if not kept_as_long(found, definition.keep):
                        found = self._set_keep(found, definition)
                    found = self._compared_with_before(found, definition)
                    found = self._taken_up(found)
                    if view is not None:
                        self._views.bring_about(view, found, definition)
                except (exceptions.Conflict, exceptions.PreconditionFailed):
                    continue  # another process was faster: inspect what it made
            if definition.instead_of:
                self._leave_out(definition)
            return _definition(found, definition)
        raise TableTroubleError(f"table {path}: altered by others all the time")

    def _read(self, definition: TableDefinition) -> bigquery.Table | None:
        """Return the table, None where there is none. After a refusal, ask for its dataset, too."""
        path = str(self._path(definition))
        try:
            with rest_errors(f"table {path}"), suppress(exceptions.NotFound):
                return self._client.get_table(path, **ONE_CALL)
        except TableTroubleError:
            try:
                self._dataset_of(definition)
            except MisconfiguredError as error:
                raise DatasetRefusedError(f"{error.message}; until then everything waits [{error.code}]") from error
            raise
        return None

    def _dataset_of(self, definition: TableDefinition) -> bigquery.Dataset:
        try:
            return check_dataset(self._client, self._project, self._path(definition).dataset_id)
        except MisconfiguredError as error:
            if not definition.dataset:
                raise
            raise TableTroubleError(str(error)) from error  # of the tables that the tables file puts there

    def _create(self, definition: TableDefinition, dataset: bigquery.Dataset) -> bigquery.Table:
        table = bigquery.Table(self._path(definition), schema=[_field(c) for c in definition.columns])
        if definition.append_only:
            table.time_partitioning = bigquery.TimePartitioning(
                field=definition.commit_timestamp, expiration_ms=milliseconds(definition.keep)
            )
            table.description = f"Every change of {definition.mirror_of}, kept by Millrace"
        else:
            table.table_constraints = TableConstraints(PrimaryKey(list(definition.primary_key)), None)
            table.description = f"Mirror of {definition.mirror_of}, kept by Millrace"
        if definition.max_staleness is not None:
            table.max_staleness = interval_text(definition.max_staleness)
        table.clustering_fields = list(definition.clustering)
        table.labels = _labels(definition) | mask_label({}, definition.masked_columns.label(_upper(definition.columns)))
        if default_collation(dataset):
            table = case_sensitive(table)
        created = self._client.create_table(table, **ONE_CALL)
        structlog.get_logger().info("table_created", table=definition.identity, columns=len(definition.columns))
        return lasting(self._client, created, definition.keep)

    def _lasting(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Let a table of ours last whose making was cut off before it did; report any other one that expires."""
        ours = expiring(found, definition.keep) and _labels(definition).items() <= found.labels.items()
        if ours and of_its_dataset(found, self._dataset_of(definition)):
            return lasting(self._client, found, definition.keep)
        warn_of_expiry(found, definition.keep)
        return found

    def _masked(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Let a table that was written with another mask key, masks or names say so before rows of now are written."""
        there, label = {field.name.upper() for field in found.schema}, found.labels.get(MASKS, "")
        why = definition.masked_columns.changed(there, label, _upper(definition.columns))
        if not why:
            return found
        log = structlog.get_logger().bind(table=definition.identity, why=why)
        masks = definition.masked_columns.label(there)
        if definition.append_only:
            fix = "older changes keep the values and columns that they were written with: to be rid of them, drop it"
            log.error(MASKS_CHANGED, fix=fix)
            return self._labelled(found, {**found.labels, **mask_label(found.labels, masks)})
        fix = (
            f"end all consumers with the old tables file or key, and take a snapshot of {definition.mirror_of} "
            f"{self._margin()} after that at the earliest: {RESYNC}"
        )
        log.error(MASKS_CHANGED, fix=fix)
        now = until(time.time_ns() // 1_000, self._clock_margin)
        return self._labelled(found, remasked(found.labels, masks, now))

    def _margin(self) -> str:
        return f"{int(self._clock_margin.total_seconds() // 60)} minutes"

    def _widen(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Add the columns that are missing: one change, with the etag of what was read."""
        new = _missing(_definition(found, definition), definition)
        found.schema = [*found.schema, *(_field(column) for column in new)]
        masks = definition.masked_columns.label({field.name.upper() for field in found.schema})
        found.labels = {**found.labels, **_labels(definition), **mask_label(found.labels, masks)}
        try:
            widened = self._client.update_table(found, ["schema", "labels"], **ONE_CALL)
        except exceptions.BadRequest as error:
            if _RESERVED_NAME not in str(error.message):
                raise
            drop = (
                ""
                if definition.append_only
                else f"; or drop the table, and take a snapshot {self._margin()} after it was made again"
            )
            raise TableTroubleError(
                f"table {self._path(definition)}: {error.message} Give the column another name there (TABLES_FILE: "
                f"renamed_columns){drop}; changes that wait too long meanwhile become dead letters, to be replayed"
            ) from error
        more = {} if definition.append_only else {"note": _EMPTY_COLUMNS}
        names = [each.name for each in new]
        structlog.get_logger().info("columns_added", table=definition.identity, columns=names, **more)
        return widened

    def _report_columns_beside(self, definition: TableDefinition, there: TableDefinition) -> None:
        """Report once for each column that the table has it with another type, and where its values go."""
        for name, other in beside(definition, there).items():
            if (definition.identity, other) in self._beside:
                continue
            self._beside.add((definition.identity, other))
            path = self._path(definition)
            table = f"`{path.project}.{path.dataset_id}.{path.table_id}`"
            fix = (
                f"query {other}, and take a snapshot of {definition.mirror_of}: rows that have not changed since have "
                f"NULL in it. To have the values under {name} again, run DROP TABLE {table} before, and take the "
                f"snapshot {self._margin()} after it was made again"
            )
            if definition.append_only:
                fix = f"query both columns: changes of before are in {name}, and changes of since in {other}"
            log = structlog.get_logger().bind(table=definition.identity, column=name, written_to=other)
            log.error("column_of_another_type", fix=fix)

    def _set_staleness(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Let a table be as stale as the tables file says, where that is allowed."""
        assert definition.max_staleness is not None
        before, found.max_staleness = found.max_staleness, interval_text(definition.max_staleness)
        log = structlog.get_logger().bind(table=definition.identity)
        changed = update_fields(self._client, found, ["max_staleness"])
        if isinstance(changed, str):
            log.warning("max_staleness_not_set", error=changed)
            found.max_staleness = before
            return found
        log.info("max_staleness_set", before=before, now=changed.max_staleness)
        return changed

    def _set_keep(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Let a history keep its changes as long as the tables file says, where that is allowed."""
        partitioning, log = found.time_partitioning, structlog.get_logger().bind(table=definition.identity)
        if partitioning is None:
            log.warning("keep_not_set", error="the table is not partitioned, so BigQuery drops no part of it")
            return found
        before, partitioning.expiration_ms = partitioning.expiration_ms, milliseconds(definition.keep)
        found.time_partitioning = partitioning
        changed = update_fields(self._client, found, ["time_partitioning"])
        if isinstance(changed, str):
            log.warning("keep_not_set", error=changed)
            return found
        log.info("keep_set", before_milliseconds=before, milliseconds=milliseconds(definition.keep))
        return changed

    def _compared_with_before(self, found: bigquery.Table, definition: TableDefinition) -> bigquery.Table:
        """Say loudly that a table is another one than it was: what had been written to the old one is not in it."""
        table = definition.identity
        if self._made_at.setdefault(table, found.created) == found.created:
            return found
        structlog.get_logger().error(
            "table_recreated",
            table=table,
            fix="it was dropped and made again while mirrored, and holds only what has changed since: resync it",
        )
        made_at, found = found.created, self._labelled(found, recreated(found.labels))
        self._made_at[table] = made_at
        return found

    def _taken_up(self, found: bigquery.Table) -> bigquery.Table:
        """Let a mirror that was left out for a while say by when it no longer was: this process leaves out none."""
        labels = taken_up(found.labels, self._began)
        return found if labels is None else self._labelled(found, labels)

    def _labelled(self, found: bigquery.Table, labels: Mapping[str, str | None]) -> bigquery.Table:
        """Give a table labels that it lacks, where that is allowed."""
        return found if labels == found.labels else labelled(self._client, found, labels) or found

    def _leave_out(self, definition: TableDefinition) -> None:
        """Let the mirror in whose stead a history is kept, if there is one, say that it lacks what changes now."""
        mirror = replace(definition, name=definition.instead_of)
        with suppress(NoTableError):
            path, of_what = str(self._path(mirror)), label_of(definition.mirror_of)
            if change_labels(self._client, path, lambda found: left_out(found.labels, of_what)):
                fix = "a history alone is kept of its source table: drop it, or have it mirrored again and resync it"
                structlog.get_logger().warning(LEFT_OUT, table=mirror.identity, fix=fix)

    def _path(self, definition: TableDefinition) -> bigquery.TableReference:
        dataset = bigquery.DatasetReference(self._project, definition.dataset or self._dataset)
        return dataset.table(definition.name)


def as_found(found: bigquery.Table, wanted: TableDefinition) -> TableDefinition:
    """Return a table as it is; PoisonRecordError or TableTroubleError where it cannot hold what is wanted of it."""
    seen = _definition(found, wanted)
    _check(seen, _placed(wanted, seen), found.reference)
    return seen


def _labels(definition: TableDefinition) -> dict[str, str]:
    """Return the labels by which a table says what it holds."""
    of_what = label_of(definition.mirror_of)
    if not definition.append_only:
        return {MIRROR_OF: of_what}
    return {HISTORY_OF: of_what, HISTORY_KEY: _key_label(definition.primary_key)}


def is_of_key(history: bigquery.Table, primary_key: Sequence[str]) -> bool:
    """Return whether a history's label says that its rows belong together by these columns, in whatever order.

    The label has the order that they had when the history was made. The last changes of a table that has been dropped
    name them in the order of its columns, and so does a table that was made again with another order. Of a key of more
    than eight columns not every order is tried.
    """
    label = history.labels.get(HISTORY_KEY)
    return any(label == _key_label(names) for names in islice(permutations(primary_key), _MOST_ORDERS))


def _key_label(primary_key: Iterable[str]) -> str:
    return label_of(",".join(name.upper() for name in primary_key))


def _field(column: TableColumn) -> bigquery.SchemaField:
    element = column.type.element
    if element is None:
        return bigquery.SchemaField(column.name, column.type.bigquery, mode="NULLABLE")
    return bigquery.SchemaField(column.name, element.bigquery, mode="REPEATED")


def _definition(table: bigquery.Table, wanted: TableDefinition) -> TableDefinition:
    """Return a table as it is. A column that Millrace would not make has a type of which nothing else is equal.

    A table that says nothing of what it holds may come to hold what is wanted; a history only if it has been one, for
    rows without a sequence (Google's template names its tables alike) would be taken for repeats of each other.
    """
    of_what, names = label_of(wanted.mirror_of), {field.name for field in table.schema}
    ours, others = (HISTORY_OF, MIRROR_OF) if wanted.append_only else (MIRROR_OF, HISTORY_OF)
    free = table.labels.get(ours) in (None, of_what) and others not in table.labels
    free = free and not (wanted.append_only and SEQUENCE_COLUMN not in names)
    return replace(
        wanted,
        name=table.table_id,
        columns=tuple(_column(field) for field in table.schema),
        primary_key=_key_of(table, wanted),
        mirror_of=wanted.mirror_of if free else str(table.description or "another source table"),
    )


def _key_of(table: bigquery.Table, wanted: TableDefinition) -> tuple[str, ...]:
    """Return a mirror's primary key; of a history, which has none, what it says that its rows belong together by."""
    if wanted.append_only:
        ours = HISTORY_KEY not in table.labels or is_of_key(table, wanted.primary_key)
        return wanted.primary_key if ours else ("another",)
    return primary_key_of(table)


def primary_key_of(table: bigquery.Table) -> tuple[str, ...]:
    """Return the columns of a table's primary key; none where it has no such key."""
    constraints = table.table_constraints
    return tuple(constraints.primary_key.columns) if constraints is not None and constraints.primary_key else ()


def _check_keys_are_case_sensitive(found: bigquery.Table, seen: TableDefinition) -> None:
    keys = {name.upper() for name in seen.primary_key}
    if names := [field.name for field in found.schema if field.name.upper() in keys and collated(field)]:
        raise TableTroubleError(
            f"table {seen.identity}: the key {', '.join(names)} does not tell upper from lower case (its COLLATE), so "
            f"rows of different keys would replace each other: {MAKE_AGAIN}"
        )


def table_column(field: bigquery.SchemaField) -> TableColumn | None:
    """Return a column of a table; None if its type is none that Millrace writes."""
    known = _BY_BIGQUERY_NAME.get(_type_name(field))
    return None if known is None else TableColumn(field.name, known)


def _type_name(field: bigquery.SchemaField) -> str:
    name = _LEGACY_NAMES.get(field.field_type, field.field_type)
    return f"ARRAY<{name}>" if field.mode == "REPEATED" else name


def _column(field: bigquery.SchemaField) -> TableColumn:
    name = _type_name(field)
    known = _BY_BIGQUERY_NAME.get(name)
    return TableColumn(field.name, known or ColumnType(name, name, COLUMN_TYPES["STRING"].wire, "TYPE_STRING"))


def _upper(columns: Iterable[TableColumn]) -> set[str]:
    return {column.name.upper() for column in columns}


def _missing(seen: TableDefinition, wanted: TableDefinition) -> list[TableColumn]:
    names = {column.name.upper() for column in seen.columns}  # BigQuery does not tell upper from lower case
    return [column for column in wanted.columns if column.name.upper() not in names]


def _placed(wanted: TableDefinition, seen: TableDefinition) -> TableDefinition:
    """Return a definition with the names that its columns have in the table."""
    return with_names(wanted, beside(wanted, seen))


def _check(seen: TableDefinition, wanted: TableDefinition, path: bigquery.TableReference) -> None:
    """Raise PoisonRecordError where rows of a definition do not fit into a table, TableTroubleError where none can."""
    alter = f"ALTER TABLE `{path.project}.{path.dataset_id}.{path.table_id}`"
    if seen.mirror_of != wanted.mirror_of:
        label, view = MIRROR_OF, ""
        if wanted.append_only:
            label, view = HISTORY_OF, f"bq rm --table {path.project}:{path.dataset_id}.{view_name(wanted)}; "
        raise TableTroubleError(
            f"table {wanted.identity} holds another source table ({seen.mirror_of}) than {wanted.mirror_of}: "
            "give one of them a name or a dataset of its own (TABLES_FILE); if it is the same table by another name, "
            f"take its label off: {view}bq update --clear_label {label} "
            f"{path.project}:{path.dataset_id}.{path.table_id}"
        )
    if not seen.primary_key:
        key = ", ".join(f"`{name}`" for name in wanted.primary_key)
        raise TableTroubleError(
            f"table {wanted.identity} has no primary key, by which BigQuery applies changes; give it one: "
            f"{alter} ADD PRIMARY KEY ({key}) NOT ENFORCED"
        )
    if {name.upper() for name in seen.primary_key} != {name.upper() for name in wanted.primary_key}:
        raise PoisonRecordError(
            Reason.SCHEMA_CONFLICT,
            f"table {wanted.identity} has the primary key ({', '.join(seen.primary_key)}), "
            f"the source has ({', '.join(wanted.primary_key)}): drop it in BigQuery, so that it is made "
            "again, or give the source table another name there (TABLES_FILE: name); then replay",
        )
    new = len(_missing(seen, wanted))
    if new and len(seen.columns) + new > COLUMN_LIMIT:
        raise PoisonRecordError(
            Reason.TOO_MANY_COLUMNS,
            f"table {wanted.identity} has {len(seen.columns)} columns and would get {new} more; BigQuery takes "
            f"{COLUMN_LIMIT}: drop from it those that the source no longer has",
        )
    types = {column.name.upper(): column.type.bigquery for column in seen.columns}
    for column in wanted.columns:
        there = types.get(column.name.upper(), column.type.bigquery)
        if there != column.type.bigquery:
            raise PoisonRecordError(
                Reason.SCHEMA_CONFLICT,
                f"table {wanted.identity}: column {column.name} is {there}, the source has {column.type.bigquery}, and "
                "there is no other column that its values could go into: it is in the key, or the name of that column "
                f"is taken or too long: {MAKE_AGAIN}; or give the source table another name there (TABLES_FILE: name); "
                "then replay",
            )
