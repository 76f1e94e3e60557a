"""max_staleness through real sockets: what a query sees, what moves the watermark, and the monitoring queries.

The examples and queries are those of BigQuery, "Stream table updates with change data capture"; each test names its
section. The clock is the stand-in's, put forward by the test: T20 of the document is twenty minutes after T0.
"""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions

from tests.integration.stand_in import EMPLOYEES, PROJECT, StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

FIELDS = {"id": "int64", "name": "string", **CHANGE}

# Section "Modify the max_staleness option for an existing table".
LONGER = """ALTER TABLE employees
SET OPTIONS (
  max_staleness = INTERVAL 15 MINUTE);"""

# Section "Determine the current max_staleness value of a table".
OPTION = """SELECT
  option_name,
  option_value
FROM
  DATASET_NAME.INFORMATION_SCHEMA.TABLE_OPTIONS
WHERE
  option_name = 'max_staleness'
  AND table_name = 'TABLE_NAME';"""

# Section "Monitor table upsert operation progress".
WATERMARK = """SELECT upsert_stream_apply_watermark
FROM DATASET_NAME.INFORMATION_SCHEMA.TABLES
WHERE table_name = 'TABLE_NAME';"""


@pytest.fixture
def stand_in(stand_in_alone: tuple[str, str]) -> Iterator[StandIn]:
    stand_in = StandIn(stand_in_alone)
    yield stand_in
    stand_in.control("POST", "applies/release")


def employees(stand_in: StandIn) -> list[tuple[Any, ...]]:
    return stand_in.run("SELECT id, name FROM employees ORDER BY id")


def watermark(stand_in: StandIn) -> datetime | None:
    sql = WATERMARK.replace("DATASET_NAME", stand_in.dataset).replace("TABLE_NAME", "employees")
    [(found,)] = stand_in.run(sql)
    assert found is None or isinstance(found, datetime)
    return found


def apply(stand_in: StandIn) -> None:
    table = f"{PROJECT}.{stand_in.dataset}.employees"
    assert stand_in.control("POST", "applies/run", table=table) == {"applied": [table]}


def minutes_pass(stand_in: StandIn, minutes: float) -> None:
    stand_in.control("POST", "clock", seconds=minutes * 60)


def upsert(stand_in: StandIn, key: int, name: str, sequence: str = "1") -> None:
    answer = stand_in.append("employees", FIELDS, [change("UPSERT", sequence, id=key, name=name)])
    assert not answer.HasField("error")


class TestQueries:
    """Section "Query tables with the max_staleness option set"."""

    def test_at_t25_a_query_returns_the_version_of_t20(self, stand_in: StandIn) -> None:
        stand_in.run(EMPLOYEES)
        upsert(stand_in, 1, "before T20")
        apply(stand_in)
        t20 = watermark(stand_in)
        minutes_pass(stand_in, 2)
        upsert(stand_in, 1, "T22", sequence="2")
        upsert(stand_in, 2, "T22")
        minutes_pass(stand_in, 3)

        assert employees(stand_in) == [(1, "before T20")]
        assert [
            row["id"] for row in stand_in.client.list_rows(stand_in.client.get_table(f"{stand_in.dataset}.employees"))
        ] == [1]
        assert watermark(stand_in) == t20

    def test_at_t35_with_the_apply_unfinished_a_query_merges_by_itself_and_moves_no_watermark(
        self, stand_in: StandIn
    ) -> None:
        stand_in.run(EMPLOYEES)
        upsert(stand_in, 1, "before T20")
        apply(stand_in)
        stand_in.control("POST", "applies/hold")
        t20 = watermark(stand_in)
        minutes_pass(stand_in, 2)
        upsert(stand_in, 2, "T22")
        minutes_pass(stand_in, 12)
        upsert(stand_in, 3, "T34")
        minutes_pass(stand_in, 1)

        assert employees(stand_in) == [(1, "before T20"), (2, "T22"), (3, "T34")]
        assert watermark(stand_in) == t20
        upsert(stand_in, 4, "T35")
        assert employees(stand_in)[-1] == (4, "T35")

    def test_the_apply_that_was_held_runs_when_it_may(self, stand_in: StandIn) -> None:
        stand_in.run(EMPLOYEES)
        table = f"{PROJECT}.{stand_in.dataset}.employees"
        stand_in.control("POST", "applies/hold", table=table)
        upsert(stand_in, 1, "T0")
        minutes_pass(stand_in, 15)
        assert employees(stand_in) == [(1, "T0")]
        assert watermark(stand_in) is None

        stand_in.control("POST", "applies/release", table=table)
        deadline = time.monotonic() + 20
        while watermark(stand_in) is None and time.monotonic() < deadline:
            time.sleep(0.05)

        assert watermark(stand_in) is not None

    def test_before_the_first_apply_a_new_table_is_as_it_was_made(self, stand_in: StandIn) -> None:
        stand_in.run(EMPLOYEES)
        upsert(stand_in, 1, "T0")

        assert employees(stand_in) == []
        apply(stand_in)
        assert employees(stand_in) == [(1, "T0")]

    def test_without_the_option_every_query_is_fresh_even_while_no_apply_runs(self, stand_in: StandIn) -> None:
        """Section "Manage table staleness"."""
        stand_in.run("CREATE TABLE employees (id INT64 PRIMARY KEY NOT ENFORCED, name STRING)")
        stand_in.control("POST", "applies/hold")
        for key in range(3):
            upsert(stand_in, key, "x")
            assert len(employees(stand_in)) == key + 1
        assert watermark(stand_in) is None

    def test_zero_is_no_staleness_and_so_is_an_option_taken_away(self, stand_in: StandIn) -> None:
        stand_in.run(EMPLOYEES.replace("10 MINUTE", "0 MINUTE"))
        stand_in.control("POST", "applies/hold")
        upsert(stand_in, 1, "x")
        assert employees(stand_in) == [(1, "x")]
        stand_in.run(LONGER)
        upsert(stand_in, 2, "y")
        assert len(employees(stand_in)) == 1
        stand_in.run("ALTER TABLE employees SET OPTIONS (max_staleness = NULL)")

        assert employees(stand_in) == [(1, "x"), (2, "y")]

    def test_two_tables_of_one_query_are_each_as_stale_as_they_may_be(self, stand_in: StandIn) -> None:
        stand_in.run(EMPLOYEES)
        stand_in.run("CREATE TABLE fresh (id INT64 PRIMARY KEY NOT ENFORCED, name STRING)")
        upsert(stand_in, 1, "x")
        stand_in.append("fresh", FIELDS, [change("UPSERT", "1", id=1, name="y")])

        assert stand_in.run("SELECT f.id, e.id FROM fresh AS f LEFT JOIN employees AS e ON e.id = f.id") == [(1, None)]

    def test_a_delete_counts_as_applied_when_the_watermark_has_passed_it(self, stand_in: StandIn) -> None:
        """Section "Deleted data considerations"."""
        stand_in.run(EMPLOYEES)
        upsert(stand_in, 1, "x")
        apply(stand_in)
        minutes_pass(stand_in, 1)
        stand_in.append("employees", FIELDS, [change("DELETE", "2", id=1)])
        [(streamed,)] = stand_in.run("SELECT CURRENT_TIMESTAMP()")  # by the clock that tests set

        before = watermark(stand_in)
        assert employees(stand_in) == [(1, "x")]
        apply(stand_in)
        after = watermark(stand_in)
        assert employees(stand_in) == []
        assert before is not None
        assert after is not None
        assert before < streamed <= after


class TestMonitoring:
    def test_the_documents_option_is_read_back_by_the_documents_query(self, stand_in: StandIn) -> None:
        """Sections "Determine the current max_staleness value of a table" and "Modify the max_staleness option"."""
        sql = OPTION.replace("DATASET_NAME", stand_in.dataset).replace("TABLE_NAME", "employees")
        stand_in.run(EMPLOYEES)
        assert stand_in.run(sql) == [("max_staleness", "0-0 0 0:10:0")]
        stand_in.run(LONGER)
        assert stand_in.run(sql) == [("max_staleness", "0-0 0 0:15:0")]
        with pytest.raises(exceptions.NotFound):
            stand_in.run(LONGER.replace("employees", "missing"))

    def test_the_watermark_is_null_before_the_first_apply_and_moves_on_by_the_stand_ins_clock(
        self, stand_in: StandIn
    ) -> None:
        """Section "Monitor table upsert operation progress"."""
        stand_in.run(EMPLOYEES)
        upsert(stand_in, 1, "x")
        assert watermark(stand_in) is None
        apply(stand_in)
        first = watermark(stand_in)
        minutes_pass(stand_in, 60)
        apply(stand_in)
        second = watermark(stand_in)

        assert first is not None
        assert second is not None
        assert second - first >= timedelta(minutes=60)

    def test_applies_are_jobs_of_the_admin_bot(self, stand_in: StandIn) -> None:
        """Section "Monitor table upsert operation progress"."""
        stand_in.run(EMPLOYEES)
        upsert(stand_in, 1, "x")
        apply(stand_in)

        users = stand_in.run(
            "SELECT DISTINCT user_email, job_type, total_slot_ms > 0 "
            "FROM `region-us`.INFORMATION_SCHEMA.JOBS_BY_PROJECT "
            f"WHERE job_id LIKE '%cdc_background%' AND destination_table.dataset_id = '{stand_in.dataset}'"
        )
        assert users == [("bigquery-adminbot@system.gserviceaccount.com", "QUERY", True)]
        [(asked,)] = stand_in.run(
            "SELECT COUNT(*) FROM `region-us`.INFORMATION_SCHEMA.JOBS WHERE query LIKE '%a query to look for%'"
        )
        assert asked == 0, "a query does not see itself, for it has not ended"
        stand_in.run("SELECT 'a query to look for'")
        jobs = "SELECT COUNT(*) FROM region-us.INFORMATION_SCHEMA.JOBS WHERE query = \"SELECT 'a query to look for'\""
        assert stand_in.run(jobs) == [(1,)]
