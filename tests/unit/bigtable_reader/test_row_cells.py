"""Rows put together from the chunks that a service cuts them into: any cutting gives the same rows."""

import asyncio
import tracemalloc
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import pytest
from google.cloud.bigtable_v2.types import ReadRowsResponse
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.adapters.bigtable.plain_rows import plain_rows
from services.bigtable_reader.adapters.bigtable.row_chunks import READ_ROWS, BrokenRowError, RowChunks, cells_of
from services.bigtable_reader.adapters.bigtable.row_messages import NO_MESSAGE, family_of, qualifier_of
from services.bigtable_reader.adapters.stream.rows import ArrivingRows, portions
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import (
    CellVersion,
    ImageMaker,
    PlainRow,
    Row,
    RowCells,
    TooLargeRow,
)
from services.bigtable_reader.core.changes.refused import Made
from services.bigtable_reader.core.snapshot.snapshot import SnapshotPlace
from services.bigtable_reader.core.stream.records import Microseconds
from shared.contracts.bigtable_options import BigtableOptions, CellColumn, FamilyColumn
from shared.pubsub.packer import REQUEST_BYTES
from tests.seeds import examples

Chunk: Final[Any] = ReadRowsResponse.CellChunk.pb()
Answer: Final[Any] = ReadRowsResponse.pb()


def as_read(*chunks: Any) -> Any:
    """Return an answer with these chunks as it is read."""
    return READ_ROWS.response.FromString(Answer(chunks=chunks).SerializeToString())


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


@settings(deadline=None, max_examples=examples(100))
@given(some_rows, st.data())
def test_any_cutting_gives_the_same_rows(rows: dict[bytes, RowCells], data: Any) -> None:
    taken = RowChunks()
    came = as_read(*chunks(rows, data.draw)).chunks
    cut = data.draw(st.integers(0, len(came)))

    found = [*taken.take(came[:cut]), *taken.take(came[cut:])]
    taken.end()

    assert found == [(row_key, rows[row_key]) for row_key in sorted(rows)]
    assert [cells_of(families) for _row_key, families in found] == [cells_of(rows[row_key]) for row_key in sorted(rows)]


OPTIONS: Final = [
    BigtableOptions(),
    BigtableOptions(values="json", excluded_families=("g",)),
    BigtableOptions(versions=2, cell_timestamps=True, excluded_columns=(("f", b"a"), ("g", b""))),
    BigtableOptions(
        versions=3,
        values="text",
        families=("g",),
        columns=(CellColumn(name="declared", type="BYTES", family="f", qualifier=b"b", encoding="bytes"),),
    ),
]


@settings(deadline=None, max_examples=examples(100))
@given(some_rows, st.data(), st.sampled_from(OPTIONS), st.integers(20, 200), st.integers(1, 5))
def test_of_a_row_that_fits_every_cell_of_its_image_is_kept_and_of_one_that_cannot_fit_only_its_size(
    rows: dict[bytes, RowCells], data: Any, options: BigtableOptions, largest: int, at_once: int
) -> None:
    watched = Watched(options)
    images = ImageMaker(source="s", table="t", options=options, families=["f", "g"], buckets=1, watched=watched)
    arriving = ArrivingRows(watched, largest)
    came = list(chunks(rows, data.draw))
    found: dict[bytes, Row] = {}

    async def read() -> None:
        for start in range(0, len(came), at_once):
            found.update(await arriving.take(as_read(*came[start : start + at_once])))
            if arriving.stopped:
                break

    asyncio.run(read())
    assert list(found) == sorted(rows)[: len(found)]
    assert len(found) == len(rows) or arriving.stopped
    for row_key, row in found.items():
        expected = images.row(row_key, rows[row_key], SnapshotPlace(1, 1, 1, Microseconds(1)))
        made = images.row(row_key, row, SnapshotPlace(1, 1, 1, Microseconds(1)))
        if not isinstance(row, TooLargeRow):
            assert made.change == expected.change
        elif isinstance(expected, Made):
            assert row.bytes > largest
            assert len(expected.change.row or "") > largest


def test_a_row_that_no_message_can_hold_is_read_no_further_than_that_and_one_of_columns_left_out_is_not_kept() -> None:
    value = bytes(1_000_000)
    answers = [
        Answer(chunks=[Chunk(row_key=b"k" * (not number), timestamp_micros=1, value=value)]) for number in range(250)
    ]
    for number, answer in enumerate(answers):
        answer.chunks[0].family_name.value, answer.chunks[0].qualifier.value = "f", b"%d" % number

    async def read(watched: Watched) -> tuple[Row, int, int]:
        arriving = ArrivingRows(watched, REQUEST_BYTES)
        tracemalloc.start()
        try:
            for number, answer in enumerate(answers, 1):
                answer.chunks[0].commit_row = number == len(answers)
                if rows := await arriving.take(as_read(*answer.chunks)):
                    return rows[0][1], number, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        raise AssertionError

    row, taken, memory = asyncio.run(read(Watched(BigtableOptions())))
    assert row == TooLargeRow(9_000_045)
    assert (taken, memory < 11_000_000) == (9, True)

    left_out = tuple(("f", b"%d" % number) for number in range(1, 250))
    row, taken, memory = asyncio.run(read(Watched(BigtableOptions(excluded_columns=left_out))))
    assert row == {"f": {b"0": [CellVersion(1, value)]}}
    assert (taken, memory < 3_000_000) == (250, True)


def test_a_cell_in_pieces_that_no_message_can_hold_is_read_no_further_than_that() -> None:
    async def read(value_size: int, watched: Watched | None = None) -> tuple[Row, int]:
        arriving = ArrivingRows(watched, REQUEST_BYTES)
        for number in range(100):
            part = Chunk(timestamp_micros=1, value=bytes(1_000_000), value_size=value_size * (number < 99))
            part.commit_row = number == 99
            if not number:
                part.row_key, part.family_name.value, part.qualifier.value = b"k", "f", b"q"
            if rows := await arriving.take(as_read(part)):
                return rows[0][1], number + 1
        raise AssertionError

    row, taken = asyncio.run(read(value_size=100_000_000))
    assert isinstance(row, TooLargeRow)
    assert (row.bytes >= 100_000_000, taken <= 19) == (True, True)

    row, taken = asyncio.run(read(value_size=1))  # some service may not say how much there is to come
    assert isinstance(row, TooLargeRow)
    assert (row.bytes > REQUEST_BYTES, taken <= 19) == (True, True)

    left_out = Watched(BigtableOptions(excluded_columns=(("f", b"q"),)))
    assert asyncio.run(read(100_000_000, left_out)) == ({"f": {b"q": []}}, 100)


async def test_a_row_of_many_cells_leaves_turns_of_the_event_loop_to_others() -> None:
    answer = Answer(chunks=[Chunk(timestamp_micros=1, value=b"v") for _ in range(50_000)])
    for number, cell in enumerate(answer.chunks):
        cell.qualifier.value = b"%05d" % number
    answer.chunks[0].row_key, answer.chunks[0].family_name.value = b"k", "f"
    answer.chunks[-1].commit_row = True
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    rows = await ArrivingRows(None, REQUEST_BYTES).take(as_read(*answer.chunks))
    others.cancel()
    ((row_key, row),) = rows
    assert isinstance(row, dict)
    assert (row_key, len(row["f"])) == (b"k", 50_000)
    assert turns == 4


def chunk(**fields: Any) -> Any:
    return into(Chunk(), fields)


def into(chunk: Any, fields: Mapping[str, Any]) -> Any:
    """Set the fields of a chunk, to None: clear them."""
    for name, value in fields.items():
        chunk.ClearField(name)
        if value is None:
            continue
        if name in ("family_name", "qualifier"):
            getattr(chunk, name).value = value
        elif name == "labels":
            chunk.labels.extend(value)
        else:
            setattr(chunk, name, value)
    return chunk


def first(**fields: Any) -> Any:
    return chunk(**{"row_key": b"k", "family_name": "f", "qualifier": b"q", "value": b"v", **fields})


@pytest.mark.parametrize(
    ("came", "what"),
    [
        ([chunk(family_name="f", qualifier=b"q", value=b"v", commit_row=True)], "without key, family and qualifier"),
        ([chunk(row_key=b"k", qualifier=b"q", commit_row=True)], "without key, family and qualifier"),
        ([chunk(row_key=b"k", family_name="f", commit_row=True)], "without key, family and qualifier"),
        ([first(commit_row=True), first(commit_row=True)], "out of order"),
        ([first(), chunk(row_key=b"l", family_name="f", qualifier=b"q", commit_row=True)], "before another"),
        ([first(), first(row_key=b"l", commit_row=True)], "before another"),
        ([first(), chunk(family_name="g", value=b"v", commit_row=True)], "a family without a qualifier"),
        ([first(value_size=9, commit_row=True)], "before a value is whole"),
        ([first(value_size=9), chunk(row_key=b"l", value=b"w")], "before a value is whole"),
        ([first()], "ended within a row"),
        ([first(value_size=9)], "ended within a row"),
        ([chunk(reset_row=True)], "before it began"),
        ([first(), chunk(reset_row=True, value=b"v")], "with content"),
    ],
)
@pytest.mark.parametrize("right_from_chunks", [True, False])
async def test_what_contradicts_itself_is_no_row(came: list[Any], what: str, right_from_chunks: bool) -> None:
    images = ImageMaker(
        source="s", table="t", options=PLAIN[0], families=["f", "g"], buckets=9, watched=Watched(PLAIN[0])
    )
    before = chunk(row_key=b"a", family_name="f", qualifier=b"q", commit_row=True)

    async def all_of_it() -> None:
        taken = ArrivingRows(None, REQUEST_BYTES, plain_rows(images) if right_from_chunks else None)
        await taken.take(as_read(before, *came))
        taken.end()

    with pytest.raises(BrokenRowError, match=what):
        await all_of_it()


any_chunks = st.lists(
    st.builds(
        chunk,
        row_key=st.sampled_from([b"", b"", b"a", b"b", b"\xff"]),
        family_name=st.sampled_from([None, "", "f", "g", "unknown"]),
        qualifier=st.sampled_from([None, b"", b"a", b"b", b"\xff", b"long" * 100]),
        timestamp_micros=st.integers(-(1 << 63), (1 << 63) - 1),
        value=st.binary(max_size=200),
        value_size=st.sampled_from([0, 0, 0, 300]),
        reset_row=st.sampled_from([None, None, None, False, True]),
        commit_row=st.sampled_from([None, False, True]),
        labels=st.sampled_from([None, ["label"]]),
    ),
    max_size=8,
)


@given(any_chunks, st.binary())
def test_an_answer_is_read_as_googles_class_reads_it(came: list[Any], last: bytes) -> None:
    whole = Answer(chunks=came, last_scanned_row_key=last)
    answer = READ_ROWS.response.FromString(whole.SerializeToString())

    assert (len(answer.chunks), answer.last_scanned_row_key) == (len(came), last)
    assert answer.ByteSize() == whole.ByteSize()
    for ours, google in zip(answer.chunks, whole.chunks, strict=True):
        for name in ("row_key", "timestamp_micros", "value", "value_size", "reset_row", "commit_row"):
            assert getattr(ours, name) == getattr(google, name)
        for name, of in (("family_name", family_of), ("qualifier", qualifier_of)):
            assert (getattr(ours, name) != NO_MESSAGE) == google.HasField(name)
            if google.HasField(name):
                assert of(getattr(ours, name)) == getattr(google, name).value


PLAIN: Final = [
    BigtableOptions(),
    BigtableOptions(row_key="BYTES", qualifiers="base64"),
    BigtableOptions(columns=(FamilyColumn(name="g", family="g", values="text"),)),
    OPTIONS[2],
]


usual_rows = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"\xff"]),
    st.dictionaries(
        st.sampled_from(["f", "f", "g", "unknown"]),
        st.sets(st.sampled_from([b"", b"a", b"b", b"b", b"d", b"\xff"]), min_size=1),
        min_size=1,
        max_size=2,
    ),
    min_size=2,
)
edits = st.tuples(
    st.integers(0, 30),
    st.sampled_from(
        [
            {"row_key": b"a"},
            {"row_key": b""},
            {"family_name": "f", "qualifier": b"a"},
            {"family_name": "f", "qualifier": b"c"},
            {"family_name": None},
            {"qualifier": None},
            {"qualifier": b""},
            {"value_size": 9},
            {"reset_row": True},
            {"commit_row": True},
            {"commit_row": None},
        ]
    ),
)


@settings(deadline=None, max_examples=examples(1_000))
@given(
    usual_rows,
    st.lists(edits, max_size=2),
    st.sampled_from(PLAIN),
    st.sampled_from([3, 99]),
    st.sampled_from([99, 9999]),
)
def test_rows_that_are_made_right_from_chunks_have_the_images_that_their_cells_have(
    given_rows: dict[bytes, dict[str, set[bytes]]],
    edited: list[tuple[int, dict[str, Any]]],
    options: BigtableOptions,
    at_once: int,
    largest: int,
) -> None:
    cells: dict[bytes, RowCells] = {
        row_key: {
            name: {each: [CellVersion(1, row_key + each)] for each in sorted(found)} for name, found in row.items()
        }
        for row_key, row in given_rows.items()
    }
    came = list(chunks(cells, lambda _strategy: ()))
    for index, edit in edited:
        into(came[index % len(came)], edit)
    watched = Watched(options)

    async def images(*, right_from_chunks: bool) -> tuple[list[object], str]:
        maker = ImageMaker(source="s", table="t", options=options, families=["f", "g"], buckets=9, watched=watched)
        arriving = ArrivingRows(watched, largest, plain_rows(maker) if right_from_chunks else None)
        found: list[object] = []
        try:
            for start in range(0, len(came), at_once):
                rows = await arriving.take(as_read(*came[start : start + at_once]))
                found += [maker.row(row_key, row, SnapshotPlace(1, 1, 1, Microseconds(1))) for row_key, row in rows]
                if arriving.stopped:
                    return found, "stopped"
            arriving.end()
        except BrokenRowError as error:
            return found, str(error)
        return found, "whole"

    assert asyncio.run(images(right_from_chunks=True)) == asyncio.run(images(right_from_chunks=False))


def test_usual_rows_are_made_right_from_chunks() -> None:
    images = ImageMaker(
        source="s", table="t", options=PLAIN[0], families=["f", "g"], buckets=9, watched=Watched(PLAIN[0])
    )
    plain = plain_rows(images)
    assert plain is not None
    cells = {"f": {b"": [CellVersion(1, b"1")], b"a": [CellVersion(1, b"")]}, "g": {b"a": [CellVersion(1, b"2")]}}
    came = as_read(*chunks({b"k": cells, b"l": {"g": cells["g"]}}, lambda _strategy: ()), first())

    rows, taken = plain.take(came.chunks, b"")

    assert taken == 4
    assert rows == [
        (b"k", PlainRow('"k"', {"f": r'"{\"\":\"MQ==\",\"a\":\"\"}"', "g": r'"{\"a\":\"Mg==\"}"'})),
        (b"l", PlainRow('"l"', {"g": r'"{\"a\":\"Mg==\"}"'})),
    ]
    assert plain.take(came.chunks, b"k") == ([], 0)
    again = chunk(family_name="g", qualifier=b"q"), chunk(family_name="f", qualifier=b"r", commit_row=True)
    assert plain.take(as_read(first(), *again).chunks, b"") == ([], 0)


@given(st.lists(st.binary(min_size=1, max_size=4096), max_size=200), st.integers(1, 50), st.integers(1, 9000))
def test_requests_hold_as_many_keys_as_fit_and_each_once(keys: list[bytes], most: int, most_bytes: int) -> None:
    cut = list(portions(keys, most, most_bytes))

    assert [key for portion in cut for key in portion] == keys
    for portion in cut:
        assert len(portion) <= most
        assert len(portion) == 1 or sum(map(len, portion)) <= most_bytes
