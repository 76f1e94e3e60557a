"""INFORMATION_SCHEMA's views of jobs, by the documents' own queries."""

from collections.abc import Iterator

import pytest

from emulators.bigquery.catalog import TableName
from emulators.bigquery.job_history import APPLIES_AS, PastJob
from emulators.bigquery.sql import Defaults
from emulators.bigquery.statements import run
from emulators.bigquery.warehouse import Warehouse
from tests.monitoring_queries import RECOMMENDED, SLOTS

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    warehouse = Warehouse(lambda: NOW)
    yield warehouse
    warehouse.close()


def a_job(job_id: str, created: int, ended: int, slot_milliseconds: int) -> PastJob:
    return PastJob("p", job_id, APPLIES_AS, "MERGE", created, ended, slot_milliseconds)


def slots(warehouse: Warehouse) -> list[tuple[int, float]]:
    rows = run(warehouse, SLOTS.replace("REGION", "region-us"), Defaults("p"), {}).rows
    assert rows is not None
    return [(round(row["period_start"].timestamp()), row["slots_used"]) for row in rows.to_pylist()]


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

    rows = run(warehouse, RECOMMENDED.replace("PROJECT_ID", "p"), Defaults("p"), {}).rows

    assert rows is not None
    found = {row["table_id"]: tuple(row.values())[-2:] for row in rows.to_pylist()}
    assert found == {"once": (90, 10), "often": (95, 11)}
