"""Bigtable's rules for cells, as the demo follows its own calls and as change logs are replayed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.platform.cells import (
    Call,
    Cells,
    CheckAndMutate,
    DeleteCells,
    DeleteFamily,
    DeleteRow,
    DropRows,
    Increment,
    MutateRow,
    MutateRows,
    Mutation,
    SetCell,
    newest,
)

ROW = b"JFK#1"


def after(*mutations: Mutation) -> Cells:
    cells = Cells()
    cells.apply(MutateRow("t", ROW, mutations))
    return cells


def three() -> list[Mutation]:
    return [SetCell("f", b"q", timestamp, str(timestamp).encode()) for timestamp in (1000, 2000, 3000)]


@pytest.mark.parametrize(
    ("start", "end", "left"), [(0, 0, []), (2000, 0, [1000]), (0, 2000, [2000, 3000]), (1000, 3000, [3000])]
)
def test_a_range_of_times_is_open_where_it_is_0_and_its_end_is_not_in_it(start: int, end: int, left: list[int]) -> None:
    row = after(*three(), DeleteCells("f", b"q", start, end)).row(ROW)

    assert list(row.get("f", {}).get(b"q", {})) == left


def test_mutations_of_a_call_are_applied_in_their_order() -> None:
    one = after(*three(), DeleteCells("f", b"q"), SetCell("f", b"q", 1000, b"new"))

    assert one.row(ROW) == {"f": {b"q": {1000: b"new"}}}
    assert newest(one.row(ROW)["f"][b"q"]) == b"new"


def test_the_newest_value_is_that_of_the_latest_time_and_not_of_the_last_call() -> None:
    assert newest(after(*reversed(three())).row(ROW)["f"][b"q"]) == b"3000"


@pytest.mark.parametrize("gone", [DeleteRow(), DeleteFamily("f"), DeleteCells("f", b"q")])
def test_a_row_without_cells_is_not_there(gone: Mutation) -> None:
    cells = after(*three(), gone)

    assert (len(cells), ROW in cells, cells.row(ROW), cells.rows) == (0, False, {}, {})


def test_what_deletes_one_family_leaves_the_other() -> None:
    assert after(*three(), SetCell("g", b"q", 1000, b"g"), DeleteFamily("f")).row(ROW) == {"g": {b"q": {1000: b"g"}}}


def test_counters_are_numbers_of_64_bits_and_start_at_0() -> None:
    cells = Cells()
    for amount in (5, -7):
        assert cells.apply(Increment("t", ROW, [("f", b"n", amount), ("f", b"m", 1)])) == 1

    assert newest(cells.row(ROW)["f"][b"n"]) == b"\xff" * 7 + b"\xfe"
    assert newest(cells.row(ROW)["f"][b"m"]) == b"\0" * 7 + b"\2"


def test_dropped_are_the_rows_with_the_prefix_and_each_is_a_record() -> None:
    cells = Cells()
    cells.apply(MutateRows("t", [MutateRow("t", key, three()) for key in (b"a#1", b"a#2", b"b#1")]))

    assert cells.apply(DropRows("t", b"a#")) == 2
    assert list(cells) == [b"b#1"]


@pytest.mark.parametrize(
    ("call", "records"),
    [
        (MutateRow("t", b"nobody", [DeleteRow()]), 0),
        (MutateRow("t", ROW, [DeleteRow()]), 1),
        (MutateRow("t", b"nobody", [DeleteRow(), SetCell("f", b"q", 1000, b"v")]), 1),
        (MutateRow("t", b"nobody", [DeleteFamily("f")]), 1),
        (CheckAndMutate("t", ROW, "f", b"q", then=[], otherwise=[DeleteFamily("f")]), 0),
        (CheckAndMutate("t", ROW, "f", b"x", then=[], otherwise=[DeleteFamily("f")]), 1),
        (DropRows("t", b"nobody"), 0),
    ],
)
def test_a_record_is_counted_where_the_stream_has_one(call: Call, records: int) -> None:
    assert after(*three()).apply(call) == records


CELL = st.builds(SetCell, st.sampled_from("fg"), st.sampled_from([b"p", b"q"]), st.sampled_from([1, 2, 3]), st.binary())
MUTATION = st.one_of(
    CELL,
    st.builds(DeleteCells, st.sampled_from("fg"), st.sampled_from([b"p", b"q"]), st.integers(0, 3), st.integers(0, 4)),
    st.builds(DeleteFamily, st.sampled_from("fg")),
    st.just(DeleteRow()),
)


@given(st.lists(MUTATION, max_size=12))
def test_the_cells_are_those_that_were_written_and_not_deleted_since(mutations: list[Mutation]) -> None:
    """Told the other way round: of each cell, what the last call that spoke of it said."""
    expected = {}
    for family in "fg":
        for qualifier in (b"p", b"q"):
            for timestamp in (1, 2, 3):
                mentioning = [one for one in mutations if _speaks_of(one, family, qualifier, timestamp)]
                if mentioning and isinstance(mentioning[-1], SetCell):
                    expected[family, qualifier, timestamp] = mentioning[-1].value

    row = after(*mutations).row(ROW)
    stored = {
        (family, qualifier, timestamp): value
        for family, cells in row.items()
        for qualifier, versions in cells.items()
        for timestamp, value in versions.items()
    }
    assert stored == expected


def _speaks_of(mutation: Mutation, family: str, qualifier: bytes, timestamp: int) -> bool:
    match mutation:
        case SetCell():
            return (mutation.family, mutation.qualifier, mutation.timestamp) == (family, qualifier, timestamp)
        case DeleteCells():
            within = mutation.start <= timestamp and (mutation.end == 0 or timestamp < mutation.end)
            return (mutation.family, mutation.qualifier) == (family, qualifier) and within
        case DeleteFamily():
            return mutation.family == family
        case DeleteRow():
            return True
