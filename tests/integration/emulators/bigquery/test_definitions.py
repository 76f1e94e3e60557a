"""What a table may be beyond plain columns: arrays, partitions, keys added later; and views."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from google.api_core import exceptions
from google.cloud import bigquery

from tests.integration.stand_in import PROJECT, StandIn, StorageError, Writing, storage_error
from tests.row_messages import CHANGE, change, row_message

pytestmark = pytest.mark.integration

EPOCH = date(1970, 1, 1)


class TestArrays:
    """BigQuery, "Introduction to the Storage Write API", section "Data type conversions": REPEATED FIELD from array."""

    @pytest.mark.parametrize(
        ("column_type", "proto_type", "sent", "read"),
        [
            ("INT64", "int64", [1, -2, 1 << 62], [1, -2, 1 << 62]),
            ("STRING", "string", ["", "é"], ["", "é"]),
            ("BYTES", "bytes", [b"\x00\xff"], [b"\x00\xff"]),
            ("BOOL", "bool", [True, False], [True, False]),
            ("FLOAT64", "double", [0.5], [0.5]),
            ("FLOAT64", "float", [0.5], [0.5]),
            ("NUMERIC", "string", ["1.5", "-2"], [Decimal("1.5"), Decimal(-2)]),
            ("DATE", "int32", [0], [EPOCH]),
            ("TIMESTAMP", "int64", [1_000_001], [datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)]),
            ("JSON", "string", ['{"a": [1]}', "null"], [{"a": [1]}, None]),
            ("INT64", "enum", [1, 0], [1, 0]),
        ],
    )
    def test_an_array_comes_back_as_it_was_sent(
        self, stand_in: StandIn, column_type: str, proto_type: str, sent: list[Any], read: list[Any]
    ) -> None:
        stand_in.run(f"CREATE TABLE t (k INT64, v ARRAY<{column_type}>, PRIMARY KEY (k) NOT ENFORCED)")
        message = row_message({"k": "int64", "v": proto_type, **CHANGE}, repeated=["v"])
        rows = [change("UPSERT", "1", k=1, v=sent), change("UPSERT", "1", k=2), change("UPSERT", "1", k=3, v=sent[:1])]

        with Writing(stand_in.grpc, stand_in.stream("t"), message) as writing:
            assert not writing.append(rows).HasField("error")

        assert stand_in.run("SELECT v FROM t ORDER BY k") == [(read,), ([],), (read[:1],)]

    def test_an_array_never_set_is_empty_and_so_is_one_of_a_column_added_later(self, stand_in: StandIn) -> None:
        """BigQuery, "Data types", section "Array type": a NULL array is written to a table as an empty one."""
        stand_in.run("CREATE TABLE t (k INT64, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.append("t", {"k": "int64", **CHANGE}, [change("UPSERT", "1", k=1)])
        stand_in.run("ALTER TABLE t ADD COLUMN v ARRAY<STRING>")
        stand_in.append("t", {"k": "int64", **CHANGE}, [change("UPSERT", "1", k=2)])

        assert stand_in.run("SELECT v, ARRAY_LENGTH(v) FROM t") == [([], 0), ([], 0)]

    def test_an_element_that_does_not_fit_is_its_rows_error(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v ARRAY<DATE>, PRIMARY KEY (k) NOT ENFORCED)")
        message = row_message({"k": "int64", "v": "int32", **CHANGE}, repeated=["v"])
        rows = [change("UPSERT", "1", k=key, v=v) for key, v in enumerate([[0, 1], [], [3, 9_999_999], [4]])]

        with Writing(stand_in.grpc, stand_in.stream("t"), message) as writing:
            answer = writing.append(rows)

        assert [error.index for error in answer.row_errors] == [2]
        assert stand_in.run("SELECT * FROM t") == []

    def test_an_array_needs_a_repeated_field(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v ARRAY<INT64>, PRIMARY KEY (k) NOT ENFORCED)")

        answer = stand_in.append("t", {"k": "int64", "v": "int64", **CHANGE}, [change("UPSERT", "1", k=1, v=1)])

        assert "mode" in answer.error.message

    def test_the_client_makes_one_and_finds_it_as_it_was_made(self, stand_in: StandIn) -> None:
        name = f"{PROJECT}.{stand_in.dataset}.t"
        columns = [bigquery.SchemaField("k", "INT64"), bigquery.SchemaField("v", "STRING", mode="REPEATED")]
        table = stand_in.client.create_table(bigquery.Table(name, schema=columns))

        assert [(field.name, field.mode) for field in stand_in.client.get_table(name).schema] == [
            ("k", "NULLABLE"),
            ("v", "REPEATED"),
        ]
        assert stand_in.run(
            f"SELECT data_type, is_nullable FROM {stand_in.dataset}.INFORMATION_SCHEMA.COLUMNS ORDER BY column_name"
        ) == [("INT64", "YES"), ("ARRAY<STRING>", "YES")]
        table.schema = [columns[0], bigquery.SchemaField("v", "STRING")]
        with pytest.raises(exceptions.BadRequest, match="mode"):
            stand_in.client.update_table(table, ["schema"])


class TestPartitions:
    """BigQuery, "Introduction to the Storage Write API", section "Time-unit column partitioning"."""

    def test_rows_far_from_today_are_refused(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, d DATE) PARTITION BY d")
        today = datetime.now(UTC).date()
        near = [today, today - timedelta(days=4 * 365), today + timedelta(days=330)]
        far = [date(2013, 1, 1), today + timedelta(days=396)]
        rows = [{"k": number, "d": (day - EPOCH).days} for number, day in enumerate([*near, *far])]
        fields = {"k": "int64", "d": "int32"}

        refused = stand_in.append("t", fields, rows)
        assert [error.index for error in refused.row_errors] == [3, 4]
        assert stand_in.run("SELECT * FROM t") == []

        assert not stand_in.append("t", fields, [*rows[:3], {"k": 9}]).HasField("error")
        assert stand_in.run("SELECT d FROM t ORDER BY k") == [*[(day,) for day in near], (None,)]

    def test_of_a_datetime_too(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, d DATETIME) PARTITION BY DATETIME_TRUNC(d, DAY)")
        rows = [{"k": 1, "d": f"{datetime.now(UTC):%Y-%m-%d} 12:00:00"}, {"k": 2, "d": "2013-01-01"}]

        assert [error.index for error in stand_in.append("t", {"k": "int64", "d": "string"}, rows).row_errors] == [1]

    @pytest.mark.parametrize(
        ("column_type", "clause", "unit"),
        [
            ("TIMESTAMP", "DATE(at)", "DAY"),
            ("TIMESTAMP", "TIMESTAMP_TRUNC(at, HOUR)", "HOUR"),
            ("DATE", "DATE_TRUNC(at, MONTH)", "MONTH"),
            ("DATE", "at", "DAY"),
            ("DATETIME", "DATETIME_TRUNC(at, DAY)", "DAY"),
        ],
    )
    def test_ddl_and_definition_agree(self, stand_in: StandIn, column_type: str, clause: str, unit: str) -> None:
        stand_in.run(f"CREATE TABLE t (k INT64, at {column_type}) PARTITION BY {clause} CLUSTER BY k")

        table = stand_in.client.get_table(f"{stand_in.dataset}.t")

        assert (table.time_partitioning.type_, table.time_partitioning.field) == (unit, "at")
        table = bigquery.Table(f"{PROJECT}.{stand_in.dataset}.u", schema=table.schema)
        table.time_partitioning = bigquery.TimePartitioning(type_=unit, field="at")
        stand_in.client.create_table(table)
        assert stand_in.client.get_table(table.reference).time_partitioning.type_ == unit

    def test_only_by_a_date_or_a_timestamp_of_the_table(self, stand_in: StandIn) -> None:
        for column in ("k", "missing"):
            with pytest.raises(exceptions.BadRequest, match="partitioning"):
                stand_in.run(f"CREATE TABLE t (k STRING) PARTITION BY {column}")


class TestViews:
    def test_a_view_shows_what_its_query_does(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING, at TIMESTAMP)")
        stand_in.run("INSERT t VALUES (1, 'a', TIMESTAMP '2024-01-01'), (1, 'b', TIMESTAMP '2024-01-02')")
        name = f"`{PROJECT}.{stand_in.dataset}"
        stand_in.run(
            f"CREATE VIEW w AS SELECT *, LEAD(at) OVER (PARTITION BY k ORDER BY at) AS valid_to FROM {name}.t`"
        )
        view = bigquery.Table(f"{PROJECT}.{stand_in.dataset}.current")
        view.view_query = f"SELECT k, v FROM {name}.w` WHERE valid_to IS NULL"
        stand_in.client.create_table(view)

        assert stand_in.run("SELECT w.v FROM w ORDER BY at") == [("a",), ("b",)]
        assert stand_in.run("SELECT * FROM current") == [(1, "b")]
        found = stand_in.client.get_table(view.reference)
        assert (found.table_type, [field.name for field in found.schema]) == ("VIEW", ["k", "v"])
        assert stand_in.run(
            f"SELECT table_name, table_type FROM {stand_in.dataset}.INFORMATION_SCHEMA.TABLES ORDER BY 1"
        ) == [("current", "VIEW"), ("t", "BASE TABLE"), ("w", "VIEW")]

    def test_its_query_can_be_replaced(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE VIEW w AS SELECT 1 AS a")
        stand_in.run("CREATE OR REPLACE VIEW w AS SELECT 2 AS b")
        assert stand_in.run("SELECT b FROM w") == [(2,)]
        view = stand_in.client.get_table(f"{stand_in.dataset}.w")
        view.view_query = "SELECT 3 AS c, 'x' AS d"
        assert [field.name for field in stand_in.client.update_table(view, ["view_query"]).schema] == ["c", "d"]
        assert stand_in.run("SELECT d, c FROM w") == [("x", 3)]

    def test_it_is_no_table(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE VIEW w AS SELECT 1 AS a")

        for statement in ("DROP TABLE w", "ALTER TABLE w ADD COLUMN b INT64", "INSERT w VALUES (1)"):
            with pytest.raises(exceptions.BadRequest, match="not allowed"):
                stand_in.run(statement)
        with pytest.raises(exceptions.NotFound):
            stand_in.run("CREATE VIEW u AS SELECT * FROM missing.t")
        stand_in.run("DROP VIEW w")
        with pytest.raises(exceptions.NotFound):
            stand_in.run("SELECT * FROM w")


class TestColumnsDropped:
    """GoogleSQL reference, "ALTER TABLE DROP COLUMN"."""

    def test_a_column_is_dropped_and_its_name_is_reserved(self, stand_in: StandIn) -> None:
        fields = {"k": "int64", "v": "string", **CHANGE}
        stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        with stand_in.writing("t", fields) as writing:
            writing.append([change("UPSERT", "1", k=1, v="x")])
            stand_in.run("ALTER TABLE t DROP COLUMN v")
            refused = writing.append([change("UPSERT", "2", k=1, v="y")])
        assert storage_error(refused.error.details).code == StorageError.SCHEMA_MISMATCH_EXTRA_FIELDS
        assert stand_in.run("SELECT * FROM t") == [(1,)]
        found = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.t")
        found.schema = [*found.schema, bigquery.SchemaField("V", "INT64")]
        with pytest.raises(exceptions.BadRequest, match="Column `V` was recently deleted in the table `t`") as raised:
            stand_in.client.update_table(found, ["schema"])
        assert raised.value.errors[0]["reason"] == "invalid"
        with pytest.raises(exceptions.BadRequest, match="is reserved for up to the time travel duration"):
            stand_in.run("ALTER TABLE t ADD COLUMN u INT64, ADD COLUMN v INT64")
        stand_in.run("CREATE OR REPLACE TABLE t (k INT64, v INT64)")
        assert stand_in.run("SELECT * FROM t") == []

    @pytest.mark.parametrize("column", ["k", "c", "missing"])
    def test_one_that_is_needed_or_not_there_is_not_dropped(self, stand_in: StandIn, column: str) -> None:
        stand_in.run("CREATE TABLE t (k INT64, c INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED) CLUSTER BY c")

        with pytest.raises(exceptions.BadRequest):
            stand_in.run(f"ALTER TABLE t DROP COLUMN {column}")
        stand_in.run("ALTER TABLE t DROP COLUMN IF EXISTS missing")


class TestTablesWithoutColumns:
    def test_one_can_be_made_and_be_given_columns_later(self, stand_in: StandIn) -> None:
        made = stand_in.client.create_table(bigquery.Table(f"{PROJECT}.{stand_in.dataset}.t"))
        with pytest.raises(exceptions.BadRequest, match="does not have a schema"):
            stand_in.run("SELECT * FROM t")
        made.schema = [bigquery.SchemaField("k", "INT64")]
        stand_in.client.update_table(made, ["schema"])

        assert stand_in.run("SELECT * FROM t") == []


class TestKeysAddedLater:
    """GoogleSQL reference, "ALTER TABLE ADD PRIMARY KEY" and "ALTER TABLE DROP PRIMARY KEY"."""

    FIELDS: ClassVar = {"k": "int64", "v": "string", **CHANGE}

    def test_changes_are_taken_from_the_moment_there_is_a_key(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING)")
        stand_in.append("t", {"k": "int64", "v": "string"}, [{"k": 1, "v": "plain"}, {"k": 2, "v": "plain"}])
        assert "primary key" in stand_in.append("t", self.FIELDS, [change("UPSERT", "1", k=1)]).error.message

        stand_in.run("ALTER TABLE t ADD PRIMARY KEY (k) NOT ENFORCED")

        assert not stand_in.append("t", self.FIELDS, [change("UPSERT", "1", k=1, v="changed")]).HasField("error")
        assert stand_in.run("SELECT * FROM t ORDER BY k") == [(1, "changed"), (2, "plain")]
        constraints = stand_in.client.get_table(f"{stand_in.dataset}.t").table_constraints
        assert constraints is not None
        assert constraints.primary_key is not None
        assert constraints.primary_key.columns == ["k"]

    def test_none_are_taken_from_the_moment_there_is_none_and_what_was_taken_stays(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.append("t", self.FIELDS, [change("UPSERT", "1", k=1, v="kept")])

        stand_in.run("ALTER TABLE t DROP PRIMARY KEY")

        assert "primary key" in stand_in.append("t", self.FIELDS, [change("DELETE", "2", k=1)]).error.message
        assert stand_in.run("SELECT * FROM t") == [(1, "kept")]
        assert stand_in.run(f"SELECT * FROM {stand_in.dataset}.INFORMATION_SCHEMA.KEY_COLUMN_USAGE") == []

    def test_a_connection_that_was_open_before_learns_of_it(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
        with stand_in.writing("t", self.FIELDS) as writing:
            assert not writing.append([change("UPSERT", "1", k=1, v="x")]).HasField("error")
            stand_in.run("ALTER TABLE t DROP PRIMARY KEY")
            assert "primary key" in writing.append([change("UPSERT", "2", k=1, v="y")]).error.message
        assert stand_in.run("SELECT v FROM t") == [("x",)]

    @pytest.mark.parametrize(
        ("statement", "error"),
        [
            ("ALTER TABLE t ADD PRIMARY KEY (k) NOT ENFORCED", exceptions.BadRequest),
            ("ALTER TABLE u ADD PRIMARY KEY (k)", exceptions.BadRequest),
            ("ALTER TABLE u ADD PRIMARY KEY (missing) NOT ENFORCED", exceptions.BadRequest),
            ("ALTER TABLE u ADD PRIMARY KEY (f) NOT ENFORCED", exceptions.BadRequest),
            ("ALTER TABLE u DROP PRIMARY KEY", exceptions.BadRequest),
            ("ALTER TABLE missing DROP PRIMARY KEY", exceptions.NotFound),
        ],
        ids=["there is one", "enforced", "no such column", "a type of no key", "there is none", "no such table"],
    )
    def test_what_is_refused(self, stand_in: StandIn, statement: str, error: type[Exception]) -> None:
        stand_in.run("CREATE TABLE t (k INT64, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.run("CREATE TABLE u (k INT64, f FLOAT64)")

        with pytest.raises(error):
            stand_in.run(statement)

    def test_drop_if_exists_of_a_missing_view_succeeds(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64)")
        stand_in.run("ALTER TABLE t DROP PRIMARY KEY IF EXISTS")


def test_a_columns_description_is_kept(stand_in: StandIn) -> None:
    inner = "STRUCT<b INT64 OPTIONS (description = 'inside')>"
    stand_in.run(f"CREATE TABLE t (a INT64 NOT NULL OPTIONS (description = 'one'), s {inner})")

    schema = stand_in.client.get_table(f"{stand_in.dataset}.t").schema
    assert (schema[0].description, schema[0].mode) == ("one", "REQUIRED")
    assert schema[1].fields[0].description == "inside"


class TestTooManyColumns:
    """BigQuery, "Stream table updates with change data capture", section "Limitations": 2,000 top-level columns."""

    def test_an_alteration_past_them_is_refused_and_changes_nothing(self, stand_in: StandIn) -> None:
        columns = ", ".join(f"c{number} INT64" for number in range(1_998))
        stand_in.run(f"CREATE TABLE t (k INT64, {columns}, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.run("ALTER TABLE t ADD COLUMN the_last INT64")

        with pytest.raises(exceptions.BadRequest, match="at most 2000"):
            stand_in.run("ALTER TABLE t ADD COLUMN one_more INT64")
        table = stand_in.client.get_table(f"{stand_in.dataset}.t")
        table.schema = [*table.schema, bigquery.SchemaField("one_more", "INT64")]
        with pytest.raises(exceptions.BadRequest, match="at most 2000"):
            stand_in.client.update_table(table, ["schema"])

        assert [field.name for field in stand_in.client.get_table(table.reference).schema][1_999:] == ["the_last"]
