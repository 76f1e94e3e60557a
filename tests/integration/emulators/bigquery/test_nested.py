"""RECORD, REPEATED and RANGE through real sockets: made, written, refused, read, widened.

Source: BigQuery, "Introduction to the Storage Write API", section "Data type conversions".
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types

from tests.integration.nested_rows import REPEATED, append, make
from tests.integration.stand_in import PROJECT, StandIn, get_write_stream

pytestmark = pytest.mark.integration


class TestRecords:
    COLUMNS = (
        "s STRUCT<a INT64 NOT NULL, b ARRAY<STRING>, c STRUCT<d DATE, j JSON>>, r ARRAY<STRUCT<n NUMERIC, t TIME>>"
    )
    FIELDS: Mapping[str, Any] = {
        "s": {"a": "int64", REPEATED + "b": "string", "c": {"d": "int32", "j": "string"}},
        REPEATED + "r": {"n": "string", "t": "string"},
    }

    def test_nested_messages_come_back_as_records(self, stand_in: StandIn) -> None:
        make(stand_in, self.COLUMNS)
        rows: list[dict[str, Any]] = [
            {"k": 1, "s": {"a": 5, "b": ["x", "y"], "c": {"d": 0, "j": "[1]"}}, "r": [{"n": "1.5"}, {"t": "12:00:00"}]},
            {"k": 2, "s": {"a": 6}},
            {"k": 3},
        ]

        assert not append(stand_in, self.FIELDS, rows).HasField("error")

        assert stand_in.run("SELECT s, r FROM t ORDER BY k") == [
            (
                {"a": 5, "b": ["x", "y"], "c": {"d": date(1970, 1, 1), "j": [1]}},
                [{"n": Decimal("1.5"), "t": None}, {"n": None, "t": time(12)}],
            ),
            ({"a": 6, "b": [], "c": None}, []),
            (None, []),
        ]

    def test_fields_are_read_by_their_path(self, stand_in: StandIn) -> None:
        make(stand_in, self.COLUMNS)
        append(stand_in, self.FIELDS, [{"k": 1, "s": {"a": 5, "b": ["x"], "c": {"d": 1}}, "r": [{"n": "2"}]}])

        assert stand_in.run(
            "SELECT s.a, s.c.d, t.s.c.d, s.b[OFFSET(0)], r[OFFSET(0)].n FROM t WHERE s.c.d > '1970-01-01'"
        ) == [(5, date(1970, 1, 2), date(1970, 1, 2), "x", Decimal(2))]
        assert stand_in.run("SELECT e.n FROM t, UNNEST(t.r) AS e") == [(Decimal(2),)]

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"s": {"b": ["x"]}}, "Field s.a: value is NULL or missing"),
            ({"s": {"a": 1, "c": {"d": 9_999_999}}}, "Field s.c.d: DATE out of range"),
            ({"s": {"a": 1, "c": {"j": "{"}}}, "Field s.c.j: Invalid JSON value"),
            ({"r": [{"n": "1"}, {"n": "x"}]}, "Field r.n: Invalid NUMERIC value"),
        ],
    )
    def test_what_does_not_fit_is_its_rows_error_with_the_whole_path(
        self, stand_in: StandIn, row: Mapping[str, Any], message: str
    ) -> None:
        make(stand_in, self.COLUMNS)

        answer = append(stand_in, self.FIELDS, [{"k": 1}, {"k": 2, **row}])

        assert [error.index for error in answer.row_errors] == [1]
        assert message in answer.row_errors[0].message
        assert stand_in.run("SELECT * FROM t") == []

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"s": {"a": "string"}}, "mismatched with BigQuery field at Row.s.a"),
            ({"s": "string"}, "mismatched with BigQuery field at Row.s"),
            ({REPEATED + "s": {"a": "int64"}}, "mode REPEATED"),
            ({"r": {"n": "string"}}, "mode OPTIONAL"),
            ({"s": {"a": "int64", "b": "string"}}, "at Row.s.b"),
            ({"s": {"a": "int64", "z": "string"}}, "extra fields: 'z'"),
            ({"s": {"_CHANGE_TYPE": "string"}}, "extra fields"),
        ],
    )
    def test_a_message_that_does_not_fit_is_refused(
        self, stand_in: StandIn, fields: Mapping[str, Any], message: str
    ) -> None:
        make(stand_in, self.COLUMNS)

        answer = append(stand_in, fields, [{"k": 1}])

        assert answer.error.code == 3
        assert message in answer.error.message

    def test_the_official_client_makes_reads_and_describes_records(self, stand_in: StandIn) -> None:
        inner = [bigquery.SchemaField("d", "DATETIME"), bigquery.SchemaField("l", "STRING", mode="REPEATED")]
        schema = [
            bigquery.SchemaField("k", "INTEGER", mode="REQUIRED"),
            bigquery.SchemaField("s", "RECORD", fields=inner, description="one"),
            bigquery.SchemaField("r", "RECORD", mode="REPEATED", fields=inner),
        ]
        made = stand_in.client.create_table(bigquery.Table(f"{PROJECT}.{stand_in.dataset}.t", schema=schema))
        assert stand_in.client.get_table(made.reference).schema == schema

        stand_in.run("INSERT INTO t VALUES (1, STRUCT(DATETIME '2024-01-02 03:04:05', ['x']), [STRUCT(NULL, ['y'])])")

        record = {"d": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None), "l": ["x"]}
        expected = (1, record, [{"d": None, "l": ["y"]}])
        assert stand_in.run("SELECT * FROM t") == [expected]
        assert [tuple(row.values()) for row in stand_in.client.list_rows(made)] == [expected]
        assert stand_in.run(
            "SELECT column_name, data_type FROM INFORMATION_SCHEMA.COLUMNS ORDER BY ordinal_position"
        ) == [
            ("k", "INT64"),
            ("s", "STRUCT<d DATETIME, l ARRAY<STRING>>"),
            ("r", "ARRAY<STRUCT<d DATETIME, l ARRAY<STRING>>>"),
        ]
        paths = stand_in.run(
            "SELECT field_path, data_type FROM INFORMATION_SCHEMA.COLUMN_FIELD_PATHS WHERE column_name = 'r'"
        )
        assert paths == [
            ("r", "ARRAY<STRUCT<d DATETIME, l ARRAY<STRING>>>"),
            ("r.d", "DATETIME"),
            ("r.l", "ARRAY<STRING>"),
        ]
        stream = get_write_stream(stand_in.grpc, stand_in.stream("t"), types.WriteStreamView.FULL)
        described = stream.table_schema.fields[1]
        assert (described.name, [field.name for field in described.fields]) == ("s", ["d", "l"])

    def test_a_field_is_added_while_rows_wait_and_old_rows_have_none(self, stand_in: StandIn) -> None:
        make(stand_in, "s STRUCT<a INT64>, r ARRAY<STRUCT<a INT64>>")
        fields: Mapping[str, Any] = {"s": {"a": "int64"}, REPEATED + "r": {"a": "int64"}}
        append(stand_in, fields, [{"k": 1, "s": {"a": 1}, "r": [{"a": 2}]}])
        table = stand_in.client.get_table(f"{stand_in.dataset}.t")
        added = [bigquery.SchemaField("a", "INTEGER"), bigquery.SchemaField("z", "STRING")]
        table.schema = [
            table.schema[0],
            bigquery.SchemaField("s", "RECORD", fields=added),
            bigquery.SchemaField("r", "RECORD", mode="REPEATED", fields=added),
        ]

        stand_in.client.update_table(table, ["schema"])
        wider: Mapping[str, Any] = {"s": {"z": "string"}}
        assert not append(stand_in, wider, [{"k": 2, "s": {"z": "x"}}]).HasField("error")

        assert stand_in.run("SELECT s, r FROM t ORDER BY k") == [
            ({"a": 1, "z": None}, [{"a": 2, "z": None}]),
            ({"a": None, "z": "x"}, []),
        ]

    @pytest.mark.parametrize(
        "columns",
        ["s STRUCT<a INT64, A STRING>", "s STRUCT<_CHANGE_TYPE STRING>", "s ARRAY<ARRAY<INT64>>", "s STRUCT<INT64>"],
    )
    def test_fields_have_the_rules_of_columns(self, stand_in: StandIn, columns: str) -> None:
        with pytest.raises(exceptions.GoogleAPICallError) as refused:
            make(stand_in, columns)
        assert refused.value.code == 400

    def test_records_are_nested_fifteen_deep_at_most(self, stand_in: StandIn) -> None:
        """BigQuery, "Specify nested and repeated columns in table schemas", section "Limitations"."""
        fifteen = "STRUCT<a " * 15 + "INT64" + ">" * 15
        make(stand_in, f"s {fifteen}")
        with pytest.raises(exceptions.BadRequest, match="nested too deep"):
            stand_in.run(f"CREATE TABLE u (s STRUCT<a {fifteen}>)")


class TestRanges:
    def test_the_documented_example(self, stand_in: StandIn) -> None:
        """ "Introduction to the Storage Write API", section "Data type conversions", row RANGE: f_range_date."""
        make(stand_in, "f_range_date RANGE<DATE>")

        fields = {"f_range_date": {"start": "int32", "end": "int32"}}
        assert not append(stand_in, fields, [{"k": 1, "f_range_date": {"start": 1}}]).HasField("error")

        assert stand_in.run("SELECT f_range_date FROM t") == [({"start": date(1970, 1, 2), "end": None},)]
        assert stand_in.run("SELECT RANGE_START(f_range_date), RANGE_END(f_range_date) FROM t") == [
            (date(1970, 1, 2), None)
        ]

    @pytest.mark.parametrize(
        ("element", "proto", "start", "end", "read"),
        [
            ("DATE", "int64", -1, 1, (date(1969, 12, 31), date(1970, 1, 2))),
            ("TIMESTAMP", "int64", 0, 1, (datetime.fromtimestamp(0, UTC), datetime(1970, 1, 1, 0, 0, 0, 1, UTC))),
            (
                "DATETIME",
                "string",
                "1970-01-01",
                "1970-01-02",
                tuple(datetime(1970, 1, day, tzinfo=UTC).replace(tzinfo=None) for day in (1, 2)),
            ),
        ],
    )
    def test_each_element_type_and_each_bound(
        self, stand_in: StandIn, element: str, proto: str, start: Any, end: Any, read: tuple[Any, Any]
    ) -> None:
        make(stand_in, f"v RANGE<{element}>, l ARRAY<RANGE<{element}>>")
        both = {"start": proto, "end": proto}
        rows: list[dict[str, Any]] = [
            {"k": 1, "v": {"start": start, "end": end}, "l": [{"start": start}, {"end": end}]},
            {"k": 2, "v": {}},
            {"k": 3},
        ]

        assert not append(stand_in, {"v": both, REPEATED + "l": both}, rows).HasField("error")

        assert stand_in.run("SELECT v FROM t ORDER BY k") == [
            ({"start": read[0], "end": read[1]},),
            ({"start": None, "end": None},),
            (None,),
        ]
        assert stand_in.run("SELECT ARRAY_LENGTH(l), v IS NULL FROM t ORDER BY k") == [
            (2, False),
            (0, False),
            (0, True),
        ]
        assert stand_in.client.get_table(f"{stand_in.dataset}.t").schema[1].range_element_type.element_type == element

    @pytest.mark.parametrize(
        ("start", "end", "message"),
        [(1, 1, "must be earlier"), (2, 1, "must be earlier"), (9_999_999, None, "Field v.start: DATE out of range")],
    )
    def test_an_impossible_range_is_its_rows_error(self, stand_in: StandIn, start: int, end: int, message: str) -> None:
        make(stand_in, "v RANGE<DATE>")

        fields = {"v": {"start": "int32", "end": "int32"}}
        answer = append(stand_in, fields, [{"k": 1}, {"k": 2, "v": {"start": start, "end": end}}])

        assert [error.index for error in answer.row_errors] == [1]
        assert message in answer.row_errors[0].message

    @pytest.mark.parametrize(
        "fields",
        [
            {"v": "string"},
            {"v": {"start": "int32"}},
            {"v": {"start": "int32", "end": "int64"}},
            {"v": {"start": "string", "end": "string"}},
            {"v": {"start": "int32", "end": "int32", "more": "int32"}},
            {"v": {"start": "int32", REPEATED + "end": "int32"}},
        ],
    )
    def test_a_message_that_is_no_range_is_refused(self, stand_in: StandIn, fields: Mapping[str, Any]) -> None:
        make(stand_in, "v RANGE<DATE>")

        answer = append(stand_in, fields, [{"k": 1}])

        assert answer.error.code == 3
        assert "mismatched with BigQuery field at Row.v" in answer.error.message

    def test_there_are_ranges_of_three_types(self, stand_in: StandIn) -> None:
        with pytest.raises(exceptions.BadRequest, match="Unsupported element type for RANGE: INT64"):
            make(stand_in, "v RANGE<INT64>")

    def test_ranges_sort_by_start_then_end_unbounded_first_and_last(self, stand_in: StandIn) -> None:
        literals = [
            "[UNBOUNDED, 2020-01-01)",
            "[2020-01-01, 2020-01-02)",
            "[2020-01-01, UNBOUNDED)",
            "[2020-01-02, UNBOUNDED)",
        ]
        values = ", ".join(f"STRUCT(RANGE<DATE> '{text}' AS v)" for text in reversed(literals))

        rows = stand_in.run(f"SELECT e.v FROM UNNEST([{values}]) AS e ORDER BY e.v")

        assert [(str(row[0]["start"]), str(row[0]["end"])) for row in rows] == [
            ("None", "2020-01-01"),
            ("2020-01-01", "2020-01-02"),
            ("2020-01-01", "None"),
            ("2020-01-02", "None"),
        ]
