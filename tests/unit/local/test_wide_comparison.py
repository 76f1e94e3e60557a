"""What a mirror of Bigtable rows has to hold, told from the cells; and change logs replayed."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC, HOURLY_WEATHER
from deploy.local.platform.cells import DeleteCells, DeleteFamily, Mutation, SetCell
from deploy.local.proof.comparison import compare
from deploy.local.proof.wide_comparison import entry_of, mirrored, shape_of

HOUR = 1_357_020_000_000_000
AT = datetime(2013, 1, 1, 6, tzinfo=UTC)


def test_the_newest_value_is_a_column_with_its_time_and_the_rest_is_in_the_families_json() -> None:
    row = {
        "observed": {b"temp": {HOUR - 1000: b"1", HOUR: b"39.02"}, b"dewp": {HOUR: b"26.06"}},
        "corrected": {b"wind_speed": {1000: b"1", 3000: b"3", 2000: b"2", 4000: b"4"}},
    }

    assert mirrored(HOURLY_WEATHER, b"JFK#1", row) == {
        "row_key": "JFK#1",
        "temperature_f": 39.02,
        "observed_at": AT,
        "humidity": None,
        "observed": {"dewp": [{"value": "26.06", "timestamp_micros": HOUR}]},
        "corrected": {
            "wind_speed": [{"value": value, "timestamp_micros": int(value) * 1000} for value in ("4", "3", "2")]
        },
    }


def test_counters_are_numbers_and_what_has_no_column_is_base64() -> None:
    row = {
        "totals": {b"departures": {1: b"\xff" * 8, 9: b"\0" * 7 + b"\5"}},
        "carriers": {b"UA": {1: b"\0" * 7 + b"\1"}},
    }

    assert mirrored(AIRPORT_TRAFFIC, b"JFK#d", row) == {
        "row_key": "JFK#d",
        "departures": 5,
        "minutes_late": None,
        "totals": None,
        "carriers": {"UA": "AAAAAAAAAAE="},
    }


def test_the_shape_has_all_the_columns_of_a_row_and_a_difference_names_bigtable() -> None:
    shape, row = shape_of(AIRPORT_TRAFFIC), mirrored(AIRPORT_TRAFFIC, b"k", {"carriers": {b"UA": {1: b"1"}}})
    assert list(shape.columns) == list(row)
    ours = {"_millrace_sequence": "A", "_millrace_commit_timestamp": AT}

    assert compare(shape, [row], [row | ours]).equal
    assert compare(shape, [row], [row | ours | {"departures": 1}]).named == [
        "airport_traffic[k]: departures is 1 in BigQuery and None in Bigtable (applied: A)"
    ]
    assert compare(shape, [row], []).named == ["airport_traffic[k]: in Bigtable and not in BigQuery"]


@pytest.mark.parametrize(
    ("entry", "mutation"),
    [
        ({"mod_type": "SET_CELL", "column": "q", "timestamp": AT, "value": b"v"}, SetCell("f", b"q", HOUR, b"v")),
        (
            {"mod_type": "DELETE_CELLS", "column": "q", "timestamp_from": AT, "timestamp_to": None},
            DeleteCells("f", b"q", HOUR, 0),
        ),
        ({"mod_type": "DELETE_FAMILY"}, DeleteFamily("f")),
    ],
)
def test_an_entry_says_what_was_done(entry: Mapping[str, Any], mutation: Mutation) -> None:
    assert entry_of({"column_family": "f", "column": None, **entry}) == mutation


def test_an_entry_of_an_unknown_kind_is_reported() -> None:
    with pytest.raises(ValueError, match="ADD_TO_CELL"):
        entry_of({"mod_type": "ADD_TO_CELL", "column_family": "f", "column": "q"})
