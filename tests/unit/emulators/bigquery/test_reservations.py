"""Statements about reservations, and the views that show what they made."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from emulators.bigquery.errors import ApiError
from emulators.bigquery.statements import run
from emulators.bigquery.warehouse import Warehouse
from tests.unit.emulators.bigquery.warehouses import DEFAULTS, a_warehouse, rows_of

# BigQuery, "Stream table updates with change data capture", "Configure a BigQuery reservation for use with CDC".
ASSIGNMENT = """CREATE ASSIGNMENT
  `admin.region-us.cdc.mirrors`
OPTIONS (
  assignee = 'projects/p',
  job_type = 'BACKGROUND');"""
RESERVATION = "CREATE RESERVATION `admin.region-us.cdc` OPTIONS (slot_capacity = 100, ignore_idle_slots = TRUE)"
CAPACITY = "CREATE CAPACITY `admin.region-us.slots` OPTIONS (slot_count = 100, plan = 'ANNUAL')"


@pytest.fixture(scope="module")
def warehouse() -> Iterator[Warehouse]:
    with a_warehouse() as warehouse:
        yield warehouse


def done(warehouse: Warehouse, statement: str) -> tuple[str, str]:
    outcome = run(warehouse, statement, DEFAULTS, {})
    return outcome.statement_type, outcome.operation


def seen(warehouse: Warehouse, columns: str, view: str, region: str = "us") -> list[dict[str, Any]]:
    return rows_of(warehouse, f"SELECT {columns} FROM `admin`.`region-{region}`.INFORMATION_SCHEMA.{view}")


def test_the_documents_assignment_is_made_seen_and_dropped(warehouse: Warehouse) -> None:
    with pytest.raises(ApiError, match=r"Not found: Reservation admin\.region-us\.cdc"):
        done(warehouse, ASSIGNMENT)
    done(warehouse, "DROP CAPACITY IF EXISTS `admin.region-us.slots`")
    assert done(warehouse, CAPACITY) == ("CREATE_CAPACITY", "CREATE")
    assert done(warehouse, RESERVATION) == ("CREATE_RESERVATION", "CREATE")
    assert done(warehouse, ASSIGNMENT) == ("CREATE_ASSIGNMENT", "CREATE")

    [assignment] = seen(warehouse, "*", "ASSIGNMENTS_BY_PROJECT")
    assert assignment == {
        "ddl": ASSIGNMENT.removesuffix(";"),
        "project_id": "admin",
        "project_number": None,
        "assignment_id": "mirrors",
        "reservation_name": "cdc",
        "job_type": "BACKGROUND",
        "assignee_id": "p",
        "assignee_number": None,
        "assignee_type": "project",
    }
    assert seen(warehouse, "assignment_id", "ASSIGNMENTS", region="eu") == []
    assert seen(warehouse, "slot_count, commitment_plan", "CAPACITY_COMMITMENTS") == [
        {"slot_count": 100, "commitment_plan": "ANNUAL"}
    ]
    done(warehouse, "ALTER RESERVATION `admin.region-us.cdc` SET OPTIONS (slot_capacity = 200)")
    assert seen(warehouse, "slot_capacity, ignore_idle_slots", "RESERVATIONS") == [
        {"slot_capacity": 200, "ignore_idle_slots": True}
    ]
    with pytest.raises(ApiError, match="has assignments"):
        done(warehouse, "DROP RESERVATION `admin.region-us.cdc`")
    names = ("ASSIGNMENT `admin.region-us.cdc.mirrors`", "RESERVATION `admin.region-us.cdc`")
    for statement in (*names, "CAPACITY `admin.region-us.slots`"):
        assert done(warehouse, f"DROP {statement}")[1] == "DROP"
        assert done(warehouse, f"DROP {statement.replace(' ', ' IF EXISTS ')}")[1] == "SKIP"
    assert seen(warehouse, "reservation_name", "RESERVATIONS") == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (CAPACITY, "Already Exists"),
        ("DROP CAPACITY `admin.region-us.other`", "Not found"),
        ("ALTER CAPACITY `admin.region-us.other` SET OPTIONS (plan = 'ANNUAL')", "Not found"),
        ("CREATE CAPACITY `admin.slots` OPTIONS (slot_count = 1)", "Invalid name"),
        ("CREATE CAPACITY `admin.region-us.Slots` OPTIONS (slot_count = 1)", "Invalid ID"),
        ("CREATE CAPACITY `admin.region-us.more` OPTIONS (plan = 'FLEX')", "slot_count is required"),
        ("CREATE CAPACITY `admin.region-us.more` OPTIONS (slot_count = 'x')", "another type"),
        ("CREATE CAPACITY `admin.region-us.more` OPTIONS (colour = 'x')", "colour"),
        ("CREATE CAPACITY `admin.region-us.more` OPTIONS (slot_count = )", "Syntax error"),
        ("CREATE CAPACITY `admin.region-us.more` AS JSON '{}'", "Syntax error"),
        ("CREATE ASSIGNMENT `a.region-us.none.x` OPTIONS (assignee = 'p', job_type = 'QUERY')", "Invalid assignee"),
        (
            "CREATE ASSIGNMENT `a.region-us.none.x` OPTIONS (assignee = 'projects/p', job_type = 'X')",
            "Invalid job_type",
        ),
    ],
)
def test_what_is_wrong_is_named(warehouse: Warehouse, statement: str, message: str) -> None:
    if_missing = CAPACITY.replace("CAPACITY", "CAPACITY IF NOT EXISTS")
    done(warehouse, if_missing)
    with pytest.raises(ApiError, match=message):
        done(warehouse, statement)
    assert done(warehouse, if_missing)[1] == "SKIP"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE SEARCH INDEX i ON d.t(ALL COLUMNS)", "does not serve CREATE SEARCH statements"),
        ("CREATE SNAPSHOT TABLE d.u CLONE d.t", "does not serve CREATE SNAPSHOT statements"),
        ("CREATE TABLE d.u CLONE d.t", "does not serve CREATE TABLE CLONE d.t"),
        ("CREATE TABLE d.u COPY d.t", "does not serve CREATE TABLE COPY d.t"),
        ("CREATE TABLE d.u LIKE d.t", "from a list of columns only"),
        ("CREATE TABLE d.u (a INT64) AS SELECT 1 AS a", "a list of columns with AS SELECT"),
        ("CREATE OR REPLACE TABLE d.u AS SELECT 1 AS a", "OR REPLACE"),
        ("CREATE TABLE d.u CLUSTER BY a AS SELECT 1 AS a", "with AS SELECT"),
        ("CREATE TABLE d.u (a INT64 DEFAULT 5)", "does not serve DEFAULT 5"),
        ("CREATE TABLE d.u (a STRING COLLATE 'und:ci')", "COLLATE 'und:ci' of a column: a"),
        ("CREATE TABLE d.u (a INT64 OPTIONS (rounding_mode = 'ROUND_HALF_EVEN'))", "the column option rounding_mode"),
        (
            "CREATE TABLE d.u (a INT64) PARTITION BY RANGE_BUCKET(a, GENERATE_ARRAY(0, 9, 1))",
            "PARTITION BY RANGE_BUCKET",
        ),
        ("ALTER TABLE d.t RENAME TO u", "ALTER TABLE RENAME TO u"),
        ("ALTER TABLE d.t RENAME COLUMN a TO b", "ALTER TABLE RENAME COLUMN a TO b"),
        ("ALTER TABLE d.t ALTER COLUMN a SET DEFAULT 4", "ALTER TABLE ALTER COLUMN a SET DEFAULT 4"),
        ("ALTER SCHEMA d SET OPTIONS (description = 'x')", "ALTER SCHEMA statements"),
        ("SELECT * FROM d.t FOR SYSTEM_TIME AS OF CURRENT_TIMESTAMP()", "FOR SYSTEM_TIME AS OF"),
        ("SELECT * FROM d.t TABLESAMPLE SYSTEM (10 PERCENT)", "TABLESAMPLE SYSTEM (10 PERCENT)"),
        ("CREATE MATERIALIZED VIEW d.v AS SELECT a FROM d.t", "CREATE VIEW with MATERIALIZED"),
        ("DECLARE x INT64", "DECLARE statements"),
        ("CALL d.p()", "CALL statements"),
        ("EXPORT DATA OPTIONS (uri = 'gs://b/o') AS SELECT 1", "EXPORT statements"),
    ],
)
def test_statements_that_are_not_served_name_themselves(warehouse: Warehouse, statement: str, message: str) -> None:
    for made in ("CREATE SCHEMA IF NOT EXISTS d", "CREATE TABLE IF NOT EXISTS d.t (a INT64)"):
        done(warehouse, made)
    with pytest.raises(ApiError) as refused:
        done(warehouse, statement)

    assert refused.value.http_code == 501
    assert message in refused.value.message
    assert rows_of(warehouse, "SELECT table_name FROM d.INFORMATION_SCHEMA.TABLES") == [{"table_name": "t"}]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE d.u (a STRING(10))", "STRING(10) is not a type that this stand-in serves"),
        ("CREATE TABLE d.u (a NUMERIC(10, 2))", "NUMERIC(10, 2) is not a type that this stand-in serves"),
        ("SELECT * FROM `d.t*`", "Not found: Table p:d.t*"),
    ],
)
def test_types_and_names_that_are_not_served_are_unknown(warehouse: Warehouse, statement: str, message: str) -> None:
    done(warehouse, "CREATE SCHEMA IF NOT EXISTS d")
    with pytest.raises(ApiError, match=re.escape(message)):
        done(warehouse, statement)
