"""Elements of an UNNEST beside a table's columns of the same names, and their offsets.

Source: GoogleSQL, "Query syntax", sections "UNNEST operator" (WITH OFFSET counts from zero) and "Range variables".
"""

from collections.abc import Iterator
from typing import Any

import pytest

from emulators.bigquery.warehouse import Warehouse
from tests.unit.emulators.bigquery.warehouses import a_warehouse, rows_of


@pytest.fixture(scope="module")
def warehouse() -> Iterator[Warehouse]:
    with a_warehouse(
        "CREATE SCHEMA d", "CREATE TABLE t (K INT64, N INT64)", "INSERT t VALUES (5, 50), (6, 60)"
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            "SELECT t.N, n FROM UNNEST(GENERATE_ARRAY(0, 1)) AS n JOIN t ON t.K = [5, 6][OFFSET(n)] ORDER BY n",
            [{"N": 50, "n": 0}, {"N": 60, "n": 1}],
        ),
        ("SELECT n, COUNT(*) AS c FROM UNNEST([1, 1]) AS n JOIN t ON TRUE GROUP BY n", [{"n": 1, "c": 4}]),
        ("SELECT N FROM t WHERE EXISTS (SELECT 1 FROM UNNEST([50]) AS e WHERE e = N)", [{"N": 50}]),
        ("SELECT n FROM UNNEST([1]) AS n JOIN t ON EXISTS (SELECT 1 FROM t AS u WHERE u.K > n)", []),
        ("SELECT x.a, t.N FROM t, UNNEST([STRUCT(1 AS a)]) AS x ORDER BY N", [{"a": 1, "N": 50}, {"a": 1, "N": 60}]),
        (
            "SELECT off, e FROM UNNEST(['a', 'b']) AS e WITH OFFSET AS off ORDER BY off",
            [{"off": 0, "e": "a"}, {"off": 1, "e": "b"}],
        ),
        ("SELECT offset FROM UNNEST(['a']) WITH OFFSET", [{"offset": 0}]),
        ("SELECT n, e, t.N FROM UNNEST([5]) AS e WITH OFFSET AS n JOIN t ON t.K = e", [{"n": 0, "e": 5, "N": 50}]),
        (
            "SELECT K, e FROM t LEFT JOIN UNNEST([K, K + 1]) AS e WITH OFFSET AS off ON TRUE WHERE off = 1 ORDER BY K",
            [{"K": 5, "e": 6}, {"K": 6, "e": 7}],
        ),
        ("SELECT ARRAY(SELECT e FROM UNNEST([3, 1]) AS e WITH OFFSET AS o ORDER BY o DESC) AS x", [{"x": [1, 3]}]),
    ],
)
def test_an_element_hides_a_column_of_its_name(warehouse: Warehouse, query: str, rows: list[dict[str, Any]]) -> None:
    assert rows_of(warehouse, query) == rows


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("INT64", ["5", "-9223372036854775808", None]),
        ("STRING", ["", "'", '"\\\n', "é", None]),
        ("DATE", ["2026-11-23", None]),
        ("INT64", []),
    ],
)
def test_an_array_of_parameters_holds_each_value(warehouse: Warehouse, kind: str, values: list[str | None]) -> None:
    resource = {
        "name": "all",
        "parameterType": {"type": "ARRAY", "arrayType": {"type": kind}},
        "parameterValue": {"arrayValues": [{"value": value} for value in values]},
    }
    query = (
        "SELECT CAST(@all[OFFSET(n)] AS STRING) AS v, @all[OFFSET(n)] IN UNNEST(@all) AS there "
        f"FROM UNNEST(GENERATE_ARRAY(0, {len(values) - 1})) AS n ORDER BY n"
    )
    assert rows_of(warehouse, query, [resource]) == [
        {"v": value, "there": None if value is None else True} for value in values
    ]
