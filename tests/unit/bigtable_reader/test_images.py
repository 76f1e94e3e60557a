"""Rows as images: nothing is lost, what does not fit is set aside with its column's name, columns BigQuery takes."""

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import CellVersion, ImageMaker, RowCells, family_column
from services.bigtable_reader.core.changes.refused import Made, RefusedChange
from shared.contracts.bigtable_options import BigtableOptions, CellColumn, FamilyColumn
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import bucket_of, canonical_key
from tests.builders import table_definition
from tests.unit.bigtable_reader.consumed import consumed, consumed_or_dead_lettered
from tests.unit.bigtable_reader.stream_messages import a_cell, a_change

NOW = 1_700_000_000_123_456
TRIGGER = a_change(a_cell(), commit=NOW, tiebreaker=2)


def maker(options: BigtableOptions | None = None, families: tuple[str, ...] = ("f",)) -> ImageMaker:
    options = options or BigtableOptions()
    return ImageMaker(
        source="projects/p/instances/i/changeStreams/t",
        table="t",
        options=options,
        families=families,
        buckets=16,
        watched=Watched(options),
    )


def made(maker: ImageMaker, cells: RowCells | None, row_key: bytes = b"k", version: int = 7) -> Made:
    found = maker.image(row_key, cells, TRIGGER, version)
    assert isinstance(found, Made)
    return found


def row(options: BigtableOptions | None, cells: RowCells | None, row_key: bytes = b"k") -> dict[str, Any]:
    """Return the row that goes to BigQuery, in the wire types of its columns; the consumer's own are left out."""
    found = made(maker(options), cells, row_key)
    (only,) = consumed(found.header, [found.change])
    return {name: value for name, value in only.items() if not name.startswith("_")}


def cell(value: bytes, timestamp: int = NOW) -> list[CellVersion]:
    return [CellVersion(timestamp, value)]


def declared(kind: str, encoding: str, **more: Any) -> BigtableOptions:
    column = CellColumn(name="c", family="f", qualifier=b"q", type=kind, encoding=encoding, **more)  # type: ignore[arg-type]  # one test for each
    return BigtableOptions(columns=(column,))


row_cells = st.dictionaries(
    st.sampled_from(["f", "g", "weather.2024", "_TABLE_", "row_key"]),
    st.dictionaries(
        st.binary(max_size=4),
        st.lists(
            st.builds(CellVersion, st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=20)),
            min_size=1,
            max_size=3,
            unique_by=lambda version: version.timestamp,
        ).map(lambda versions: sorted(versions, key=lambda version: -version.timestamp)),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(row_cells, st.binary(min_size=1, max_size=8))
def test_a_row_can_be_rebuilt_from_its_image(cells: RowCells, row_key: bytes) -> None:
    options = BigtableOptions(row_key="BYTES", qualifiers="base64", versions=3)
    names = {family_column(family, "row_key"): family for family in cells}

    found = row(options, cells, row_key)

    again = {
        names[column]: {
            base64.b64decode(qualifier): [
                CellVersion(version["timestamp_micros"], base64.b64decode(version["value"])) for version in versions
            ]
            for qualifier, versions in json.loads(text).items()
        }
        for column, text in found.items()
        if column != "row_key" and text is not None
    }
    assert again == cells
    assert base64.b64decode(found["row_key"]) == row_key  # a key of BYTES is base64 in BigQuery


def test_a_family_is_an_object_of_its_newest_values() -> None:
    cells = {"f": {b"b": [*cell(b"new"), *cell(b"old", 5)], b"a": cell(b"\xff")}}

    assert row(None, cells) == {"row_key": "k", "f": '{"a":"/w==","b":"bmV3"}'}
    assert row(BigtableOptions(cell_timestamps=True), {"f": {b"b": cell(b"new", 5)}}) == {
        "row_key": "k",
        "f": '{"b":{"value":"bmV3","timestamp_micros":5}}',
    }


@given(st.dictionaries(st.text(max_size=4), st.binary(max_size=8), min_size=1, max_size=5), st.integers(0, 2))
def test_the_newest_values_come_through_under_whatever_name_that_is_text(values: dict[str, bytes], apart: int) -> None:
    left_out = tuple(("f", name.encode()) for name in sorted(values)[:apart])
    cells = {"f": {name.encode(): cell(value) for name, value in values.items()}}

    made = maker(BigtableOptions(excluded_columns=left_out)).image(b"k", cells, TRIGGER, 7)

    assert isinstance(made, Made)
    text = json.loads(made.change.row or "")["f"]
    found = {} if text is None else json.loads(text)
    assert {name: base64.b64decode(value) for name, value in found.items()} == {
        name: value for name, value in values.items() if ("f", name.encode()) not in left_out
    }


def test_values_may_be_text_or_json_for_the_table_or_a_family() -> None:
    options = BigtableOptions(values="text", columns=(FamilyColumn(name="gee", family="g", values="json"),))
    found = made(maker(options, ("f", "g")), {"f": {b"a": cell('"é"'.encode())}, "g": {b"a": cell(b'{"x":[1]}')}})

    (only,) = consumed(found.header, [found.change])

    assert (json.loads(only["f"]), json.loads(only["gee"])) == ({"a": '"é"'}, {"a": {"x": [1]}})


def test_a_row_that_is_gone_or_has_nothing_watched_left_is_a_delete() -> None:
    excluding = BigtableOptions(excluded_families=("g",))
    for found in (made(maker(), None), made(maker(), {}), made(maker(excluding), {"g": {b"q": cell(b"v")}})):
        assert (found.change.op, found.change.row, found.change.key) == ("DELETE", None, '{"row_key":"k"}')


def test_an_image_carries_the_version_and_what_is_known_of_its_record() -> None:
    change = made(maker(), {"f": {b"q": cell(b"v")}}, version=99).change

    assert change.sequence == str(four_sections(99))
    assert (change.mod_type, change.commit_timestamp) == ("USER", "2023-11-14T22:13:20.123456Z")
    assert msgspec.json.decode(change.place) == {
        "entry_count": 1,
        "source_cluster": "c1",
        "tiebreaker": 2,
        "low_watermark": "2023-11-14T22:13:20.123456Z",
    }


@pytest.mark.parametrize(
    ("kind", "encoding", "value", "expected"),
    [
        ("STRING", "text", "é\0".encode(), "é\0"),
        ("BYTES", "bytes", b"\xff\0", b"\xff\0"),
        ("INT64", "text", b"-9223372036854775808", -(2**63)),
        ("INT64", "text", b"+007", 7),
        ("INT64", "big_endian", (2**63 - 1).to_bytes(8, "big"), 2**63 - 1),
        ("INT64", "big_endian", b"\xff" * 8, -1),
        ("FLOAT64", "text", b"21.50", 21.5),
        ("FLOAT64", "text", b"-1e-7", -1e-7),
        ("FLOAT64", "text", b"-Infinity", float("-inf")),
        ("FLOAT64", "big_endian", struct.pack(">d", 0.1), 0.1),
        ("FLOAT64", "big_endian", struct.pack(">d", float("inf")), float("inf")),
        ("FLOAT32", "big_endian", struct.pack(">f", 0.1), struct.unpack(">f", struct.pack(">f", 0.1))[0]),
        ("BOOL", "text", b"TRUE", True),
        ("BOOL", "big_endian", b"\0", False),
        ("BOOL", "big_endian", b"\xff", True),
        ("NUMERIC", "text", b"1.25", "1.25"),
        ("NUMERIC", "text", b".5", "0.5"),
        ("NUMERIC", "text", b"+1.50", "1.50"),
        ("NUMERIC", "text", b"-.5", "-0.5"),
        ("DATE", "text", b"1970-01-02", 1),
        ("TIMESTAMP", "text", b"1970-01-01T00:00:01Z", 1_000_000),
        ("JSON", "text", b'{"a": [1, null]}', '{"a": [1, null]}'),
    ],
)
def test_a_declared_column_holds_what_the_cell_means(kind: str, encoding: str, value: bytes, expected: object) -> None:
    found = row(declared(kind, encoding), {"f": {b"q": cell(value)}})

    assert found == {"row_key": "k", "c": expected, "f": None}


@settings(deadline=None)
@given(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False))
def test_numbers_of_eight_bytes_come_through_exactly(whole: int, number: float) -> None:
    counter, measure = whole.to_bytes(8, "big", signed=True), struct.pack(">d", number)

    assert row(declared("INT64", "big_endian"), {"f": {b"q": cell(counter)}})["c"] == whole
    assert row(declared("FLOAT64", "big_endian"), {"f": {b"q": cell(measure)}})["c"] == number


@pytest.mark.parametrize(
    ("kind", "encoding", "value"),
    [
        ("STRING", "text", b"\xff"),
        ("INT64", "text", b""),
        ("INT64", "text", b"9223372036854775808"),
        ("INT64", "text", b"1_000"),
        ("INT64", "text", "٣".encode()),
        ("INT64", "big_endian", b"1234567"),
        ("FLOAT64", "text", b"1e999"),
        ("FLOAT64", "text", b"0x10"),
        ("FLOAT64", "big_endian", b"1234"),
        ("FLOAT32", "big_endian", b"12345678"),
        ("BOOL", "text", b"yes"),
        ("BOOL", "big_endian", b"\x02"),
        ("NUMERIC", "text", b"\xff"),
        ("JSON", "text", b"{"),
    ],
)
def test_a_value_that_does_not_fit_is_dead_lettered_whole_and_names_its_column(
    kind: str, encoding: str, value: bytes
) -> None:
    found = maker(declared(kind, encoding)).image(b"k", {"f": {b"q": cell(value, 5)}}, TRIGGER, 7)

    assert isinstance(found, RefusedChange)
    assert found.reason is Reason.VALUE_DOES_NOT_FIT
    assert found.detail.startswith(f"column c of type {kind}")
    old = found.whole().old
    assert old is not None
    assert json.loads(old) == {
        "row_key": base64.b64encode(b"k").decode(),
        "cells": {
            "f": [
                {
                    "qualifier": base64.b64encode(b"q").decode(),
                    "timestamp_micros": 5,
                    "value": base64.b64encode(value).decode(),
                }
            ]
        },
    }
    assert consumed_or_dead_lettered(found.header, [found.whole()]) == ([], [Reason.BAD_CHANGE.value])


@pytest.mark.parametrize(("kind", "value"), [("NUMERIC", b"1e40"), ("DATE", b"1.1.1970"), ("TIMESTAMP", b"now")])
def test_what_only_the_consumer_can_judge_it_sets_aside(kind: str, value: bytes) -> None:
    found = made(maker(declared(kind, "text")), {"f": {b"q": cell(value)}})

    assert consumed_or_dead_lettered(found.header, [found.change]) == ([], [Reason.VALUE_DOES_NOT_FIT.value])


@pytest.mark.parametrize(
    ("options", "row_key", "cells", "fix"),
    [
        (BigtableOptions(), b"\xff", {"f": {b"q": cell(b"v")}}, 'row_key = "BYTES"'),
        (BigtableOptions(), b"\xff", None, 'row_key = "BYTES"'),
        (BigtableOptions(), b"k", {"f": {b"\xff": cell(b"v")}}, 'qualifiers = "base64"'),
        (BigtableOptions(values="text"), b"k", {"f": {b"q": cell(b"\xff")}}, 'values = "base64"'),
        (BigtableOptions(values="json"), b"k", {"f": {b"q": cell(b"{")}}, 'values = "base64"'),
        (declared("STRING", "text", timestamp="at"), b"k", {"f": {b"q": cell(b"v", 2**62)}}, "column at of type"),
    ],
)
def test_what_is_not_as_the_tables_file_says_is_dead_lettered_with_the_fix(
    options: BigtableOptions, row_key: bytes, cells: RowCells | None, fix: str
) -> None:
    found = maker(options).image(row_key, cells, TRIGGER, 7)

    assert isinstance(found, RefusedChange)
    assert fix in found.detail
    rows, reasons = consumed_or_dead_lettered(found.header, [found.change])
    assert (rows, len(reasons)) == ([], 1)


def test_the_time_of_a_cell_may_have_a_column_and_what_is_declared_leaves_its_family() -> None:
    options = declared("STRING", "text", timestamp="c_at")

    assert row(options, {"f": {b"q": [*cell(b"new"), *cell(b"old", 5)], b"r": cell(b"x")}}) == {
        "row_key": "k",
        "c": "new",
        "c_at": NOW,
        "f": '{"r":"eA=="}',
    }
    assert row(options, {"f": {b"r": cell(b"x")}}) == {"row_key": "k", "c": None, "c_at": None, "f": '{"r":"eA=="}'}


def test_an_excluded_column_is_in_no_image() -> None:
    options = BigtableOptions(excluded_columns=(("f", b"debug"),))

    assert row(options, {"f": {b"debug": cell(b"x"), b"q": cell(b"v")}})["f"] == '{"q":"dg=="}'
    assert row(options, {"f": {b"debug": cell(b"x")}}) == {"row_key": "k", "f": None}


@settings(deadline=None)
@given(
    st.lists(
        st.from_regex(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,10}", fullmatch=True),
        max_size=5,
        unique_by=str.lower,  # others are refused, see below
    )
)
def test_every_family_has_a_column_that_bigquery_takes(families: Sequence[str]) -> None:
    header = maker(families=tuple(families)).header

    assert [column.name for column in table_definition(header).columns][: len(families) + 1] == [
        column.name for column in header.columns
    ]


def test_families_that_bigquery_would_take_for_one_are_refused_with_the_fix() -> None:
    fix = (
        r'column family F and column family f would be one column.*\n.*\[tables\."t"\.columns\.f_2\] with family = "f"'
    )
    with pytest.raises(MisconfiguredError, match=fix):
        maker(families=("F", "f"))
    options = BigtableOptions(columns=(FamilyColumn(name="big_f", family="F"),))
    assert [column.name for column in maker(options, ("F", "f")).header.columns] == ["row_key", "big_f", "f"]


def test_a_family_that_would_have_anothers_column_is_refused_each_time_it_is_met_and_changes_nothing() -> None:
    images = maker(families=("f",))
    header = images.header
    for _time in range(2):
        with pytest.raises(MisconfiguredError, match="column family F and column family f"):
            images.learn(["F", "g"])
        assert images.header is header
    assert images.learn(["g"])
    options = BigtableOptions(columns=(CellColumn(name="F", family="g", qualifier=b"q"),))
    with pytest.raises(MisconfiguredError, match=r"the column F of the tables file and column family f .*\n.*f_2"):
        maker(options, ("f",))
    options = BigtableOptions(columns=(CellColumn(name="Row_Key", family="g", qualifier=b"q"),))
    with pytest.raises(MisconfiguredError, match=r"the row key and the column Row_Key .*\nin the tables file give one"):
        maker(options, ("f",))


def test_a_family_that_is_met_for_the_first_time_is_one_more_column() -> None:
    images = maker(families=("f",))

    found = made(images, {"new": {b"q": cell(b"v")}})

    assert [column.name for column in found.header.columns] == ["row_key", "f", "new"]
    assert found.change.row == '{"f":null,"new":"{\\"q\\":\\"dg==\\"}"}'
    assert not images.learn(["new", "f"])


def test_an_image_goes_to_the_bucket_of_its_row() -> None:
    for options, value in ((BigtableOptions(), "k"), (BigtableOptions(row_key="BYTES"), "aw==")):
        found = made(maker(options), None)
        canonical = canonical_key("t", found.header.key_types(), {"row_key": value})
        assert found.ordering_key == f"t/{bucket_of(canonical, 16)}"
