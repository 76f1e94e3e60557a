"""Values of the types beyond the simplest in statements, as parameters, in views, as partitions and as keys.

Source: BigQuery, "Data types" and "Lexical structure and syntax", section "Literals".
"""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import bigquery

from tests.integration.nested_rows import make
from tests.integration.stand_in import PROJECT, StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration


class TestLiterals:
    @pytest.mark.parametrize(
        ("expression", "value"),
        [
            ("BIGNUMERIC '1.5'", Decimal("1.5")),
            ("CAST(-2 AS BIGNUMERIC)", Decimal(-2)),
            ("BIGNUMERIC '1.50' = BIGNUMERIC '1.5'", True),
            ("BIGNUMERIC '-3' < BIGNUMERIC '2'", True),
            ("DATETIME '2024-01-02T03:04:05'", "2024-01-02 03:04:05"),
            ("DATETIME_TRUNC(DATETIME '2024-01-02T03:04:05', DAY)", "2024-01-02 00:00:00"),
            ("DATETIME_ADD(DATETIME '2024-01-31', INTERVAL 1 MONTH)", "2024-02-29 00:00:00"),
            ("DATETIME(2024, 1, 2, 3, 4, 5)", "2024-01-02 03:04:05"),
            ("DATETIME(TIMESTAMP '2024-01-02 03:04:05+00')", "2024-01-02 03:04:05"),
            ("TIMESTAMP(DATETIME '2024-01-02 03:04:05')", "2024-01-02 03:04:05+00:00"),
            ("DATETIME_TRUNC(DATETIME_ADD(DATETIME '2024-01-31', INTERVAL 1 MONTH), MONTH)", "2024-02-01 00:00:00"),
            ("TIMESTAMP_TRUNC(TIMESTAMP(DATETIME '2024-01-02T03:04:05'), DAY)", "2024-01-02 00:00:00+00:00"),
            ("TIMESTAMP_SECONDS(1)", "1970-01-01 00:00:01+00:00"),
            ("DATETIME_DIFF(DATETIME '2024-01-02', DATETIME '2024-01-01', HOUR)", 24),
            ("EXTRACT(HOUR FROM DATETIME '2024-01-02T03:04:05')", 3),
            ("TIME '12:34:56.5'", time(12, 34, 56, 500_000)),
            ("ST_ASTEXT(ST_GEOGFROMTEXT('point(1 2)'))", "POINT(1 2)"),
            ('ST_GEOGFROMGEOJSON(\'{"type": "Point", "coordinates": [1, 2]}\')', "POINT(1 2)"),
            ("RANGE(DATE '2024-01-01', NULL)", {"start": date(2024, 1, 1), "end": None}),
            ("RANGE_END(RANGE<DATETIME> '[2024-01-01, 2024-01-02)')", "2024-01-02 00:00:00"),
            ("STRUCT(1 AS a, [STRUCT('x' AS b)] AS c)", {"a": 1, "c": [{"b": "x"}]}),
            ("[JSON '1'][OFFSET(0)]", 1),
            ("STRING_AGG(['a', 'b'][OFFSET(n)] || ['a', 'b'][ORDINAL(n + 1)]) FROM UNNEST([0, 1]) AS n", "aa,bb"),
            ("[5, 6, 7][SAFE_OFFSET(n)] FROM UNNEST([2]) AS n", 7),
            ("CAST('1.5' || '0' AS BIGNUMERIC)", Decimal("1.5")),
            ("CAST(1 / 4 AS BIGNUMERIC)", Decimal("0.25")),
            ("SAFE_CAST(x AS BIGNUMERIC) FROM UNNEST(['NaN']) AS x", None),
            ("SAFE_CAST(x AS BIGNUMERIC) FROM UNNEST(['1e-39']) AS x", Decimal(0)),
            ("SAFE_CAST('x' AS BIGNUMERIC)", None),
            ("SAFE_CAST('2024-02-30' AS DATETIME)", None),
            ("SAFE_CAST('1' AS BIGNUMERIC)", Decimal(1)),
            ("CAST(DATETIME '2024-01-02 03:04:05' AS STRING)", "2024-01-02 03:04:05"),
            ("CAST(DATE '2024-01-02' AS STRING)", "2024-01-02"),
        ],
    )
    def test_a_value_in_a_statement(self, stand_in: StandIn, expression: str, value: Any) -> None:
        [(read,)] = stand_in.run(f"SELECT {expression}")
        assert (str(read) if isinstance(read, datetime) else read) == value

    @pytest.mark.parametrize(
        "interval",
        [
            "INTERVAL '1-2 3 4:5:6.5' YEAR TO SECOND",
            "CAST('1-2 3 4:5:6.5' AS INTERVAL)",
            "INTERVAL '14 3' MONTH TO DAY + INTERVAL '4:5:6.5' HOUR TO SECOND",
        ],
    )
    def test_an_interval(self, stand_in: StandIn, interval: str) -> None:
        [(read,)] = stand_in.run(f"SELECT {interval}")
        parts = (read.years, read.months, read.days, read.hours, read.minutes, read.seconds, read.microseconds)
        assert parts == (1, 2, 3, 4, 5, 6, 500_000)

    @pytest.mark.parametrize(
        "expression",
        [
            "DATETIME '2024-02-30'",
            "DATETIME '2024-01-01 00:00:00+01'",
            "TIME '25:00:00'",
            "BIGNUMERIC 'x'",
            "RANGE<DATE> '[2024-01-02, 2024-01-01)'",
            "RANGE<DATE> '2024-01-02'",
            "INTERVAL '1' YEAR TO MONTH",
            "ST_GEOGFROMTEXT('POINT(1)')",
            "BIGNUMERIC '1' + BIGNUMERIC '1'",
            "BIGNUMERIC '1' = 1",
            "CAST('x' || '' AS BIGNUMERIC)",
            "CAST(BIGNUMERIC '1' AS STRING)",
            "CAST(STRUCT(1 AS a) AS STRING)",
            "CAST([1] AS STRING)",
        ],
    )
    def test_what_is_none_or_not_served_is_refused(self, stand_in: StandIn, expression: str) -> None:
        with pytest.raises(exceptions.BadRequest):
            stand_in.run(f"SELECT {expression}")

    def test_query_parameters(self, stand_in: StandIn) -> None:
        moment = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None)
        asked: list[Any] = [("DATETIME", moment), ("TIME", time(1, 2, 3)), ("BIGNUMERIC", Decimal("1.5"))]
        parameters = [bigquery.ScalarQueryParameter(None, kind, value) for kind, value in asked]

        assert stand_in.run("SELECT ?, ?, ?", query_parameters=parameters) == [tuple(value for _, value in asked)]


def test_a_view_has_the_types_of_its_query(stand_in: StandIn) -> None:
    make(stand_in, "s STRUCT<d DATETIME, j JSON>, g GEOGRAPHY, b BIGNUMERIC, r RANGE<TIMESTAMP>, i INTERVAL")
    stand_in.run(f"CREATE VIEW v AS SELECT s, g, b, r, i, s.d FROM `{PROJECT}.{stand_in.dataset}.t`")

    table, view = (stand_in.client.get_table(f"{stand_in.dataset}.{name}") for name in ("t", "v"))

    assert [field.field_type for field in view.schema] == [
        "RECORD",
        "GEOGRAPHY",
        "BIGNUMERIC",
        "RANGE",
        "INTERVAL",
        "DATETIME",
    ]
    assert view.schema[0].fields == table.schema[1].fields


def test_keys_of_the_new_types_find_their_rows(stand_in: StandIn) -> None:
    stand_in.run("CREATE TABLE t (b BIGNUMERIC, d DATETIME, g GEOGRAPHY, v INT64, PRIMARY KEY (b, d, g) NOT ENFORCED)")
    fields = {"b": "string", "d": "string", "g": "string", "v": "int64", **CHANGE}
    stand_in.append("t", fields, [change("UPSERT", "1", b="1.50", d="2024-01-01", g="POINT(1 2)", v=1)])
    stand_in.append("t", fields, [change("UPSERT", "2", b="1.5", d="2024-1-1 0:0:0", g="point (1.0 2)", v=2)])

    assert stand_in.run("SELECT v FROM t") == [(2,)]
