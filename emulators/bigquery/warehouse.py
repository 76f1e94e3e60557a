"""The warehouse: datasets, tables and their rows, behind one lock. Both servers, REST and gRPC, are thin over it."""

import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import duckdb
import pyarrow as pa

from emulators.bigquery.append_errors import AppendRefusedError
from emulators.bigquery.catalog import (
    Dataset,
    DatasetName,
    Table,
    TableName,
    check_added_columns,
    check_dataset_name,
)
from emulators.bigquery.errors import ApiError, duplicate, invalid_query, not_found
from emulators.bigquery.job_history import APPLIES_AS, JobHistory, PastJob
from emulators.bigquery.protocol import SCHEMA_MISMATCH_EXTRA_FIELDS, TABLE_NOT_FOUND
from emulators.bigquery.reservations import Reservations
from emulators.bigquery.row_sizes import bytes_of
from emulators.bigquery.rows import Rows
from emulators.bigquery.saved import Saved, from_json, to_json
from emulators.bigquery.staleness import Staleness
from emulators.bigquery.storage import Storage, view
from emulators.bigquery.table_updates import TableUpdates
from emulators.bigquery.visibility import Visibility

RESPONSE_BYTES: Final = 10_000_000_000
"""The largest result of a query that names no destination table (BigQuery, "Quotas and limits": 10 GB compressed)."""


class Warehouse:
    """All that the stand-in knows. ``now`` returns the time in microseconds since the epoch.

    With a directory it is kept there, and found again; otherwise it is in memory.
    """

    def __init__(self, now: Callable[[], int], directory: Path | None = None) -> None:
        self.now = now
        self.storage = Storage(now, directory)
        self.staleness = Staleness(now)
        self.visibility = Visibility(now)
        self.updates = TableUpdates(now)
        self.history = JobHistory()
        self.reservations = Reservations()
        self.response_bytes = RESPONSE_BYTES
        self._lock = threading.RLock()
        self._datasets: dict[DatasetName, Dataset] = {}
        self._tables: dict[TableName, Table] = {}
        self._with_changes: set[int] = set()
        self._numbers = 0
        self._restore(self.storage.saved())

    def _restore(self, document: str | None) -> None:
        if document is None:
            return
        saved = from_json(document)
        self._datasets = {dataset.name: dataset for dataset in saved.datasets}
        self._tables = {table.name: table for table in saved.tables}
        self._with_changes, self._numbers = set(saved.with_changes), saved.numbers
        self.staleness.restore(saved.watermarks)
        for table in saved.tables:
            self.visibility.add(table)
            self.storage.restore(table)
            if table.number in self._with_changes:
                self.staleness.streamed(table)

    def _save(self) -> None:
        if not self.storage.on_disk:
            return
        with self._lock:
            numbers = [table.number for table in self._tables.values()]
            self.storage.save(
                to_json(
                    Saved(
                        tuple(self._datasets.values()),
                        tuple(self._tables.values()),
                        self._numbers,
                        sorted(self._with_changes),
                        self.staleness.watermarks(numbers),
                    )
                )
            )

    def create_dataset(self, name: DatasetName, properties: Mapping[str, object], exists_ok: bool = False) -> Dataset:
        """Make a dataset."""
        check_dataset_name(name)
        with self._lock:
            if name in self._datasets:
                if exists_ok:
                    return self._datasets[name]
                raise duplicate(f"Dataset {name}")
            now = self.now()
            self._datasets[name] = Dataset(name, dict(properties), now, now)
            self._save()
            return self._datasets[name]

    def dataset(self, name: DatasetName) -> Dataset:
        """Return a dataset; ApiError if there is none."""
        with self._lock:
            if name not in self._datasets:
                raise not_found(f"Dataset {name}")
            return self._datasets[name]

    def alter_dataset(
        self, name: DatasetName, change: Callable[[Dataset], Mapping[str, object]], etag: str = ""
    ) -> Dataset:
        """Give a dataset the properties that ``change`` returns for it; ApiError where the etag is another by now."""
        with self._lock:
            dataset = self.dataset(name)
            if etag not in ("", "*", dataset.etag):
                raise ApiError("conditionNotMet", f"Precondition check failed: dataset {name} has changed")
            properties, version = change(dataset), dataset.version + 1
            self._datasets[name] = replace(dataset, properties=properties, modified=self.now(), version=version)
            self._save()
            return self._datasets[name]

    def datasets(self, project: str) -> Sequence[Dataset]:
        """Return a project's datasets."""
        with self._lock:
            return [self._datasets[name] for name in sorted(self._datasets) if name.project == project]

    def projects(self) -> Sequence[str]:
        """Return the projects that have a dataset."""
        with self._lock:
            return sorted({name.project for name in self._datasets})

    def drop_dataset(self, name: DatasetName, contents: bool) -> None:
        """Drop a dataset, with its tables if asked to; one that is not empty is kept otherwise."""
        with self._lock:
            self.dataset(name)
            tables = self.tables(name)
            if tables and not contents:
                raise ApiError("resourceInUse", f"Dataset {name} is still in use")
            for table in tables:
                self.drop_table(table.name)
            del self._datasets[name]
            self._save()

    def create_table(self, table: Table, rows: Rows | None = None) -> Table:
        """Make a table from a definition without number and times, with its first rows if any; return it with them."""
        with self._lock:
            dataset = self.dataset(table.name.within)
            if table.name in self._tables:
                raise duplicate(f"Table {table.name}")
            self._numbers += 1
            now = self.now()
            properties = _with_expiry(table, dataset, now)
            made = replace(table, number=self._numbers, version=1, created=now, modified=now, properties=properties)
            if not made.query:
                self.storage.create(made)
            if rows is not None:
                self.storage.accept(made, rows)
            self._tables[table.name] = made
            self.visibility.add(made)
            self._save()
            return made

    def table(self, name: TableName) -> Table:
        """Return a table; ApiError if there is none."""
        with self._lock:
            if name.within not in self._datasets:
                raise not_found(f"Dataset {name.within}")
            if name not in self._tables:
                raise not_found(f"Table {name}")
            return self._tables[name]

    def table_for_writers(self, name: TableName) -> Table:
        """Return a table as the write API sees it; ApiError where it sees none (yet)."""
        seen = self.visibility.seen(self.table(name))
        if seen is None:
            raise not_found(f"Table {name}")
        return seen

    def tables(self, dataset: DatasetName) -> Sequence[Table]:
        """Return a dataset's tables."""
        with self._lock:
            self.dataset(dataset)
            return [self._tables[name] for name in sorted(self._tables) if name.within == dataset]

    def all_tables(self) -> Sequence[Table]:
        """Return every table there is; views are none."""
        with self._lock:
            return [table for table in self._tables.values() if not table.query]

    def drop_table(self, name: TableName) -> None:
        """Drop a table and its rows."""
        with self._lock:
            table = self.table(name)
            if not table.query:
                self.storage.drop(table)
            del self._tables[name]
            self.visibility.forget(table)
            self._with_changes.discard(table.number)
            self._save()

    def drop_expired(self) -> None:
        """Drop the tables whose expiry has come."""
        for table in self.all_tables():
            expiry = table.properties.get("expirationTime")
            if expiry and int(str(expiry)) * 1_000 <= self.now():
                with suppress(ApiError):  # dropped in this moment
                    self.drop_table(table.name)

    def alter_table(
        self,
        name: TableName,
        change: Callable[[Table], Mapping[str, object]],
        etag: str = "",
        dropped: Collection[str] = (),
    ) -> Table:
        """Change a table's definition by what ``change`` returns for it.

        ApiError where the etag is another by now, or the table was changed too often of late.
        ``dropped``: the columns, in lower case, that may be missing in what it returns.
        """
        with self._lock:
            table = self.table(name)
            if etag not in ("", "*", table.etag):
                raise ApiError("conditionNotMet", f"Precondition check failed: table {name} has changed")
            self.updates.count(name)
            now = self.now()
            reserved = table.without(dropped, now)
            altered = table.changed(now, **change(table), dropped=reserved)
            if not table.query:
                check_added_columns(table, altered.columns, dropped, reserved)
                self.storage.alter(table, altered)
            self._tables[name] = altered
            self.visibility.add(altered)
            self._save()
            return altered

    def append(self, table: Table, rows: Rows) -> None:
        """Accept rows; when this returns they are kept, and every query that starts later sees them."""
        if self.storage.full(table) and not table.max_staleness:
            self.storage.merge(table)
        with self._lock:
            current = self._tables.get(table.name)
            if current is None or current.number != table.number:
                raise AppendRefusedError(
                    f"Requested entity was not found: table {table.name}",
                    code=not_found("").grpc_code,
                    storage_code=TABLE_NOT_FOUND,
                    closes=True,
                )
            if current.version != table.version:
                _check_still_fits(table, current, rows)
            if rows.changes:
                if table.number not in self._with_changes:
                    self._with_changes.add(table.number)
                    self._save()
                self.staleness.streamed(table)
            self.storage.accept(current, rows)

    def has_changes(self, table: Table) -> bool:
        """Return whether UPSERT or DELETE rows have been streamed to the table, which restricts its statements."""
        with self._lock:
            return table.number in self._with_changes

    def check_modifiable(self, table: Table) -> None:
        """Refuse to change the rows of a table by a statement where changes have been streamed to it."""
        if self.has_changes(table):
            raise invalid_query(
                f"UPDATE, MERGE, DELETE and TRUNCATE are not supported over table {table.name}, "
                "to which UPSERT or DELETE rows have been streamed"
            )

    def query(
        self, sql: str, tables: Sequence[Table], beside: Mapping[str, pa.Table] = MappingProxyType({})
    ) -> pa.Table:
        """Return the result of a DuckDB query that reads these tables, and what is ``beside`` them, by name."""
        return self.storage.query(sql, self._fresh(tables), beside)

    def modify(self, sql: str, table: Table, tables: Sequence[Table], repeated: str = "") -> int:
        """Run a DuckDB statement that changes a table; refused where changes have been streamed to it.

        Refused too where the DuckDB query ``repeated`` finds a row that would be changed more than once.
        """
        with self._lock:
            self.check_modifiable(table)
            return self.storage.modify(sql, table, self._fresh(tables), repeated)

    def insert(self, sql: str, table: Table, tables: Sequence[Table]) -> int:
        """Run a DuckDB INSERT, which is allowed everywhere; return how many rows it added."""
        return self.storage.modify(sql, table, self._fresh(tables))

    def _fresh(self, tables: Sequence[Table]) -> Sequence[Table]:
        """Return the tables of which a query merges what waits before it reads them."""
        return [table for table in tables if not self.staleness.serves_what_is_applied(table)]

    def count_rows(self, table: Table) -> int:
        """Return how many rows a query would find now."""
        if not table.columns:
            return 0
        return int(self.query(f"SELECT count(*) FROM {view(table)}", [table]).column(0)[0].as_py())

    def close(self) -> None:
        """Let go of the storage."""
        self.storage.close()

    def apply_what_is_due(self) -> None:
        """Apply what waits, table by table, where it is time."""
        for table in self.all_tables():
            worth = self.storage.worth_merging(table)
            if self.staleness.due(table):
                if worth or table.max_staleness or self.storage.empty(table):
                    self.apply(table)
            elif worth and not self.staleness.unapplied(table):
                self.storage.merge(table)  # plain rows: no change is among them

    def apply(self, table: Table) -> None:
        """Apply a table's changes as BigQuery does in the background: a job that moves the watermark."""
        began = self.staleness.begin(table)
        try:
            self.storage.merge(table)
        except BaseException:
            self.staleness.streamed(table)
            raise
        self.staleness.finish(table, began)
        self._save()
        ended = max(began, self.now())
        # of a table without the option BigQuery applies as it likes, and documents no job: no bytes are made up of it
        size = self._size(table) if table.max_staleness else None
        self.note_apply(table, began, ended, max(1, (ended - began) // 1_000), size)

    def note_apply(self, table: Table, began: int, ended: int, slot_milliseconds: int, size: int | None) -> None:
        """Add a background apply to the history of jobs. ``size``: the bytes of the whole table, which each one reads.

        Source: "Stream table updates with change data capture", section "Estimate BigQuery CDC ingestion costs".
        """
        job = PastJob(
            table.name.project,
            f"{table.name.dataset}_cdc_background_{uuid.uuid4().hex}",
            APPLIES_AS,
            "MERGE",
            began,
            ended,
            slot_milliseconds,
            destination=table.name,
            processed=size,
            billed=size,
        )
        self.history.add(job)

    def _size(self, table: Table) -> int | None:
        try:
            rows = self.storage.query(f"SELECT {bytes_of(table.columns)} FROM {view(table)}", [], {})
        except duckdb.CatalogException:  # dropped in this moment
            return None
        return int(rows.column(0)[0].as_py())


def _check_still_fits(before: Table, now: Table, rows: Rows) -> None:
    """Refuse rows that were read for a definition whose key or columns have gone meanwhile."""
    there = {(column.name, column.duckdb) for column in now.columns}
    gone = [column.name for column in before.columns if (column.name, column.duckdb) not in there]
    if gone or (rows.changes and before.primary_key != now.primary_key):
        raise AppendRefusedError(
            f"The schema of {now.name} has changed: {', '.join(gone) or 'its primary key'}",
            storage_code=SCHEMA_MISMATCH_EXTRA_FIELDS,
            entity=str(now.name),
        )


def _with_expiry(table: Table, dataset: Dataset, now: int) -> Mapping[str, object]:
    """Return a new table's properties, with the expiry of its dataset unless it has its own.

    Of a partitioned table, a default for partitions comes first; partitions do not expire here.
    """
    lifetime, of_partitions = (dataset.properties.get(f"default{what}ExpirationMs") for what in ("Table", "Partition"))
    if not lifetime or "expirationTime" in table.properties or (table.partitioning is not None and of_partitions):
        return table.properties
    return {**table.properties, "expirationTime": str(now // 1_000 + int(str(lifetime)))}
