"""What a query reads, is billed for and may answer with; and tables made from a query."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from emulators.bigquery.catalog import TableName
from emulators.bigquery.errors import ApiError
from emulators.bigquery.rest_jobs import Jobs
from emulators.bigquery.statements import run
from emulators.bigquery.warehouse import Warehouse
from tests.unit.emulators.bigquery.warehouses import DEFAULTS, Clock, a_warehouse

MIB = 1 << 20


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warehouse(clock: Clock) -> Iterator[Warehouse]:
    with a_warehouse(
        "CREATE SCHEMA d",
        "CREATE TABLE t (k INT64, v STRING, n NUMERIC, a ARRAY<STRING>, s STRUCT<x INT64, y STRING>)",
        "INSERT INTO t (k, v, n, a, s) VALUES (1, 'abc', NUMERIC '1.5', ['x', 'yz'], (1, 'z')), "
        "(2, 'ü', NULL, [], NULL), (3, NULL, NULL, NULL, (NULL, ''))",
        now=clock.now,
    ) as warehouse:
        yield warehouse


@pytest.fixture
def jobs(warehouse: Warehouse) -> Jobs:
    return Jobs(warehouse)


def asked(jobs: Jobs, sql: str, **options: Any) -> Mapping[str, Any]:
    request = {"query": sql, "useLegacySql": False, "defaultDataset": {"projectId": "p", "datasetId": "d"}}
    return jobs.query("p", {**request, **options})


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("SELECT k FROM t", 24),
        ("SELECT v FROM t WHERE k = 1", 24 + 9),
        ("SELECT v FROM t", 5 + 4),
        ("SELECT n FROM t", 16),
        ("SELECT a FROM t", 3 + 4),
        ("SELECT s FROM t", 8 + 3 + 2),
        ("SELECT COUNT(*) FROM t", 0),
        ("SELECT COUNT(*) FROM t AS u WHERE u.k > 1", 24),
        ("SELECT * FROM t LIMIT 1", 24 + 9 + 16 + 7 + 13),
        ("SELECT k FROM t UNION ALL (SELECT k FROM t LIMIT 1)", 24),
        ("SELECT u.k FROM UNNEST([1, 2]) AS p JOIN t AS u ON u.k = p", 24),
        ("SELECT 1", 0),
    ],
)
def test_a_dry_run_reports_the_logical_bytes_of_the_columns_that_a_query_names(jobs: Jobs, sql: str, read: int) -> None:
    """BigQuery, "Data types", section "Data type sizes"."""
    assert asked(jobs, sql, dryRun=True)["totalBytesProcessed"] == str(read)


def test_a_query_is_billed_ten_mebibytes_of_each_table_at_least(jobs: Jobs, warehouse: Warehouse) -> None:
    run(warehouse, "CREATE TABLE u (k INT64)", DEFAULTS, {})
    run(warehouse, "INSERT INTO u (k) VALUES (1)", DEFAULTS, {})

    answer = asked(jobs, "SELECT t.k FROM t JOIN u ON t.k = u.k")

    assert (answer["totalBytesProcessed"], answer["totalBytesBilled"]) == ("32", str(20 * MIB))
    statistics = jobs.get("p", answer["jobReference"]["jobId"])["statistics"]
    assert statistics["totalBytesProcessed"] == "32"
    assert statistics["query"]["totalBytesBilled"] == str(20 * MIB)
    assert asked(jobs, "SELECT COUNT(*) FROM t")["totalBytesBilled"] == "0"


def test_a_query_beyond_its_limit_of_bytes_is_refused_and_not_run(jobs: Jobs) -> None:
    with pytest.raises(ApiError) as refused:
        asked(jobs, "SELECT k FROM t", maximumBytesBilled=str(10 * MIB - 1))
    assert refused.value.message == "Query exceeded limit for bytes billed: 10485759. 10485760 or higher required."
    assert (refused.value.reason, refused.value.http_code) == ("bytesBilledLimitExceeded", 500)
    assert jobs.list("p", {})["jobs"] == []

    assert asked(jobs, "SELECT k FROM t", maximumBytesBilled=str(10 * MIB))["totalRows"] == "3"
    configuration = {"query": {"query": "SELECT k FROM d.t", "useLegacySql": False, "maximumBytesBilled": "1"}}
    with pytest.raises(ApiError, match="10485760 or higher required"):
        jobs.insert("p", {"configuration": configuration})


def test_an_answer_beyond_the_limit_is_refused_and_a_table_takes_it(jobs: Jobs, warehouse: Warehouse) -> None:
    """BigQuery, "Quotas and limits", query jobs: no limit where a destination table is named."""
    warehouse.response_bytes = 10
    with pytest.raises(ApiError, match="Response too large to return") as refused:
        asked(jobs, "SELECT k FROM t")
    assert (refused.value.reason, refused.value.http_code) == ("responseTooLarge", 403)

    answer = asked(jobs, "CREATE TABLE copy AS SELECT k, v FROM t WHERE k < @most", queryParameters=[MOST])

    done = jobs.get("p", answer["jobReference"]["jobId"])["statistics"]["query"]
    assert (done["ddlOperationPerformed"], done["ddlTargetTable"]["tableId"]) == ("CREATE", "copy")
    assert done["statementType"] == "CREATE_TABLE_AS_SELECT"
    assert (answer["totalBytesProcessed"], answer["totalBytesBilled"]) == ("33", str(10 * MIB))
    copy = TableName("p", "d", "copy")
    assert warehouse.count_rows(warehouse.table(copy)) == 2
    assert len(jobs.results("p", jobs.listing(copy, ["k"]), {})["rows"]) == 2, "a listing has no limit"


def test_a_request_beyond_the_limit_is_refused(jobs: Jobs) -> None:
    """BigQuery, "Quotas and limits", query jobs: 10 MB, parameters included."""
    long = {"name": "s", "parameterType": {"type": "STRING"}, "parameterValue": {"value": "x" * (10 << 20)}}
    with pytest.raises(ApiError, match="Request payload size exceeds the limit"):
        asked(jobs, "SELECT @s", queryParameters=[long])


MOST = {"name": "most", "parameterType": {"type": "INT64"}, "parameterValue": {"value": "3"}}


def test_a_table_of_a_query_has_its_columns_rows_and_expiry(jobs: Jobs, warehouse: Warehouse, clock: Clock) -> None:
    text = (
        "CREATE TABLE copy OPTIONS (expiration_timestamp = TIMESTAMP '2023-11-15 22:13:20.5+00:00') AS SELECT * FROM t"
    )
    asked(jobs, text)

    made = warehouse.table(TableName("p", "d", "copy"))
    kinds = [(column.name, column.data_type) for column in made.columns]
    assert kinds == [
        ("k", "INT64"),
        ("v", "STRING"),
        ("n", "NUMERIC"),
        ("a", "ARRAY<STRING>"),
        ("s", "STRUCT<x INT64, y STRING>"),
    ]
    assert made.properties["expirationTime"] == "1700086400500"
    copied, rows = (asked(jobs, f"SELECT * FROM {name} ORDER BY k")["rows"] for name in ("copy", "t"))
    assert copied == rows
    assert len(rows) == 3
    with pytest.raises(ApiError, match="Already Exists"):
        asked(jobs, text)
    asked(jobs, text.replace("TABLE copy", "TABLE IF NOT EXISTS copy"))

    clock.micros += 86_400_499_999
    warehouse.drop_expired()
    assert warehouse.table(made.name) == made
    clock.micros += 1
    warehouse.drop_expired()
    with pytest.raises(ApiError, match="Not found"):
        warehouse.table(made.name)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("CREATE TABLE u AS SELECT k, k FROM t", "Duplicate column names"),
        ("CREATE TABLE u AS SELECT k + 1 FROM t", "CREATE TABLE columns must be named"),
        ("CREATE TABLE u (k INT64) AS SELECT k FROM t", "does not serve"),
        ("CREATE TEMP TABLE u AS SELECT k FROM t", "requires a script or session"),
        ("CREATE TABLE u AS SELECT missing FROM t", "missing"),
    ],
)
def test_a_table_of_what_is_no_query_for_it_is_not_made(jobs: Jobs, warehouse: Warehouse, sql: str, why: str) -> None:
    with pytest.raises(ApiError, match=why):
        asked(jobs, sql)
    with pytest.raises(ApiError, match="Not found"):
        warehouse.table(TableName("p", "d", "u"))


def test_one_table_of_a_query_is_made_however_many_ask_at_once(jobs: Jobs, warehouse: Warehouse) -> None:
    refused: list[str] = []

    def make() -> None:
        try:
            asked(jobs, "CREATE TABLE copy AS SELECT k FROM t")
        except ApiError as error:
            refused.append(error.reason)

    threads = [threading.Thread(target=make) for _again in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert refused == ["duplicate"] * 3
    assert warehouse.count_rows(warehouse.table(TableName("p", "d", "copy"))) == 3
