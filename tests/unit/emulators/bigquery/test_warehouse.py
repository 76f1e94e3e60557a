"""Rows on their way in while their table is altered."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from emulators.bigquery.append_errors import AppendRefusedError
from emulators.bigquery.catalog import TIME_TRAVEL, Table, TableName
from emulators.bigquery.column_types import Column, column_type
from emulators.bigquery.errors import ApiError
from emulators.bigquery.rows import DELETED, Rows
from emulators.bigquery.statements import run
from emulators.bigquery.warehouse import Warehouse
from emulators.bigquery.writer_schema import SEQUENCE_NUMBER
from tests.unit.emulators.bigquery.warehouses import DEFAULTS, Clock, a_warehouse, value_of


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    with a_warehouse("CREATE SCHEMA d") as warehouse:
        yield warehouse


@pytest.fixture
def table(warehouse: Warehouse) -> Table:
    columns = (Column("k", column_type("INT64")), Column("v", column_type("STRING")))
    return warehouse.create_table(Table(TableName("p", "d", "t"), columns, primary_key=("k",)))


def rows(key: int) -> Rows:
    columns = {
        "k": pa.array([key], pa.int64()),
        "v": pa.array(["x"], pa.string()),
        SEQUENCE_NUMBER: pa.array(["0" * 64], pa.string()),
        DELETED: pa.array([False], pa.bool_()),
    }
    return Rows(pa.table(columns), changes=True)


def count(warehouse: Warehouse) -> int:
    return int(value_of(warehouse, "SELECT COUNT(*) FROM t"))


@pytest.mark.parametrize("statement", ["ALTER TABLE t DROP COLUMN v", "ALTER TABLE t DROP PRIMARY KEY"])
def test_rows_read_for_what_has_gone_are_refused_and_those_accepted_before_are_kept(
    warehouse: Warehouse, table: Table, statement: str
) -> None:
    warehouse.append(table, rows(1))
    run(warehouse, statement, DEFAULTS, {})

    with pytest.raises(AppendRefusedError):
        warehouse.append(table, rows(2))
    assert count(warehouse) == 1


def test_rows_read_before_a_column_was_added_are_taken(warehouse: Warehouse, table: Table) -> None:
    run(warehouse, "ALTER TABLE t ADD COLUMN w STRING", DEFAULTS, {})
    warehouse.append(table, rows(1))

    assert count(warehouse) == 1


def test_the_name_of_a_dropped_column_is_reserved_for_seven_days(tmp_path: Path) -> None:
    clock, add = Clock(), "ALTER TABLE t ADD COLUMN v INT64"
    drop = "ALTER TABLE t DROP COLUMN v, DROP COLUMN IF EXISTS w"
    first = Warehouse(clock.now, tmp_path)
    for statement in ("CREATE SCHEMA d", "CREATE TABLE t (k INT64, v STRING)", drop):
        run(first, statement, DEFAULTS, {})
    first.close()
    again = Warehouse(clock.now, tmp_path)
    run(again, "ALTER TABLE t ADD COLUMN w INT64", DEFAULTS, {})
    clock.micros += TIME_TRAVEL - 1
    with pytest.raises(ApiError, match="recently deleted"):
        run(again, add, DEFAULTS, {})
    clock.micros += 1
    run(again, add, DEFAULTS, {})

    assert [column.name for column in again.table(TableName("p", "d", "t")).columns] == ["k", "w", "v"]
    again.close()


def test_rows_of_a_merge_that_failed_are_not_lost(warehouse: Warehouse, table: Table) -> None:
    warehouse.append(table, rows(1))
    other = pa.table({**dict(zip(rows(2).columns.column_names, rows(2).columns.columns, strict=True)), "odd": [1]})
    warehouse.storage.accept(table, Rows(other, changes=True))
    with pytest.raises(Exception, match="odd"):
        warehouse.storage.merge(table)
    warehouse.storage.alter(table, table.changed(1, columns=(*table.columns, Column("odd", column_type("INT64")))))

    assert count(warehouse) == 2
