"""The tables' rows, in DuckDB: what was accepted waits in a log per table and is merged in before a query reads it.

A table's relation holds its columns and two more: the sequence that a row was written with, and for a deleted row when
it was deleted (a tombstone: for two days an older upsert loses against it). Queries go through a view without them.
There is no unique index: BigQuery does not enforce keys either, and plain appends may repeat one.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from duckdb.func import SPECIAL
from duckdb.sqltypes import VARCHAR, DuckDBPyType

from emulators.bigquery import decimals
from emulators.bigquery.catalog import Table
from emulators.bigquery.column_types import BIGNUMERIC, UNITS, Column
from emulators.bigquery.decimals import BIGNUMERIC_OF, sortable
from emulators.bigquery.disk import AcceptedPart, AcceptedParts
from emulators.bigquery.errors import invalid_query
from emulators.bigquery.rows import DELETED, Rows
from emulators.bigquery.texts import FUNCTIONS
from emulators.bigquery.writer_schema import SEQUENCE_NUMBER

TOMBSTONE_MICROSECONDS: Final = 2 * 86_400_000_000
"""How long a DELETE is remembered (BigQuery, "Stream table updates with change data capture")."""

DELETED_AT: Final = "_CHANGE_TIMESTAMP"
JSON_COLUMN: Final = {b"googlesql": b"JSON"}
"""The metadata of a result column that holds JSON: to Arrow it is text."""

MORE_THAN_ONCE: Final = "UPDATE/MERGE must match at most one source row for each target row"

_ARRIVAL: Final = "_CHANGE_ARRIVAL"
_LOG_ROWS: Final = 500_000
_WORTH_ROWS: Final = 50_000
_WORTH_MICROSECONDS: Final = 2_000_000
_INGESTED_TOGETHER: Final = 60_000_000
"""Rows merged together count as ingested together: tombstones expire by that time, and are kept for days."""


@dataclass
class _Log:
    """What a table has accepted and not merged yet, in the order of arrival."""

    parts: list[AcceptedPart] = field(default_factory=list)
    rows: int = 0


class Storage:
    """Rows of all tables. Safe to use from any thread; ``now`` returns the time in microseconds since the epoch.

    Two locks, so that accepting rows never waits for a merge: ``_logging`` guards the logs for moments,
    ``_writing`` guards every change of DuckDB, and is taken first where both are needed.
    """

    def __init__(self, now: Callable[[], int], directory: Path | None = None) -> None:
        self._now = now
        self._accepted: AcceptedParts | None = None
        self._logs: dict[int, _Log] = {}
        self._logging = threading.Lock()
        self._writing = threading.RLock()
        self._database = duckdb.connect(
            ":memory:" if directory is None else str(directory / "rows.duckdb"),
            # Nothing is ever downloaded; what is not built in does not exist.
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"},
        )

        if self._run("SELECT 1 FROM duckdb_settings() WHERE name = 'TimeZone'"):
            self._run("SET GLOBAL TimeZone = 'UTC'")  # what a DATETIME is read in: see column_types
        self._functions = False
        self._numbers = 0
        if directory is not None:
            self._accepted = AcceptedParts(directory / "accepted")
            self._run("CREATE TABLE IF NOT EXISTS merged (relation BIGINT PRIMARY KEY, part BIGINT)")
            self._run("CREATE TABLE IF NOT EXISTS saved (document VARCHAR)")
            self._numbers = max(self._accepted.highest(), self._run("SELECT coalesce(max(part), 0) FROM merged")[0][0])

    @property
    def on_disk(self) -> bool:
        """Return whether data outlives the process."""
        return self._accepted is not None

    def saved(self) -> str | None:
        """Return the document that was saved last; None where there is none, or nothing is kept on disk."""
        with self._writing:
            rows = self._run("SELECT document FROM saved") if self._accepted is not None else []
            return rows[0][0] if rows else None

    def save(self, document: str) -> None:
        """Save a document in place of the last, where data is kept on disk."""
        if self._accepted is None:
            return
        with self._writing, self._transaction():
            self._run("DELETE FROM saved")
            self._database.execute("INSERT INTO saved VALUES (?)", [document])

    def restore(self, table: Table) -> None:
        """Read what a table had accepted and not merged when the process ended."""
        if self._accepted is None:
            return
        with self._writing, self._logging:
            merged = self._run(f"SELECT coalesce(max(part), 0) FROM merged WHERE relation = {table.number}")[0][0]
            parts = list(self._accepted.read(table.number, after=merged))
            if parts:
                rows = sum(part.rows.columns.num_rows for part in parts)
                self._logs[table.number] = _Log(parts, rows)

    def create(self, table: Table) -> None:
        """Make the relation and the view of a new table."""
        columns = [f"{quoted(column.name)} {column.duckdb}" for column in table.columns]
        columns += [f"{SEQUENCE_NUMBER} VARCHAR", f"{DELETED_AT} BIGINT"]
        with self._writing:
            self._run(f"CREATE OR REPLACE TABLE {relation(table)} ({', '.join(columns)})")
            self._make_view(table)

    def alter(self, before: Table, table: Table) -> None:
        """Bring a table's relation from one definition to the next."""
        known = {column.name.lower(): column for column in before.columns}
        kept = {column.name.lower() for column in table.columns}
        added = [column for column in table.columns if column.name.lower() not in known]
        dropped = [column for name, column in known.items() if name not in kept]
        widened = [c for c in table.columns if c.name.lower() in known and c.duckdb != known[c.name.lower()].duckdb]
        with self._writing:
            if dropped or widened or table.primary_key != before.primary_key:
                self.merge(before)  # what waits was accepted under the old definition
            if dropped or widened:
                self._run(f"DROP VIEW {view(table)}")
            for column in dropped:
                self._run(f"ALTER TABLE {relation(table)} DROP COLUMN {quoted(column.name)}")
            for column in widened:
                self._run(f"ALTER TABLE {relation(table)} ALTER COLUMN {quoted(column.name)} TYPE {column.duckdb}")
            for column in added:
                self._run(f"ALTER TABLE {relation(table)} ADD COLUMN {quoted(column.name)} {column.duckdb}")
            self._make_view(table)

    def drop(self, table: Table) -> None:
        """Forget a table's rows."""
        with self._writing:
            with self._logging:
                self._logs.pop(table.number, None)
            self._run(f"DROP VIEW IF EXISTS {view(table)}")
            self._run(f"DROP TABLE IF EXISTS {relation(table)}")
            if self._accepted is not None:
                self._accepted.remove(table.number, self._numbers)

    def accept(self, table: Table, rows: Rows) -> None:
        """Log rows; when this returns, every query that starts later sees them."""
        with self._logging:
            log = self._logs.setdefault(table.number, _Log())
            self._numbers += 1
            part = AcceptedPart(self._numbers, rows, self._now())
            if self._accepted is not None:
                self._accepted.add(table.number, part)
            log.parts.append(part)
            log.rows += rows.columns.num_rows

    def full(self, table: Table) -> bool:
        """Return whether so much waits that it had better be merged before more is accepted."""
        with self._logging:
            log = self._logs.get(table.number)
            return log is not None and log.rows >= _LOG_ROWS

    def merge(self, table: Table) -> None:
        """Merge a table's log into its relation."""
        with self._writing:
            with self._logging:
                log = self._logs.pop(table.number, None)
            if log is None:
                return
            try:
                with self._transaction():
                    for run in _runs(log.parts):
                        rows = pa.concat_tables([part.rows.columns for part in run], promote_options="default")
                        if run[0].rows.changes:
                            self._merge_changes(table, rows, run[0].ingested)
                        else:
                            self._append(table, rows)
                    self._note_merged(table, log.parts[-1].number)
            except BaseException:
                self._put_back(table, log)
                raise
            if self._accepted is not None:
                self._accepted.remove(table.number, log.parts[-1].number)

    def _note_merged(self, table: Table, part: int) -> None:
        if self._accepted is not None:  # in the transaction of the merge, so that no part is ever merged twice
            self._run(f"INSERT OR REPLACE INTO merged VALUES ({table.number}, {part})")

    def _put_back(self, table: Table, log: _Log) -> None:
        with self._logging:
            later = self._logs.setdefault(table.number, _Log())
            later.parts[:0] = log.parts
            later.rows += log.rows

    def empty(self, table: Table) -> bool:
        """Return whether nothing waits."""
        with self._logging:
            return table.number not in self._logs

    def worth_merging(self, table: Table) -> bool:
        """Return whether enough waits, or for long enough: merging a little costs nearly as much as merging a lot."""
        with self._logging:
            log = self._logs.get(table.number)
            if log is None:
                return False
            return log.rows >= _WORTH_ROWS or self._now() - log.parts[0].ingested >= _WORTH_MICROSECONDS

    def query(self, sql: str, fresh: Sequence[Table], beside: Mapping[str, pa.Table]) -> pa.Table:
        """Return the result of a DuckDB query; what was accepted before now for the ``fresh`` tables is in it.

        ``beside`` holds what it reads that is no table, by name.
        """
        with self._writing:
            for table in fresh:
                self.merge(table)
            self._add_functions(sql)
            cursor = self._database.cursor()
        try:
            for name, rows in beside.items():
                cursor.register(name, rows)
            result = cursor.sql(sql)
            rows = result.to_arrow_table()
            return rows.cast(pa.schema(map(_with_metadata, rows.schema, result.types)))
        finally:
            cursor.close()

    def modify(self, sql: str, table: Table, fresh: Sequence[Table], repeated: str = "") -> int:
        """Run a DuckDB statement that changes a table's rows, the ``fresh`` tables being up to date; return how many.

        ApiError, and nothing changed, where a column that must have a value would have none, or where the query
        ``repeated`` finds a row that would be changed more than once.
        """
        with self._writing:
            for read in fresh:
                self.merge(read)
            self._add_functions(sql)
            with self._transaction():
                if repeated and self._run(repeated):
                    raise invalid_query(MORE_THAN_ONCE)
                changed = int(self._run(sql)[0][0])
                self._check_required(table)
            return changed

    def _add_functions(self, sql: str) -> None:
        # Only when it is asked for: with a function in Python an unclosed connection is never collected.
        if not self._functions and any(name in sql.lower() for name in (BIGNUMERIC_OF, *FUNCTIONS)):
            self._database.create_function(BIGNUMERIC_OF, _bignumeric_of, [VARCHAR], BIGNUMERIC.duckdb)
            for name, (function, arguments) in FUNCTIONS.items():
                self._database.create_function(name, function, list(arguments), VARCHAR, null_handling=SPECIAL)
            self._functions = True

    def _check_required(self, table: Table) -> None:
        missing = {column.name: condition for column in table.columns for condition in _missing(column)}
        if not missing:
            return
        sums = ", ".join(f"coalesce(bool_or({condition}), false)" for condition in missing.values())
        found = self._run(f"SELECT {sums} FROM {relation(table)} WHERE {DELETED_AT} IS NULL")[0]
        for name, is_missing in zip(missing, found, strict=True):
            if is_missing:
                raise invalid_query(f"Required field {name} cannot be null")

    def close(self) -> None:
        """Merge nothing more and let go of the database."""
        with self._writing:
            self._database.close()

    def _merge_changes(self, table: Table, rows: pa.Table, ingested: int) -> None:
        keys = [quoted(name) for name in table.primary_key]
        same_key = " AND ".join(f"stored.{key} IS NOT DISTINCT FROM newest.{key}" for key in keys)
        stored = f"{relation(table)} AS stored"
        newer = f"stored.{SEQUENCE_NUMBER} > newest.{SEQUENCE_NUMBER}"
        rows = rows.append_column(_ARRIVAL, pa.array(range(rows.num_rows), pa.int64()))
        self._database.register("incoming", rows)
        # Of one key the highest sequence wins; among equal ones the latest ingested, stored rows being earlier.
        self._run(
            f"CREATE OR REPLACE TEMP TABLE newest AS SELECT * FROM incoming QUALIFY row_number() OVER "
            f"(PARTITION BY {', '.join(keys)} ORDER BY {SEQUENCE_NUMBER} DESC, {_ARRIVAL} DESC) = 1"
        )
        self._database.unregister("incoming")
        self._run(f"DELETE FROM {relation(table)} WHERE {DELETED_AT} <= {ingested - TOMBSTONE_MICROSECONDS}")
        self._run(f"DELETE FROM newest USING {stored} WHERE {same_key} AND {newer}")
        self._run(f"DELETE FROM {stored} USING newest WHERE {same_key}")
        names = [quoted(name) for name in rows.column_names if name not in (DELETED, _ARRIVAL)]
        self._run(
            f"INSERT INTO {relation(table)} ({', '.join(names)}, {DELETED_AT}) "
            f"SELECT {', '.join(names)}, CASE WHEN {DELETED} THEN {ingested} END FROM newest"
        )

    def _append(self, table: Table, rows: pa.Table) -> None:
        self._database.register("incoming", rows)
        self._run(f"INSERT INTO {relation(table)} BY NAME SELECT * FROM incoming")
        self._database.unregister("incoming")

    def _make_view(self, table: Table) -> None:
        if not table.columns:
            return  # a table may be made without a schema; it cannot be read then
        names = ", ".join(_read(column) for column in table.columns)
        self._run(
            f"CREATE OR REPLACE VIEW {view(table)} AS SELECT {names} FROM {relation(table)} WHERE {DELETED_AT} IS NULL"
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._database.execute(sql).fetchall()
        return rows


def _runs(parts: Sequence[AcceptedPart]) -> Iterator[Sequence[AcceptedPart]]:
    """Put neighbours of one kind and about one time together. Their columns may differ: one may have been added."""
    start = 0
    for end in range(1, len(parts) + 1):
        if end == len(parts) or not _together(parts[start], parts[end]):
            yield parts[start:end]
            start = end


def _together(first: AcceptedPart, other: AcceptedPart) -> bool:
    near = other.ingested - first.ingested < _INGESTED_TOGETHER
    return near and first.rows.changes == other.rows.changes


def _read(column: Column) -> str:
    name = quoted(column.name)
    return f"coalesce({name}, []) AS {name}" if column.repeated else name  # BigQuery knows no NULL array, only []


def _bignumeric_of(text: str) -> Mapping[str, bytes]:
    return {UNITS: sortable(decimals.BIGNUMERIC.units(text, rounded=True))}


def _missing(column: Column) -> Iterator[str]:
    """Yield the condition under which a required column has no value, or a required field of a STRUCT."""
    if column.mode == "REQUIRED":
        yield f"{quoted(column.name)} IS NULL"
    fields = [field for field in column.type.fields if field.mode == "REQUIRED"]
    if fields and not column.repeated:
        name = quoted(column.name)
        absent = " OR ".join(f"{name}.{quoted(field.name)} IS NULL" for field in fields)
        yield f"{name} IS NOT NULL AND ({absent})"


def _with_metadata(field: pa.Field, duckdb_type: DuckDBPyType) -> pa.Field:
    """Add the metadata of JSON to what holds it, however deep it lies."""
    if str(duckdb_type) == "JSON":
        return field.with_metadata(JSON_COLUMN)
    if "JSON" not in str(duckdb_type):
        return field
    children: list[Any] = [child for _, child in duckdb_type.children]
    if pa.types.is_list(field.type):
        return field.with_type(pa.list_(_with_metadata(field.type.value_field, children[0])))
    if pa.types.is_struct(field.type):
        return field.with_type(pa.struct(map(_with_metadata, field.type, children)))
    return field


def relation(table: Table) -> str:
    """Return the name of the DuckDB table with the rows."""
    return f"rows_{table.number}"


def view(table: Table) -> str:
    """Return the name of the DuckDB view that queries read."""
    return f"table_{table.number}"


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
