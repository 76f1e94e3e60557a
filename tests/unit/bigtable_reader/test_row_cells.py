"""Rows put together from the chunks that a service cuts them into: any cutting gives the same rows."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pytest
from google.cloud.bigtable_v2.types import ReadRowsResponse
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.adapters.row_chunks import BrokenRowError, RowChunks, cells_of
from services.bigtable_reader.adapters.rows import portions
from services.bigtable_reader.core.images import CellVersion, RowCells

Chunk: Final[Any] = ReadRowsResponse.CellChunk.pb()

versions = st.lists(st.builds(CellVersion, st.integers(0, 1 << 50), st.binary(max_size=12)), min_size=1, max_size=3)
some_rows = st.dictionaries(
    st.binary(min_size=1, max_size=5),
    st.dictionaries(
        st.sampled_from(["f", "g"]),
        st.dictionaries(st.binary(max_size=3), versions, min_size=1, max_size=3),
        min_size=1,
        max_size=2,
    ),
    min_size=1,
    max_size=4,
)


def chunks(rows: dict[bytes, RowCells], draw: Any) -> Iterator[Any]:
    """Yield the chunks of rows: names only where they differ or are said again, values cut, rows taken back."""
    for row_key in sorted(rows):
        whole = list(_row(row_key, rows[row_key], draw))
        if draw(st.booleans()):  # the first chunks come, are taken back, and all comes again
            yield from whole[: draw(st.integers(1, len(whole)))][: len(whole) - 1]
            if len(whole) > 1:
                yield Chunk(reset_row=True)
        yield from whole


def _row(row_key: bytes, families: RowCells, draw: Any) -> Iterator[Any]:
    cells = cells_of(families)
    before: tuple[str, bytes] | None = None
    for index, version in enumerate(cells):
        family, qualifier = version.family, version.qualifier
        chunk = Chunk(timestamp_micros=version.timestamp, labels=draw(st.sampled_from([(), ("label",)])))
        if before is None or draw(st.booleans()):
            chunk.row_key = row_key
        if before is None or before[0] != family or draw(st.booleans()):
            chunk.family_name.value, chunk.qualifier.value = family, qualifier
        elif before[1] != qualifier:
            chunk.qualifier.value = qualifier
        before = family, qualifier
        cuts = (
            sorted({cut % len(version.value) for cut in draw(st.lists(st.integers(0, 11), max_size=2))} - {0})
            if (version.value)
            else []
        )
        bounds = [0, *cuts, len(version.value)]
        for start, end in pairwise(bounds):
            if start:
                chunk = Chunk()
            chunk.value = version.value[start:end]
            if end < len(version.value):
                chunk.value_size = len(version.value)
            elif index == len(cells) - 1:
                chunk.commit_row = True
            yield chunk


@settings(deadline=None)
@given(some_rows, st.data())
def test_any_cutting_gives_the_same_rows(rows: dict[bytes, RowCells], data: Any) -> None:
    taken = RowChunks()
    came = [Chunk.FromString(chunk.SerializeToString()) for chunk in chunks(rows, data.draw)]
    cut = data.draw(st.integers(0, len(came)))

    found = [*taken.take(came[:cut]), *taken.take(came[cut:])]
    taken.end()

    assert found == [(row_key, rows[row_key]) for row_key in sorted(rows)]
    assert [cells_of(families) for _row_key, families in found] == [cells_of(rows[row_key]) for row_key in sorted(rows)]


def chunk(**fields: Any) -> Any:
    made = Chunk()
    for name, value in fields.items():
        if name in ("family_name", "qualifier"):
            getattr(made, name).value = value
        else:
            setattr(made, name, value)
    return made


def first(**fields: Any) -> Any:
    return chunk(row_key=b"k", family_name="f", qualifier=b"q", value=b"v", **fields)


@pytest.mark.parametrize(
    ("came", "what"),
    [
        ([chunk(family_name="f", qualifier=b"q", value=b"v", commit_row=True)], "without key, family and qualifier"),
        ([chunk(row_key=b"k", qualifier=b"q", commit_row=True)], "without key, family and qualifier"),
        ([chunk(row_key=b"k", family_name="f", commit_row=True)], "without key, family and qualifier"),
        ([first(commit_row=True), first(commit_row=True)], "out of order"),
        ([first(), chunk(row_key=b"l", family_name="f", qualifier=b"q", commit_row=True)], "before another"),
        ([first(), chunk(family_name="g", value=b"v", commit_row=True)], "a family without a qualifier"),
        ([first(value_size=9, commit_row=True)], "before a value is whole"),
        ([first(value_size=9), chunk(row_key=b"l", value=b"w")], "before a value is whole"),
        ([first()], "ended within a row"),
        ([first(value_size=9)], "ended within a row"),
        ([chunk(reset_row=True)], "before it began"),
        ([first(), chunk(reset_row=True, value=b"v")], "with content"),
    ],
)
def test_what_contradicts_itself_is_no_row(came: list[Any], what: str) -> None:
    def all_of_it() -> None:
        taken = RowChunks()
        list(taken.take(came))
        taken.end()

    with pytest.raises(BrokenRowError, match=what):
        all_of_it()


@given(st.lists(st.binary(min_size=1, max_size=4096), max_size=200), st.integers(1, 50), st.integers(1, 9000))
def test_requests_hold_as_many_keys_as_fit_and_each_once(keys: list[bytes], most: int, most_bytes: int) -> None:
    cut = list(portions(keys, most, most_bytes))

    assert [key for portion in cut for key in portion] == keys
    for portion in cut:
        assert len(portion) <= most
        assert len(portion) == 1 or sum(map(len, portion)) <= most_bytes
