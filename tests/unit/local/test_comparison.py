"""Equal means equal by value, and what differs is named."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from deploy.local.proof.comparison import TableShape, compare

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
SHAPE = TableShape(
    "t",
    {
        "k": "INT64",
        "flag": "BOOL",
        "ratio": "FLOAT64",
        "amount": "NUMERIC",
        "name": "STRING(MAX)",
        "data": "BYTES(32)",
        "day": "DATE",
        "at": "TIMESTAMP",
        "doc": "JSON",
        "names": "ARRAY<STRING(10)>",
        "ratios": "ARRAY<FLOAT32>",
    },
    ["k"],
)


def a_row(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "k": 1,
        "flag": True,
        "ratio": 0.5,
        "amount": Decimal("1.5"),
        "name": "one",
        "data": b"\x00\xff",
        "day": date(2013, 1, 1),
        "at": NOON,
        "doc": {"a": [1, None]},
        "names": ("a", "b"),
        "ratios": (0.5,),
    }
    return row | values


def applied(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "_millrace_sequence": "0/0/0/0", "_millrace_commit_timestamp": NOON}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({}, {}),
        ({"ratio": float("nan")}, {"ratio": float("nan")}),
        ({"ratio": 0.0}, {"ratio": -0.0}),
        ({"amount": Decimal("1.50")}, {"amount": Decimal("1.5")}),
        ({"at": NOON}, {"at": NOON.astimezone(timezone(timedelta(hours=5)))}),
        ({"doc": {"a": 1, "b": 2}}, {"doc": {"b": 2.0, "a": 1}}),
        ({"name": None, "doc": None}, {"name": None, "doc": None}),
        ({"names": None, "ratios": ()}, {"names": [], "ratios": []}),
        ({"names": ("a", ""), "ratios": (float("nan"), -0.0)}, {"names": ["a", ""], "ratios": [float("nan"), 0.0]}),
    ],
)
def test_equal_values_are_equal(source: dict[str, Any], target: dict[str, Any]) -> None:
    comparison = compare(SHAPE, [a_row(**source)], [applied(a_row(**target))])

    assert comparison.equal, comparison.named
    assert comparison.rows == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("flag", False),
        ("flag", 1),
        ("ratio", 0.5000000001),
        ("ratio", float("nan")),
        ("amount", Decimal("1.500000001")),
        ("amount", 1.5),
        ("name", "One"),
        ("name", None),
        ("data", b"\x00\xfe"),
        ("data", "\x00"),
        ("day", date(2013, 1, 2)),
        ("at", NOON + timedelta(microseconds=1)),
        ("doc", {"a": [1]}),
        ("doc", {"a": [True, None]}),
        ("doc", '{"a": [1, null]}'),
        ("names", ["a"]),
        ("names", ["b", "a"]),
        ("names", []),
        ("ratios", [0.25]),
    ],
)
def test_a_value_that_differs_is_named(column: str, value: Any) -> None:
    comparison = compare(SHAPE, [a_row()], [applied(a_row(**{column: value}))])

    assert comparison.differing == 1
    assert comparison.named[0].startswith(f"t[1]: {column} is {value!r} in BigQuery and")


def test_keys_that_are_a_text_in_bigquery_are_the_value_that_they_stand_for() -> None:
    shape = TableShape("t", {"b": "BYTES(16)", "f": "FLOAT64", "s": "STRING(9)", "v": "BYTES(9)"}, ["b", "f", "s"])
    row = {"b": b"\x00\xff", "f": 1e300, "s": "AP8=", "v": b"x"}
    target = applied(row | {"b": "AP8=", "f": "1e+300"})

    assert compare(shape, [row], [target]).named == []
    assert compare(shape, [row | {"f": float("nan")}], [target | {"f": "NaN"}]).named == []
    assert compare(shape, [row], [target | {"f": "1e+301"}]).differing == 2
    assert compare(shape, [row], [target | {"v": "eA=="}]).named[0].partition(": ")[2].startswith("v is 'eA=='")


def test_missing_extra_and_repeated_rows_are_told_apart() -> None:
    comparison = compare(SHAPE, [a_row(k=1), a_row(k=2)], [applied(a_row(k=k)) for k in (2, 2, 3)])

    assert comparison.named == [
        "t[2]: twice in BigQuery",
        "t[3]: in BigQuery and not in Spanner (applied: 0/0/0/0)",
        "t[1]: in Spanner and not in BigQuery",
    ]


def test_a_table_that_is_not_there_differs_even_when_it_would_be_empty() -> None:
    assert not compare(SHAPE, [], None).equal
    assert compare(SHAPE, [], []).equal


def test_columns_that_one_side_lacks_differ() -> None:
    target = applied(a_row(more=1))
    del target["name"]

    assert [what.partition(": ")[2].partition(" (")[0] for what in compare(SHAPE, [a_row()], [target]).named] == [
        "column name is not in BigQuery",
        "column more is not in Spanner",
    ]


def test_only_the_first_differences_are_spelt_out_and_all_are_counted() -> None:
    comparison = compare(SHAPE, [a_row(k=k) for k in range(100)], [])

    assert comparison.differing == 100
    assert len(comparison.named) == 10
