"""Lines of a change log: lossless, stable, ordered, under the names that users of Google's template know."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.core.changes.refused import RefusedChange
from services.bigtable_reader.core.stream.records import (
    Aggregated,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Microseconds,
    SetCell,
    UnknownEntry,
)
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.change_batch import Change
from shared.contracts.change_sequence import four_sections
from shared.contracts.reasons import Reason
from tests.unit.bigtable_reader.consumed import consumed, consumed_or_dead_lettered
from tests.unit.bigtable_reader.readings import entry_maker
from tests.unit.bigtable_reader.stream_messages import a_cell, a_change, data_changes

COMMIT = 1_700_000_000_123_456
LOSSLESS = BigtableOptions(row_key="BYTES", qualifiers="base64", timestamps="INT64")


def lines(record: DataChange, options: BigtableOptions | None = None) -> list[Change]:
    made, refused = entry_maker(options).changes(record)
    assert refused == []
    return [change for _key, change in made]


def refused(record: DataChange, options: BigtableOptions | None = None) -> list[RefusedChange]:
    made, refused = entry_maker(options).changes(record)
    assert made == []
    return refused


def rows(record: DataChange, options: BigtableOptions | None = None) -> list[dict[str, Any]]:
    """Return the rows of a record as they go to BigQuery; NULLs are left out."""
    found = consumed(entry_maker(options).header, lines(record, options))
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def read_back(row: dict[str, Any]) -> Entry:
    """Return the entry that a row was made of."""
    family, qualifier = row["column_family"], row["column"]
    match row["mod_type"]:
        case "SET_CELL":
            return SetCell(family, qualifier, row["timestamp"], row["value"])
        case "DELETE_CELLS":
            start, end = (Microseconds(row[bound] or 0) for bound in ("timestamp_from", "timestamp_to"))
            return DeleteCells(family, qualifier, start, end)
        case "DELETE_FAMILY":
            return DeleteFamily(family)
        case kind:
            return Aggregated(kind, family, qualifier, row["timestamp"], row["value"])


@settings(deadline=None)
@given(data_changes())
def test_a_record_can_be_rebuilt_from_its_lines(record: DataChange) -> None:
    found = consumed(entry_maker(LOSSLESS).header, lines(record, LOSSLESS))

    assert [read_back(row) for row in found] == list(record.entries)
    for index, row in enumerate(found):
        assert (row["row_key"], row["commit_timestamp"], row["tiebreaker"]) == (
            record.row_key,
            record.commit,
            record.tiebreaker,
        )
        assert (row["is_gc"], row["source_cluster"]) == (record.kind == "GARBAGE_COLLECTION", record.source_cluster)
        assert (row["entry_index"], row["entry_count"]) == (index, len(record.entries))
        assert (row["source_instance"], row["source_table"]) == ("i", "weather")


@settings(deadline=None)
@given(data_changes(), st.text("xyz", min_size=1), st.integers(0, COMMIT))
def test_a_record_that_is_read_twice_makes_the_same_lines(record: DataChange, token: str, low: int) -> None:
    again = msgspec.structs.replace(record, token=token, low_watermark=Microseconds(low))

    first, second = lines(record, LOSSLESS), lines(again, LOSSLESS)

    assert [(line.key, line.sequence, line.row) for line in first] == [
        (line.key, line.sequence, line.row) for line in second
    ]
    assert len({line.key for line in first}) == len(first)


@settings(deadline=None)
@given(data_changes(), data_changes())
def test_lines_of_different_records_have_different_ids(one: DataChange, other: DataChange) -> None:
    same = msgspec.structs.replace(other, token=one.token, low_watermark=one.low_watermark) == one
    keys = {line.key for line in lines(one, LOSSLESS)} & {line.key for line in lines(other, LOSSLESS)}

    assert bool(keys) == same


def test_records_that_differ_in_nothing_but_what_they_wrote_have_different_ids() -> None:
    one, other = a_change(a_cell(value=b"1")), a_change(a_cell(value=b"2"))

    assert lines(one)[0].key != lines(other)[0].key


@settings(deadline=None)
@given(st.lists(data_changes(), min_size=1, max_size=5))
def test_sequences_are_ordered_by_commit_tiebreaker_and_place(records: list[DataChange]) -> None:
    by_rule = [
        (record.commit, record.tiebreaker, index, line)
        for record in records
        for index, line in enumerate(lines(record, LOSSLESS))
    ]

    for commit, tiebreaker, index, line in by_rule:
        assert line.sequence == str(four_sections(commit, tiebreaker + 2**31, index))
    in_text_order = [place[:3] for place in sorted(by_rule, key=lambda each: each[3].sequence)]
    assert in_text_order == sorted(place[:3] for place in by_rule)


def test_a_line_has_the_columns_of_the_template_and_its_place_in_the_call() -> None:
    record = a_change(
        DeleteCells("cf", b"temp", Microseconds(0), Microseconds(0)),
        a_cell("cf", b"temp", b"\xff", timestamp=COMMIT),
        row_key=b"station#JFK",
        commit=COMMIT,
        tiebreaker=7,
    )

    first, second = rows(record)

    assert {name: value for name, value in second.items() if name != "id" and not name.startswith("_")} == {
        "row_key": "station#JFK",
        "mod_type": "SET_CELL",
        "commit_timestamp": COMMIT,
        "column_family": "cf",
        "column": "temp",
        "timestamp": COMMIT,
        "value": b"\xff",
        "is_gc": False,
        "source_instance": "i",
        "source_cluster": "c1",
        "source_table": "weather",
        "tiebreaker": 7,
        "entry_index": 1,
        "entry_count": 2,
    }
    assert first["mod_type"] == "DELETE_CELLS"
    assert not {"timestamp", "value", "timestamp_from", "timestamp_to"} & first.keys()
    assert [row["id"][:-1] for row in (first, second)] == [second["id"][:-1]] * 2


def test_a_line_reports_in_its_place_what_the_source_says_of_it() -> None:
    (line,) = lines(a_change(a_cell(), commit=COMMIT, tiebreaker=-3, low_watermark=COMMIT - 456))

    assert msgspec.json.decode(line.place) == {
        "entry_index": 0,
        "entry_count": 1,
        "source_cluster": "c1",
        "tiebreaker": -3,
        "low_watermark": "2023-11-14T22:13:20.123Z",
    }
    assert line.commit_timestamp == "2023-11-14T22:13:20.123456Z"


def test_what_garbage_collection_removed_is_marked_or_left_out() -> None:
    record = a_change(DeleteFamily("f"), kind="GARBAGE_COLLECTION")

    assert [row["is_gc"] for row in rows(record)] == [True]
    assert lines(record, BigtableOptions(garbage_collection="exclude")) == []


def test_a_log_without_values_has_all_else() -> None:
    (with_values,) = rows(a_change(a_cell(value=b"v")))
    (without,) = rows(a_change(a_cell(value=b"v")), BigtableOptions(strip_values=True))

    assert with_values.pop("value") == b"v"
    assert without == with_values


def test_what_is_filtered_out_leaves_the_others_their_places_and_ids() -> None:
    record = a_change(a_cell("f"), a_cell("g", b"debug"), a_cell("g", b"q"))
    whole = rows(record)

    found = rows(record, BigtableOptions(excluded_families=("f",), excluded_columns=(("g", b"debug"),)))

    assert found == [whole[2]]


def test_an_entry_of_no_known_kind_is_a_line_with_its_name() -> None:
    (row,) = rows(a_change(UnknownEntry("MUTATION_100", "", b"\x01")), BigtableOptions(excluded_families=("*",)))

    assert (row["mod_type"], row["value"]) == ("MUTATION_100", b"\x01")
    assert "column_family" not in row


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        (a_change(a_cell(), row_key=b"\xff"), Reason.KEY_NOT_REPRESENTABLE, 'row_key = "BYTES"'),
        (a_change(a_cell("f", b"\xff")), Reason.VALUE_DOES_NOT_FIT, 'qualifiers = "base64"'),
        (a_change(a_cell(timestamp=2**62)), Reason.VALUE_DOES_NOT_FIT, 'timestamps = "INT64"'),
        (
            a_change(DeleteCells("f", b"q", Microseconds(2**62), Microseconds(0))),
            Reason.VALUE_DOES_NOT_FIT,
            "column timestamp_from",
        ),
    ],
)
def test_what_a_column_cannot_hold_is_refused_whole_with_the_fix(
    record: DataChange, reason: Reason, detail: str
) -> None:
    (found,) = refused(record)

    assert found.reason is reason
    assert detail in found.detail
    old = found.whole().old
    assert old is not None
    assert b"row_key" in old.encode()
    assert len(lines(record, LOSSLESS)) == 1
    # Replayed as it is, it is set aside again, and never a row.
    assert consumed_or_dead_lettered(found.header, [found.whole()]) == ([], [Reason.BAD_CHANGE.value])


def test_one_refused_entry_stops_none_of_the_others() -> None:
    record = a_change(a_cell("f", b"a"), a_cell("f", b"\xff"), a_cell("f", b"b"))

    made, refused = entry_maker().changes(record)

    assert len(made) == 2
    assert [one.change.key for one in refused] == [lines(record, LOSSLESS)[1].key]


def test_lines_of_a_row_share_an_ordering_key() -> None:
    one, other = a_change(a_cell(), a_cell()), a_change(DeleteFamily("g"), commit=COMMIT)
    (first, second), _none = entry_maker().changes(one)
    (third,), _none = entry_maker().changes(other)

    assert first[0] == second[0] == third[0]
    assert first[0].startswith("weather/")
