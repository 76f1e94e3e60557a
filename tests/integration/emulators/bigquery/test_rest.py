"""The REST side of the stand-in through the official Python client: DDL, definitions, queries, errors, limits."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import bigquery

from deploy.local.__main__ import rows_of
from deploy.local.platform.target import BigQueryDataset
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from shared.contracts.errors import MisconfiguredError
from tests.builders import a_header, table_definition
from tests.integration.stand_in import EMPLOYEES, PROJECT, StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

KEY = bigquery.SchemaField("k", "INT64")


def definition(stand_in: StandIn, table: str) -> bigquery.Table:
    return stand_in.client.get_table(f"{stand_in.dataset}.{table}")


def a_table(stand_in: StandIn, name: str, columns: list[bigquery.SchemaField], **settings: Any) -> bigquery.Table:
    table = bigquery.Table(f"{PROJECT}.{stand_in.dataset}.{name}", schema=columns)
    for setting, value in settings.items():
        setattr(table, setting, value)
    return table


def primary_key(*columns: str) -> bigquery.table.TableConstraints:
    return bigquery.table.TableConstraints(bigquery.table.PrimaryKey(columns=list(columns)), None)


def test_a_query_of_a_table_that_is_not_there_is_answered_in_bigquerys_words_and_with_the_tables(
    stand_in: StandIn, bigquery_stand_in: tuple[str, str]
) -> None:
    stand_in.run("CREATE TABLE planes (k INT64)")
    with closing(BigQueryDataset(bigquery_stand_in[0], PROJECT, stand_in.dataset)) as dataset:
        with pytest.raises(MisconfiguredError) as refused:
            rows_of(dataset, "SELECT * FROM plains")
        assert rows_of(dataset, "SELECT * FROM planes") == []

    why, tables = refused.value.message.splitlines()
    assert "Not found: Table" in why
    assert "plains" in why
    assert tables == "the tables are: planes"
    assert not any(noise in str(refused.value) for noise in ("404", "http://", "Job ID"))


class TestDefinitions:
    def test_the_documents_create_table_is_taken_as_it_is(self, stand_in: StandIn) -> None:
        stand_in.run(EMPLOYEES)

        table = definition(stand_in, "employees")
        assert [(field.name, field.field_type) for field in table.schema] == [("id", "INTEGER"), ("name", "STRING")]
        assert table.table_constraints is not None
        assert table.table_constraints.primary_key is not None
        assert table.table_constraints.primary_key.columns == ["id"]
        assert table.clustering_fields == ["id"]
        assert table.max_staleness == "0-0 0 0:10:0"

    def test_a_table_made_by_the_client_comes_back_as_it_was_made(self, stand_in: StandIn) -> None:
        columns = [
            bigquery.SchemaField("a", "INT64", mode="REQUIRED", description="first"),
            bigquery.SchemaField("b", "STRING"),
        ]
        settings = {"table_constraints": primary_key("b", "a"), "clustering_fields": ["b", "a"], "description": "two"}
        stand_in.client.create_table(a_table(stand_in, "t", columns, **settings))

        table = definition(stand_in, "t")
        assert [(c.name, c.field_type, c.mode, c.description) for c in table.schema] == [
            ("a", "INTEGER", "REQUIRED", "first"),
            ("b", "STRING", "NULLABLE", None),
        ]
        assert table.table_constraints is not None
        assert table.table_constraints.primary_key is not None
        assert table.table_constraints.primary_key.columns == ["b", "a"]
        assert (table.clustering_fields, table.description) == (["b", "a"], "two")
        assert [listed.table_id for listed in stand_in.client.list_tables(stand_in.dataset)] == ["t"]

    def test_what_exists_is_not_made_again(self, stand_in: StandIn) -> None:
        table = a_table(stand_in, "t", [bigquery.SchemaField("a", "INT64")])
        stand_in.client.create_table(table)

        with pytest.raises(exceptions.Conflict):
            stand_in.client.create_table(table)
        with pytest.raises(exceptions.Conflict):
            stand_in.client.create_dataset(stand_in.dataset)
        assert stand_in.client.create_table(table, exists_ok=True).table_id == "t"

    def test_a_patch_with_an_old_etag_changes_nothing(self, stand_in: StandIn) -> None:
        stand_in.client.create_table(a_table(stand_in, "t", [bigquery.SchemaField("a", "INT64")]))
        one, other = definition(stand_in, "t"), definition(stand_in, "t")
        one.schema = [*one.schema, bigquery.SchemaField("b", "STRING")]
        other.schema = [*other.schema, bigquery.SchemaField("c", "STRING")]

        changed = stand_in.client.update_table(one, ["schema"])
        with pytest.raises(exceptions.PreconditionFailed):
            stand_in.client.update_table(other, ["schema"])

        assert changed.etag != one.etag
        assert [field.name for field in definition(stand_in, "t").schema] == ["a", "b"]

    @pytest.mark.parametrize(
        "columns",
        [
            [bigquery.SchemaField("b", "STRING")],
            [bigquery.SchemaField("a", "STRING")],
            [bigquery.SchemaField("a", "INT64"), bigquery.SchemaField("b", "STRING", mode="REQUIRED")],
        ],
        ids=["a column is missing", "a column has another type", "a new column is required"],
    )
    @pytest.mark.parametrize(
        "of_table",
        [lambda columns: columns, lambda columns: [bigquery.SchemaField("s", "RECORD", fields=columns)]],
        ids=["of the table", "of a record"],
    )
    def test_a_schema_can_only_grow(
        self,
        stand_in: StandIn,
        columns: list[bigquery.SchemaField],
        of_table: Callable[[list[bigquery.SchemaField]], list[bigquery.SchemaField]],
    ) -> None:
        stand_in.client.create_table(a_table(stand_in, "t", of_table([bigquery.SchemaField("a", "INT64")])))
        table = definition(stand_in, "t")
        table.schema = of_table(columns)

        with pytest.raises(exceptions.BadRequest):
            stand_in.client.update_table(table, ["schema"])

    def test_a_patch_of_labels_adds_to_them_and_null_takes_one_off(self, stand_in: StandIn) -> None:
        made = stand_in.client.create_table(a_table(stand_in, "labelled", [KEY], labels={"a": "1", "b": "2"}))
        made.labels = {"b": None, "c": "3"}
        stand_in.client.update_table(made, ["labels"])

        assert definition(stand_in, "labelled").labels == {"a": "1", "c": "3"}

    @pytest.mark.parametrize("labels", [{"A": "x"}, {"1a": "x"}, {"a": "X"}, {"a": "x" * 64}, {"a.b": ""}])
    def test_labels_are_of_few_kinds_of_letters(self, stand_in: StandIn, labels: dict[str, str]) -> None:
        with pytest.raises(exceptions.BadRequest, match="Invalid label"):
            stand_in.client.create_table(a_table(stand_in, "labelled", [KEY], labels=labels))

    def test_what_is_dropped_is_gone(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (a INT64)")
        stand_in.run("DROP TABLE t")

        with pytest.raises(exceptions.NotFound):
            definition(stand_in, "t")
        with pytest.raises(exceptions.NotFound):
            stand_in.run("DROP TABLE t")
        stand_in.run("DROP TABLE IF EXISTS t")
        stand_in.run("CREATE TABLE t (a INT64)")
        with pytest.raises(exceptions.BadRequest):
            stand_in.client.delete_dataset(stand_in.dataset)
        stand_in.client.delete_dataset(stand_in.dataset, delete_contents=True)
        with pytest.raises(exceptions.NotFound):
            stand_in.client.get_dataset(stand_in.dataset)


class TestLimits:
    """BigQuery, "Stream table updates with change data capture", section "Limitations"; "Specifying a schema"."""

    @pytest.mark.parametrize(
        ("most", "settings"),
        [
            (16, lambda names: {"table_constraints": primary_key(*names)}),
            (2000, lambda _names: {}),
            (4, lambda names: {"clustering_fields": names}),
        ],
        ids=["of a primary key", "of a table", "that cluster a table"],
    )
    @pytest.mark.parametrize("more", [0, 1])
    def test_columns_are_limited(
        self, stand_in: StandIn, most: int, settings: Callable[[list[str]], dict[str, Any]], more: int
    ) -> None:
        names = [f"c{number}" for number in range(most + more)]
        columns = [bigquery.SchemaField(name, "INT64") for name in names]
        self.check(stand_in, a_table(stand_in, "t", columns, **settings(names)), taken=not more)

    @pytest.mark.parametrize(
        ("name", "taken"),
        [
            ("_ok9", True),
            ("x" * 300, True),
            ("x" * 301, False),
            ("a.b", False),
            ("", False),
            ("_CHANGE_TYPE", False),
            ("_change_sequence_number", False),
            ("_PARTITIONTIME", False),
            ("__ROOT__x", False),
        ],
    )
    def test_column_names(self, stand_in: StandIn, name: str, taken: bool) -> None:
        self.check(stand_in, a_table(stand_in, "t", [bigquery.SchemaField(name, "INT64")]), taken)

    @pytest.mark.parametrize("name", ["9x", "a-b", "naïve", "a b"])
    def test_flexible_column_names_are_not_served(self, stand_in: StandIn, name: str) -> None:
        """ "Specifying a schema", section "Flexible column names"."""
        with pytest.raises(exceptions.MethodNotImplemented, match="flexible column names"):
            stand_in.client.create_table(a_table(stand_in, "t", [bigquery.SchemaField(name, "INT64")]))

    def test_names_that_differ_in_case_only_are_the_same(self, stand_in: StandIn) -> None:
        columns = [bigquery.SchemaField(name, "INT64") for name in ("Column1", "column1")]
        self.check(stand_in, a_table(stand_in, "t", columns), taken=False)

    @pytest.mark.parametrize(
        "column_type",
        ["FLOAT64", "BYTES", "JSON", "ARRAY<INT64>", "STRUCT<a INT64>", "RANGE<DATE>", "INTERVAL", "TIME"],
    )
    def test_not_every_type_can_be_in_a_key(self, stand_in: StandIn, column_type: str) -> None:
        with pytest.raises(exceptions.BadRequest, match="primary key"):
            stand_in.run(f"CREATE TABLE t (k {column_type}, PRIMARY KEY (k) NOT ENFORCED)")

    @pytest.mark.parametrize("column_type", ["FLOAT64", "BYTES", "JSON"])
    def test_nor_can_every_type_cluster_a_table(self, stand_in: StandIn, column_type: str) -> None:
        table = a_table(stand_in, "t", [bigquery.SchemaField("k", column_type)], clustering_fields=["k"])
        self.check(stand_in, table, taken=False)

    def test_an_enforced_key_is_refused(self, stand_in: StandIn) -> None:
        with pytest.raises(exceptions.BadRequest, match="NOT ENFORCED"):
            stand_in.run("CREATE TABLE t (k INT64 PRIMARY KEY)")

    def check(self, stand_in: StandIn, table: bigquery.Table, taken: bool) -> None:
        if taken:
            stand_in.client.create_table(table)
            return
        with pytest.raises(exceptions.BadRequest):
            stand_in.client.create_table(table)


class TestQueries:
    def test_the_pseudo_columns_cannot_be_selected(self, stand_in: StandIn) -> None:
        """ "Stream table updates with change data capture", section "Limitations"."""
        stand_in.run("CREATE TABLE t (k INT64, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.append("t", {"k": "int64", **CHANGE}, [change("UPSERT", "1", k=1)])

        for name in ("_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER"):
            with pytest.raises(exceptions.BadRequest, match=f"Unrecognized name: {name}"):
                stand_in.run(f"SELECT {name} FROM t")
        assert stand_in.run("SELECT * FROM t") == [(1,)]

    def test_rows_cannot_be_modified_by_sql_where_changes_are_streamed(self, stand_in: StandIn) -> None:
        """ "Stream table updates with change data capture", section "Limitations"."""
        stand_in.run("CREATE TABLE t (k INT64, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.run("INSERT t VALUES (1), (2)")
        stand_in.run("DELETE FROM t WHERE k = 2")
        stand_in.append("t", {"k": "int64", **CHANGE}, [change("UPSERT", "1", k=3)])

        for statement in (
            "DELETE FROM t WHERE true",
            "UPDATE t SET k = 4 WHERE true",
            "TRUNCATE TABLE t",
            "MERGE t USING t AS u ON false WHEN NOT MATCHED THEN INSERT ROW",
        ):
            with pytest.raises(exceptions.BadRequest, match="streamed"):
                stand_in.run(statement)
        assert stand_in.run("SELECT k FROM t ORDER BY k") == [(1,), (3,)]

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM t",
            "UPDATE t SET v = 'y'",
            "INSERT t (v) VALUES ('x')",
            "INSERT t (k, _CHANGE_SEQUENCE_NUMBER) VALUES (2, 'F')",
            "INSERT t (k, _CHANGE_TYPE) VALUES (2, 'DELETE')",
            "UPDATE t SET v = 'y' WHERE _CHANGE_SEQUENCE_NUMBER > '0'",
            "DELETE FROM t WHERE _change_timestamp IS NULL",
        ],
    )
    def test_what_no_table_takes_of_sql(self, stand_in: StandIn, statement: str) -> None:
        """GoogleSQL, "Data manipulation language (DML) statements": a WHERE clause, required columns, known names."""
        stand_in.run("CREATE TABLE t (k INT64 NOT NULL, v STRING)")
        stand_in.run("INSERT t VALUES (1, 'x')")

        with pytest.raises(exceptions.BadRequest):
            stand_in.run(statement)
        assert stand_in.run("SELECT * FROM t") == [(1, "x")]

    def test_a_tables_name_is_limited_in_bytes(self, stand_in: StandIn) -> None:
        """ "Create and use tables", section "Table naming"."""
        stand_in.client.create_table(bigquery.Table(f"{PROJECT}.{stand_in.dataset}.{'é' * 512}"))
        with pytest.raises(exceptions.BadRequest, match="1026 bytes"):
            stand_in.client.create_table(bigquery.Table(f"{PROJECT}.{stand_in.dataset}.{'é' * 513}"))

    def test_parameters_and_what_googlesql_has_of_its_own(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, at TIMESTAMP)")
        stand_in.run("INSERT INTO t (k, at) VALUES (1, TIMESTAMP '2024-04-30 12:00:00+02:00'), (2, NULL)")
        parameters: list[Any] = [
            bigquery.ScalarQueryParameter("k", "INT64", 1),
            bigquery.ArrayQueryParameter("all", "INT64", [1, 2]),
        ]

        assert stand_in.run(
            "SELECT SAFE_CAST('x' AS INT64), at, COUNTIF(k = @k) OVER () FROM t WHERE k IN UNNEST(@all) ORDER BY k",
            query_parameters=parameters,
        ) == [(None, datetime(2024, 4, 30, 10, tzinfo=UTC), 1), (None, None, 1)]
        positional = [bigquery.ScalarQueryParameter(None, "STRING", text) for text in ("a", "b")]
        assert stand_in.run("SELECT ?, ?", query_parameters=positional) == [("a", "b")]

    def test_a_long_result_is_read_in_pages(self, stand_in: StandIn) -> None:
        job = stand_in.client.query("SELECT n FROM UNNEST(GENERATE_ARRAY(1, 45000)) AS n ORDER BY n")

        assert [row["n"] for row in job.result(page_size=7_000)] == list(range(1, 45_001))

    def test_the_pages_of_a_listing_are_of_one_moment(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, PRIMARY KEY (k) NOT ENFORCED)")
        fields = {"k": "int64", **CHANGE}
        stand_in.append("t", fields, [change("UPSERT", "1", k=key) for key in range(10)])

        pages = stand_in.client.list_rows(f"{PROJECT}.{stand_in.dataset}.t", page_size=3, selected_fields=[KEY]).pages
        listed = [row["k"] for row in next(pages)]
        stand_in.append("t", fields, [change("DELETE", "2", k=key) for key in range(5)])
        listed += [row["k"] for page in pages for row in page]

        assert sorted(listed) == list(range(10))

    def test_keys_are_found_in_the_information_schema(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (a INT64, b NUMERIC NOT NULL, PRIMARY KEY (b, a) NOT ENFORCED) CLUSTER BY b")

        assert stand_in.run(
            "SELECT column_name, data_type, is_nullable, clustering_ordinal_position "
            f"FROM {stand_in.dataset}.INFORMATION_SCHEMA.COLUMNS WHERE table_name = 't' ORDER BY ordinal_position"
        ) == [("a", "INT64", "YES", None), ("b", "NUMERIC", "NO", 1)]
        assert stand_in.run(
            f"SELECT column_name FROM {stand_in.dataset}.INFORMATION_SCHEMA.KEY_COLUMN_USAGE ORDER BY ordinal_position"
        ) == [("b",), ("a",)]

    @pytest.mark.parametrize(
        ("statement", "error"),
        [
            ("SELECT * FROM missing", exceptions.NotFound),
            ("SELECT * FROM no_such_dataset.t", exceptions.NotFound),
            ("SELECT * FROM", exceptions.BadRequest),
            ("SELECT nothing", exceptions.BadRequest),
            ("SELECT 1; SELECT 2", exceptions.BadRequest),
            ("MERGE t USING u ON false WHEN NOT MATCHED THEN INSERT ROW", exceptions.NotFound),
        ],
    )
    def test_errors_have_the_form_of_googles_rest_errors(
        self, stand_in: StandIn, statement: str, error: type[exceptions.GoogleAPICallError]
    ) -> None:
        with pytest.raises(error) as raised:
            stand_in.run(statement)

        assert raised.value.errors[0]["reason"] in ("notFound", "invalidQuery", "notImplemented")

    def test_a_path_that_is_not_served_reports_so_as_json(
        self, stand_in: StandIn, bigquery_stand_in: tuple[str, str]
    ) -> None:
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"http://{bigquery_stand_in[0]}/bigquery/v2/projects/p/models", timeout=10)

        assert raised.value.code == 404
        assert json.load(raised.value)["error"]["status"] == "NOT_FOUND"


def test_a_table_takes_its_datasets_expiry_and_a_mirror_is_made_without(stand_in: StandIn) -> None:
    dataset = stand_in.client.get_dataset(stand_in.dataset)
    dataset.default_table_expiration_ms = 3_600_000
    stand_in.client.update_dataset(dataset, ["default_table_expiration_ms"])

    made = stand_in.client.create_table(a_table(stand_in, "other", [KEY]))
    assert made.expires is not None
    assert made.created is not None
    assert (made.expires - made.created).total_seconds() == pytest.approx(3_600, abs=1)

    BigQueryTables(stand_in.client, PROJECT, stand_in.dataset).ensure(table_definition(a_header()))
    assert definition(stand_in, "planes").expires is None
