"""Changes through real sockets: the documents' worked examples, order, tombstones.

The examples are those of BigQuery, "Stream table updates with change data capture"; each test names its section.
"""

import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from tests.integration.stand_in import StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

EMPLOYEES = {"ID": "int64", "Name": "string", "Salary": "int64", "_CHANGE_TYPE": "string"}
KEY_VALUE = {"k": "int64", "v": "string", **CHANGE}
BEFORE = [(100, "Bill", 2000), (101, "Lucy", 3000), (102, "Bob", 5000)]


def employees(stand_in: StandIn) -> None:
    stand_in.run("CREATE TABLE employees (ID INT64, Name STRING, Salary INT64, PRIMARY KEY (ID) NOT ENFORCED)")
    rows = [{"ID": i, "Name": name, "Salary": salary} for i, name, salary in BEFORE]
    plain = {name: proto_type for name, proto_type in EMPLOYEES.items() if not name.startswith("_")}
    assert not stand_in.append("employees", plain, rows).HasField("error")


def key_value(stand_in: StandIn) -> None:
    stand_in.run("CREATE TABLE t (k INT64, v STRING, PRIMARY KEY (k) NOT ENFORCED) CLUSTER BY k")


def rows_of(stand_in: StandIn, table: str) -> list[tuple[object, ...]]:
    return stand_in.run(f"SELECT * FROM {table} ORDER BY 1")


class TestUpsertAndDelete:
    """Section "Specify changes to existing records"."""

    def test_the_example_with_upsert_and_delete_values(self, stand_in: StandIn) -> None:
        employees(stand_in)

        answer = stand_in.append(
            "employees",
            EMPLOYEES,
            [
                {"ID": 100, "_CHANGE_TYPE": "DELETE"},
                {"ID": 101, "Name": "Lucy", "Salary": 8000, "_CHANGE_TYPE": "UPSERT"},
                {"ID": 105, "Name": "Max", "Salary": 6000, "_CHANGE_TYPE": "UPSERT"},
            ],
        )

        assert answer.HasField("append_result")
        assert rows_of(stand_in, "employees") == [(101, "Lucy", 8000), (102, "Bob", 5000), (105, "Max", 6000)]

    @pytest.mark.parametrize("change_type", ["ELIMINA", "delete", "upsert", "INSERT", "", "UPSERT "])
    def test_no_other_change_type_is_taken_and_the_whole_request_is_refused(
        self, stand_in: StandIn, change_type: str
    ) -> None:
        employees(stand_in)

        answer = stand_in.append(
            "employees",
            EMPLOYEES,
            [
                {"ID": 101, "Name": "Lucy", "Salary": 8000, "_CHANGE_TYPE": "UPSERT"},
                {"ID": 100, "_CHANGE_TYPE": change_type},
            ],
        )

        assert [(error.index, error.message) for error in answer.row_errors] == [
            (1, "The given value is not a valid CHANGE_TYPE")
        ]
        assert rows_of(stand_in, "employees") == BEFORE

    def test_an_upsert_replaces_the_row_so_a_column_left_out_is_null(self, stand_in: StandIn) -> None:
        employees(stand_in)

        stand_in.append("employees", EMPLOYEES, [{"ID": 101, "Salary": 1, "_CHANGE_TYPE": "UPSERT"}])

        assert rows_of(stand_in, "employees")[1] == (101, None, 1)

    def test_a_composite_key_is_the_key_in_all_its_parts(self, stand_in: StandIn) -> None:
        stand_in.run("CREATE TABLE c (a INT64, b STRING, v INT64, PRIMARY KEY (a, b) NOT ENFORCED)")
        fields = {"a": "int64", "b": "string", "v": "int64", **CHANGE}

        stand_in.append(
            "c",
            fields,
            [
                change("UPSERT", "1", a=1, b="x", v=1),
                change("UPSERT", "1", a=1, b="y", v=2),
                change("UPSERT", "2", a=1, b="x", v=3),
                change("DELETE", "2", a=1, b="y"),
            ],
        )

        assert rows_of(stand_in, "c") == [(1, "x", 3)]


class TestSequence:
    """Section "Manage custom ordering"."""

    @pytest.mark.parametrize(
        ("older", "newer"),
        [("77", "7B"), ("FFF/B", "FFF/ABC"), ("BA/FFFFFFFF", "ABC"), ("ABC", "FFF/ABC")],
        ids=["example 1", "example 2", "example 3", "example 4"],
    )
    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("one_request", [True, False])
    def test_the_four_examples(
        self, stand_in: StandIn, older: str, newer: str, in_order: bool, one_request: bool
    ) -> None:
        key_value(stand_in)
        rows = [change("UPSERT", sequence, k=1, v=sequence) for sequence in (older, newer)]
        rows = rows if in_order else rows[::-1]

        for request in [rows] if one_request else [[row] for row in rows]:
            assert not stand_in.append("t", KEY_VALUE, request).HasField("error")

        assert rows_of(stand_in, "t") == [(1, newer)]

    def test_what_the_grammar_does_not_allow_is_a_row_error(self, stand_in: StandIn) -> None:
        key_value(stand_in)
        wrong = ["", "/", "1/", "1/2/3/4/5", "1" + "0" * 16, "0x1", "-1", " 1", "G"]

        answer = stand_in.append("t", KEY_VALUE, [change("UPSERT", sequence, k=1, v="a") for sequence in wrong])

        assert [error.index for error in answer.row_errors] == list(range(len(wrong)))
        assert rows_of(stand_in, "t") == []

    @pytest.mark.parametrize("sequence", [{"_CHANGE_SEQUENCE_NUMBER": "5"}, {}], ids=["equal", "none"])
    def test_of_equal_sequences_or_without_any_the_latest_ingested_wins(
        self, stand_in: StandIn, sequence: dict[str, str]
    ) -> None:
        key_value(stand_in)
        fields = {"k": "int64", "v": "string", "_CHANGE_TYPE": "string", **dict.fromkeys(sequence, "string")}
        for value in ("b", "a"):
            stand_in.append("t", fields, [{"k": 1, "v": value, "_CHANGE_TYPE": "UPSERT", **sequence}])

        assert rows_of(stand_in, "t") == [(1, "a")]

    @pytest.mark.parametrize(
        ("changes", "left"),
        [
            ([("UPSERT", None, "a"), ("UPSERT", None, "b")], [(1, "b")]),
            ([("UPSERT", None, "a"), ("DELETE", None, None)], []),
            ([("DELETE", None, None), ("UPSERT", None, "a")], [(1, "a")]),
            ([("UPSERT", "F", "a"), ("UPSERT", "F", "b")], [(1, "b")]),
            ([("UPSERT", "F", "a"), ("DELETE", "F", None)], []),
            ([("UPSERT", "F", "a"), ("UPSERT", "E", "b")], [(1, "a")]),
            ([("DELETE", "F", None), ("UPSERT", "E", "b")], []),
            ([("UPSERT", "F", "a"), ("UPSERT", None, "b")], [(1, "a")]),
        ],
    )
    def test_a_key_twice_in_one_request(
        self, stand_in: StandIn, changes: list[tuple[str, str | None, str | None]], left: list[tuple[int, str]]
    ) -> None:
        """The latest ingested wins among equal sequences, and in a request the later row is ingested later.

        java-bigquerystorage #2404 met the service keeping the first row of a request where none had a sequence: a
        writer that gives each change its sequence does not depend on it.
        """
        key_value(stand_in)
        rows: list[dict[str, object]] = []
        for kind, sequence, value in changes:
            given: dict[str, object] = {"k": 1, "_CHANGE_TYPE": kind}
            given |= {"_CHANGE_SEQUENCE_NUMBER": sequence} if sequence is not None else {}
            rows.append(given | ({"v": value} if value is not None else {}))
        assert not stand_in.append("t", KEY_VALUE, rows).HasField("error")

        assert rows_of(stand_in, "t") == left


class TestTombstones:
    """Section "Deleted data considerations": deletes are kept for two days."""

    def test_an_older_upsert_loses_against_a_delete(self, stand_in: StandIn) -> None:
        key_value(stand_in)
        with stand_in.writing("t", KEY_VALUE) as writing:
            writing.append([change("UPSERT", "1", k=1, v="first")])
            writing.append([change("DELETE", "3", k=1)])
            writing.append([change("UPSERT", "2", k=1, v="late")])

            assert rows_of(stand_in, "t") == []
            writing.append([change("UPSERT", "4", k=1, v="again")])
        assert rows_of(stand_in, "t") == [(1, "again")]

    def test_a_delete_is_forgotten_after_two_days_and_an_older_upsert_brings_the_row_back(
        self, new_processes: Processes
    ) -> None:
        with emulators.bigquery_stand_in(new_processes) as addresses:
            stand_in = StandIn(addresses)
            key_value(stand_in)
            stand_in.append("t", KEY_VALUE, [change("DELETE", "3", k=1)])

            stand_in.control("POST", "clock", seconds=2 * 86_400 - 60)
            stand_in.append("t", KEY_VALUE, [change("UPSERT", "1", k=1, v="too early")])
            assert rows_of(stand_in, "t") == []

            stand_in.control("POST", "clock", seconds=120)
            stand_in.append("t", KEY_VALUE, [change("UPSERT", "2", k=1, v="back")])
            assert rows_of(stand_in, "t") == [(1, "back")]


class TestPlainRows:
    def test_rows_without_a_change_type_are_appended_and_may_repeat_a_key(self, stand_in: StandIn) -> None:
        key_value(stand_in)
        for _ in range(2):
            stand_in.append("t", {"k": "int64", "v": "string"}, [{"k": 1, "v": "same"}])

        assert rows_of(stand_in, "t") == [(1, "same")] * 2

    def test_a_change_replaces_all_plain_rows_of_its_key(self, stand_in: StandIn) -> None:
        key_value(stand_in)
        stand_in.append("t", {"k": "int64", "v": "string"}, [{"k": 1, "v": "x"}, {"k": 1, "v": "y"}])
        stand_in.append("t", KEY_VALUE, [change("UPSERT", "1", k=1, v="one")])

        assert rows_of(stand_in, "t") == [(1, "one")]
