"""INFORMATION_SCHEMA's views of jobs, by the documents' own queries."""

from collections.abc import Iterator

import pytest

from emulators.bigquery.catalog import TableName
from emulators.bigquery.job_history import APPLIES_AS, PastJob
from emulators.bigquery.statements import run
from emulators.bigquery.warehouse import Warehouse
from tests.monitoring_queries import RECOMMENDED, SLOTS
from tests.unit.emulators.bigquery.warehouses import DEFAULTS, a_warehouse, rows_of

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    with a_warehouse(now=lambda: NOW) as warehouse:
        yield warehouse


def a_job(job_id: str, created: int, ended: int, slot_milliseconds: int) -> PastJob:
    return PastJob("p", job_id, APPLIES_AS, "MERGE", created, ended, slot_milliseconds)


def slots(warehouse: Warehouse) -> list[tuple[int, float]]:
    rows = rows_of(warehouse, SLOTS.replace("REGION", "region-us"))
    return [(round(row["period_start"].timestamp()), row["slots_used"]) for row in rows]


def test_two_background_jobs_of_one_period_are_added_up(warehouse: Warehouse) -> None:
    start = NOW - 600 * SECOND
    warehouse.history.add(a_job("d_cdc_background_1", start, start + 900_000, 60_000))
    warehouse.history.add(a_job("d_cdc_background_2", start, start, 30_000))
    warehouse.history.add(a_job("somebody's query", start, start, 90_000))
    long_ago = start - 8 * 86_400 * SECOND
    warehouse.history.add(a_job("d_cdc_background_old", long_ago, long_ago, 90_000))
    warehouse.history.add(a_job("d_cdc_background_3", start + 60 * SECOND, start + 60 * SECOND, 6_000))

    assert [used for _, used in slots(warehouse)] == [0.1, 1.5]
    [newest, oldest] = [period for period, _ in slots(warehouse)]
    assert newest - oldest == 60


def test_a_long_job_is_spread_over_its_seconds() -> None:
    periods = list(a_job("j", 10 * SECOND + 1, 12 * SECOND + 1, 1_000).periods())

    assert periods == [(10 * SECOND, 334), (11 * SECOND, 333), (12 * SECOND, 333)]


def test_jobs_of_another_project_are_not_seen(warehouse: Warehouse) -> None:
    warehouse.history.add(PastJob("other", "d_cdc_background_1", APPLIES_AS, "MERGE", NOW, NOW, 60_000))

    assert slots(warehouse) == []


def an_apply(table: str, seconds: int, days_ago: int = 0) -> PastJob:
    began = NOW - (days_ago * 86_400 + 3_600) * SECOND
    name = TableName("p", "d", table)
    return PastJob(
        "p", "d_cdc_background_1", APPLIES_AS, "MERGE", began, began + seconds * SECOND, 1_000, destination=name
    )


def test_the_recommended_staleness_is_twice_the_95th_percentile_and_seven_minutes(warehouse: Warehouse) -> None:
    warehouse.history.add(an_apply("once", 90))
    warehouse.history.add(an_apply("once", 3_600, days_ago=8))
    warehouse.history.add(PastJob("p", "somebody's query", "", "SELECT", NOW - 7_200 * SECOND, NOW, 1_000))
    for seconds in range(101):
        warehouse.history.add(an_apply("often", seconds))

    rows = rows_of(warehouse, RECOMMENDED.replace("PROJECT_ID", "p"))

    found = {row["table_id"]: tuple(row.values())[-2:] for row in rows}
    assert found == {"once": (90, 10), "often": (95, 11)}


def test_an_apply_shows_the_bytes_of_the_whole_table_and_a_query_the_tables_that_it_reads(warehouse: Warehouse) -> None:
    for statement in (
        "CREATE SCHEMA d",
        "CREATE TABLE t (id INT64, PRIMARY KEY (id) NOT ENFORCED) OPTIONS (max_staleness = INTERVAL 10 MINUTE)",
        "INSERT INTO t (id) VALUES (1), (2)",
    ):
        run(warehouse, statement, DEFAULTS, {})
    warehouse.apply(warehouse.table(TableName("p", "d", "t")))
    read = run(warehouse, "SELECT a.id FROM t AS a, t AS b", DEFAULTS, {}).read
    warehouse.history.add(PastJob("p", "q", "", "SELECT", NOW, NOW, 5, processed=16, billed=10_485_760, read=read))

    rows = rows_of(
        warehouse,
        "SELECT job_id = 'q' AS asked, total_bytes_processed, total_bytes_billed, referenced.table_id "
        "FROM `region-us`.INFORMATION_SCHEMA.JOBS AS job LEFT JOIN UNNEST(referenced_tables) AS referenced "
        "ORDER BY 1",
    )

    assert [tuple(row.values()) for row in rows] == [(False, 16, 16, None), (True, 16, 10_485_760, "t")]
