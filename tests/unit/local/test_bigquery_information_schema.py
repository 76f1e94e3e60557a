"""INFORMATION_SCHEMA's views of jobs, by the documents' own query."""

from collections.abc import Iterator

import pytest

from deploy.local.bigquery.job_history import APPLIES_AS, PastJob
from deploy.local.bigquery.sql import Defaults
from deploy.local.bigquery.statements import run
from deploy.local.bigquery.warehouse import Warehouse

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND

# BigQuery, "Stream table updates with change data capture", section "Size and monitor BACKGROUND reservations".
SLOTS = """SELECT
  period_start,
  SUM(period_slot_ms) / (1000 * 60) AS slots_used
FROM
  REGION.INFORMATION_SCHEMA.JOBS_TIMELINE_BY_PROJECT
WHERE
  DATE(job_creation_time) BETWEEN DATE_SUB(CURRENT_DATE(), INTERVAL 7 DAY)
  AND CURRENT_DATE()
  AND job_id LIKE '%cdc_background%'
GROUP BY
  period_start
ORDER BY
  period_start DESC;"""


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
    warehouse.history.add(a_job("d_cdc_background_old", start - 8 * 86_400 * SECOND, start, 90_000))
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
