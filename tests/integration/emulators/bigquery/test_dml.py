"""DML through real sockets: MERGE in all its clauses, required columns, one source row for each target row.

Source: GoogleSQL, "Data manipulation language (DML) statements in GoogleSQL".
"""

from typing import Any

import pytest
from google.api_core import exceptions

from tests.integration.stand_in import StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(stand_in: StandIn) -> StandIn:
    """Make the tables of the documented examples of MERGE."""
    for table in ("Inventory", "NewArrivals", "DetailedInventory"):
        more = ", supply_constrained BOOL, comments STRING" if table == "DetailedInventory" else ""
        stand_in.run(f"CREATE TABLE {table} (product STRING, quantity INT64{more})")
    stand_in.run(
        "INSERT INTO Inventory VALUES ('dishwasher', 30), ('dryer', 30), ('front load washer', 20), "
        "('microwave', 20), ('oven', 5), ('refrigerator', 10), ('top load washer', 10)"
    )
    stand_in.run(
        "INSERT INTO NewArrivals VALUES ('dryer', 200), ('oven', 300), ('refrigerator', 25), ('top load washer', 30)"
    )
    return stand_in


def inventory(stand_in: StandIn) -> list[tuple[Any, ...]]:
    return stand_in.run("SELECT product, quantity FROM Inventory ORDER BY product, quantity")


class TestMerge:
    def test_the_documented_example_that_updates_or_inserts(self, shop: StandIn) -> None:
        """Section "MERGE examples", example 2."""
        shop.run("INSERT INTO NewArrivals VALUES ('freezer', 7)")
        shop.run(
            "MERGE Inventory T USING NewArrivals S ON T.product = S.product "
            "WHEN MATCHED THEN UPDATE SET quantity = T.quantity + S.quantity "
            "WHEN NOT MATCHED THEN INSERT (product, quantity) VALUES(product, quantity)"
        )

        assert inventory(shop) == [
            ("dishwasher", 30),
            ("dryer", 230),
            ("freezer", 7),
            ("front load washer", 20),
            ("microwave", 20),
            ("oven", 305),
            ("refrigerator", 35),
            ("top load washer", 40),
        ]

    def test_the_documented_example_with_a_query_as_its_source_and_two_conditions(self, shop: StandIn) -> None:
        """Section "MERGE examples", example 1: only what DetailedInventory lacks is inserted."""
        shop.run("INSERT INTO DetailedInventory VALUES ('dryer', 30, false, NULL)")
        shop.run(
            "MERGE DetailedInventory T USING Inventory S ON T.product = S.product "
            "WHEN NOT MATCHED AND quantity < 20 THEN "
            "INSERT(product, quantity, supply_constrained, comments) VALUES(product, quantity, true, 'low') "
            "WHEN NOT MATCHED THEN INSERT(product, quantity, supply_constrained) VALUES(product, quantity, false)"
        )

        assert shop.run("SELECT * FROM DetailedInventory ORDER BY product") == [
            ("dishwasher", 30, False, None),
            ("dryer", 30, False, None),
            ("front load washer", 20, False, None),
            ("microwave", 20, False, None),
            ("oven", 5, True, "low"),
            ("refrigerator", 10, True, "low"),
            ("top load washer", 10, True, "low"),
        ]

    def test_the_documented_example_that_replaces_all_with_insert_row(self, shop: StandIn) -> None:
        """Section "MERGE examples", example 4: ON FALSE, deleted what is of one kind, inserted what is new."""
        shop.run(
            "MERGE Inventory T USING NewArrivals S ON FALSE "
            "WHEN NOT MATCHED AND product LIKE '%washer%' THEN INSERT (product, quantity) VALUES(product, quantity) "
            "WHEN NOT MATCHED BY SOURCE AND product LIKE '%washer%' THEN DELETE"
        )
        assert [row for row in inventory(shop) if "washer" in row[0]] == [("top load washer", 30)]

        shop.run("MERGE Inventory USING NewArrivals S ON FALSE WHEN NOT MATCHED THEN INSERT ROW")
        assert len(inventory(shop)) == 9

    def test_rows_are_updated_deleted_and_kept_by_the_first_clause_that_holds(self, shop: StandIn) -> None:
        job = shop.client.query(
            f"MERGE {shop.dataset}.Inventory AS T USING (SELECT * FROM {shop.dataset}.NewArrivals) AS S "
            "ON T.product = S.product "
            "WHEN MATCHED AND S.quantity >= 200 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET T.quantity = S.quantity, product = UPPER(T.product) "
            "WHEN NOT MATCHED BY SOURCE AND T.quantity = 20 THEN UPDATE SET quantity = DEFAULT "
        )
        job.result()

        assert job.statement_type == "MERGE"
        assert job.num_dml_affected_rows == 6
        assert inventory(shop) == [
            ("REFRIGERATOR", 25),
            ("TOP LOAD WASHER", 30),
            ("dishwasher", 30),
            ("front load washer", None),
            ("microwave", None),
        ]

    def test_more_than_one_source_row_for_a_target_row_is_refused_and_nothing_is_changed(self, shop: StandIn) -> None:
        """Section "MERGE statement", omitted semantics: "must match at most one source row for each target row"."""
        before = inventory(shop)
        shop.run("INSERT INTO NewArrivals VALUES ('dryer', 1)")

        with pytest.raises(exceptions.BadRequest, match="at most one source row for each target row"):
            shop.run(
                "MERGE Inventory T USING NewArrivals S ON T.product = S.product "
                "WHEN MATCHED THEN UPDATE SET quantity = S.quantity WHEN NOT MATCHED THEN INSERT ROW"
            )
        assert inventory(shop) == before

    def test_of_many_source_rows_one_may_be_chosen_by_the_clauses(self, shop: StandIn) -> None:
        shop.run("INSERT INTO NewArrivals VALUES ('dryer', 1)")

        shop.run(
            "MERGE Inventory T USING NewArrivals S ON T.product = S.product "
            "WHEN MATCHED AND S.quantity = 1 THEN UPDATE SET quantity = S.quantity"
        )
        assert ("dryer", 1) in inventory(shop)

    @pytest.mark.parametrize(
        "clauses",
        [
            "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (1)",
            "WHEN MATCHED THEN UPDATE SET z = 1",
            "WHEN NOT MATCHED THEN INSERT (_CHANGE_TYPE) VALUES ('UPSERT')",
        ],
    )
    def test_what_does_not_fit_the_table_is_refused(self, stand_in: StandIn, clauses: str) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING)")
        stand_in.run("INSERT INTO t VALUES (1, 'a')")
        with pytest.raises(exceptions.BadRequest):
            stand_in.run(f"MERGE t USING UNNEST([1, 2]) AS s ON t.k = s {clauses}")

    def test_rows_that_the_write_api_has_just_taken_are_merged_into(self, stand_in: StandIn) -> None:
        """ "Introduction to the Storage Write API", section "Use DML with recently streamed data"."""
        for table in ("t", "u"):
            stand_in.run(f"CREATE TABLE {table} (k INT64, v STRING)")
        stand_in.append("t", {"k": "int64", "v": "string"}, [{"k": 1, "v": "a"}])
        stand_in.append("u", {"k": "int64", "v": "string"}, [{"k": 1, "v": "b"}, {"k": 2, "v": "c"}])

        stand_in.run(
            "MERGE t USING u ON t.k = u.k WHEN MATCHED THEN UPDATE SET v = u.v WHEN NOT MATCHED THEN INSERT ROW"
        )
        assert stand_in.run("SELECT * FROM t ORDER BY k") == [(1, "b"), (2, "c")]

    def test_a_table_that_changes_are_streamed_to_is_read_by_a_merge_and_not_changed(self, stand_in: StandIn) -> None:
        """ "Stream table updates with change data capture", section "Limitations"."""
        for table in ("t", "u"):
            stand_in.run(f"CREATE TABLE {table} (k INT64, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.append("t", {"k": "int64", **CHANGE}, [change("UPSERT", "1", k=1)])

        with pytest.raises(exceptions.BadRequest, match="not supported over table"):
            stand_in.run("MERGE t USING u ON t.k = u.k WHEN NOT MATCHED THEN INSERT ROW")
        stand_in.run("MERGE u USING t ON t.k = u.k WHEN NOT MATCHED THEN INSERT ROW")
        assert stand_in.run("SELECT k FROM u") == [(1,)]


class TestRequired:
    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT INTO t VALUES (NULL, 'x')",
            "INSERT INTO t (v, k) VALUES ('x', 2), ('y', NULL)",
            "INSERT INTO t (k) SELECT NULL",
            "INSERT INTO t (v) VALUES ('x')",
            "UPDATE t SET k = NULL WHERE true",
            "UPDATE t SET k = DEFAULT WHERE k = 1",
            "MERGE t USING UNNEST([1, 2]) AS s ON t.k = s WHEN NOT MATCHED THEN INSERT (k) VALUES (NULL)",
            "MERGE t USING UNNEST([1, 2]) AS s ON t.k = s WHEN NOT MATCHED THEN INSERT (v) VALUES ('x')",
            "MERGE t USING UNNEST([1, 2]) AS s ON t.k = s WHEN MATCHED THEN UPDATE SET k = NULL",
        ],
    )
    def test_a_required_column_must_have_a_value(self, stand_in: StandIn, statement: str) -> None:
        stand_in.run("CREATE TABLE t (k INT64 NOT NULL, v STRING)")
        stand_in.run("INSERT INTO t VALUES (1, 'a')")

        with pytest.raises(exceptions.BadRequest, match="Required field k cannot be null"):
            stand_in.run(statement)
        assert stand_in.run("SELECT * FROM t") == [(1, "a")]

    def test_so_must_a_required_field_of_a_record(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (s STRUCT<a INT64 NOT NULL, b STRING>)")

        with pytest.raises(exceptions.BadRequest, match="Required field"):
            stand_in.run("INSERT INTO t VALUES (STRUCT(NULL, 'x'))")
        stand_in.run("INSERT INTO t VALUES (STRUCT(1 AS b, 'x' AS a)), (NULL)")
        assert stand_in.run("SELECT s FROM t ORDER BY s.a NULLS LAST") == [({"a": 1, "b": "x"},), (None,)]

    def test_a_deleted_row_of_a_change_stream_needs_none(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE t (k INT64, v STRING NOT NULL, PRIMARY KEY (k) NOT ENFORCED)")
        stand_in.append("t", {"k": "int64", "v": "string", **CHANGE}, [change("DELETE", "1", k=1)])

        stand_in.run("INSERT INTO t VALUES (2, 'x')")
        assert stand_in.run("SELECT * FROM t") == [(2, "x")]


class TestUpdateFrom:
    def test_each_row_is_joined_with_one(self, shop: StandIn) -> None:
        """Section "UPDATE examples": an update with a join."""
        shop.run(
            "UPDATE Inventory AS i SET quantity = i.quantity + n.quantity FROM NewArrivals AS n "
            "WHERE i.product = n.product"
        )
        assert ("oven", 305) in inventory(shop)

    def test_more_than_one_is_refused(self, shop: StandIn) -> None:
        before = inventory(shop)
        shop.run("INSERT INTO NewArrivals VALUES ('dryer', 1)")

        with pytest.raises(exceptions.BadRequest, match="at most one source row for each target row"):
            shop.run("UPDATE Inventory i SET quantity = n.quantity FROM NewArrivals n WHERE i.product = n.product")
        assert inventory(shop) == before


def test_values_go_into_columns_of_every_type(stand_in: StandIn) -> None:
    stand_in.run(
        "CREATE TABLE t (b BIGNUMERIC, d DATETIME, h TIME, i INTERVAL, g GEOGRAPHY, r RANGE<DATE>, "
        "s ARRAY<STRUCT<a INT64>>)"
    )
    stand_in.run(
        "INSERT INTO t VALUES (NULL, NULL, NULL, NULL, NULL, NULL, NULL), "
        "(-1.5, '2024-01-02T03:04:05', TIME '1:2:3', INTERVAL 1 DAY, ST_GEOGFROMTEXT('POINT(1 2)'), "
        "RANGE<DATE> '[2024-01-01, UNBOUNDED)', [STRUCT(1 AS x), STRUCT(2)])"
    )
    stand_in.run("UPDATE t SET b = 7, i = INTERVAL '0:0:1' HOUR TO SECOND WHERE b = BIGNUMERIC '-1.5'")

    texts = "CAST(h AS STRING), ST_ASTEXT(g), RANGE_START(r) = DATE '2024-01-01', ARRAY_LENGTH(s), s[OFFSET(1)].a"
    assert stand_in.run(f"SELECT b = BIGNUMERIC '7', {texts} FROM t WHERE b IS NOT NULL") == [
        (True, "01:02:03", "POINT(1 2)", True, 2, 2)
    ]
    assert stand_in.run("SELECT COUNT(*), COUNT(d), COUNT(i), COUNT(r) FROM t") == [(2, 1, 1, 1)]
