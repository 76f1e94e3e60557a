"""Messages of a change stream put together: any cutting gives the same record, and what contradicts itself none."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.adapters.stream.change_stream import records_of
from services.bigtable_reader.core.stream.merging import BrokenStreamError, Merging, key_range
from services.bigtable_reader.core.stream.records import (
    Aggregated,
    Child,
    CloseStream,
    DataChange,
    DeleteFamily,
    Heartbeat,
    KeyRange,
    Microseconds,
    RangeToken,
    SetCell,
    StreamRecord,
    UnknownEntry,
)
from shared.contracts.errors import MisconfiguredError
from tests.seeds import examples
from tests.unit.bigtable_reader.stream_messages import (
    CONTINUATION,
    GARBAGE_COLLECTION,
    ContinuationToken,
    Response,
    a_cell,
    a_change,
    data_changes,
    messages,
)


def merged(what: Iterable[Any], **how: Any) -> list[StreamRecord]:
    merging = Merging(**how)
    taken = [merging.take(Response.FromString(message.SerializeToString())) for message in what]
    return [record for record in taken if record is not None]


def heartbeat() -> Any:
    message = Response()
    message.heartbeat.continuation_token.MergeFrom(ContinuationToken(token="later"))
    message.heartbeat.estimated_low_watermark.FromMicroseconds(5_000_001)
    return message


cuttings = st.tuples(
    st.lists(st.lists(st.integers(0, 100), max_size=3), max_size=8), st.lists(st.integers(0, 100), max_size=4)
)


@settings(deadline=None)
@given(st.lists(st.tuples(data_changes(), cuttings), min_size=1, max_size=4))
def test_any_cutting_of_values_and_changes_gives_the_same_records(
    cut: list[tuple[DataChange, tuple[list[list[int]], list[int]]]],
) -> None:
    stream = [message for change, (cuts, ends) in cut for message in messages(change, cuts, ends)]

    assert merged(stream) == [change for change, _cutting in cut]


@settings(deadline=None)
@given(data_changes(), cuttings)
def test_without_values_all_else_is_the_same(change: DataChange, cutting: tuple[list[list[int]], list[int]]) -> None:
    bare = tuple(
        msgspec.structs.replace(entry, value=b"") if isinstance(entry, SetCell | Aggregated) else entry
        for entry in change.entries
    )

    assert merged(messages(change, *cutting), keep="names") == [msgspec.structs.replace(change, entries=bare)]


@st.composite
def any_messages(draw: st.DrawFn) -> Any:
    """Return a message of a change that may break any of the rules."""
    whole = messages(draw(data_changes()), *draw(cuttings))
    message = draw(st.sampled_from(whole))
    change = message.data_change
    change.type_ = draw(st.sampled_from([change.type_] * 4 + [0, 1, 2, 3, 9]))
    change.done = draw(st.sampled_from([True, True, False]))
    for field in draw(st.lists(st.sampled_from(list(change.DESCRIPTOR.fields)), max_size=2)):
        change.ClearField(field.name)
    if draw(st.booleans()):
        time = draw(st.sampled_from([change.commit_timestamp, change.estimated_low_watermark]))
        time.seconds, time.nanos = draw(st.sampled_from([(0, 0), (-1, 0), (0, 999), (253_402_300_800, 0), (5, 1_999)]))
    if change.chunks and draw(st.booleans()):
        change.chunks[0].chunk_info.chunked_value_size = draw(st.sampled_from([0, 1, 40]))
    return message


def require_the_same(what: Sequence[Any], keep: Any) -> None:
    """Require of the quick way for whole changes, and of the general one, the same records and the same error."""
    piece_by_piece, broken = Merging(keep=keep), ""
    expected: list[StreamRecord] = []
    try:
        for message in what:
            expected += [record for record in [piece_by_piece.take(message)] if record is not None]
    except BrokenStreamError as error:
        broken = str(error)

    found, why = records_of(Merging(keep=keep), [message.SerializeToString() for message in what])

    assert (found, str(why or "")) == (expected, broken)


@settings(deadline=None, max_examples=examples(500))
@given(st.lists(any_messages(), min_size=1, max_size=3), st.sampled_from(["all", "names", "number"]))
def test_a_change_that_comes_whole_is_what_it_is_piece_by_piece(what: list[Any], keep: Any) -> None:
    require_the_same(what, keep)


@pytest.mark.parametrize("keep", ["all", "names", "number"])
def test_a_change_in_one_message_that_breaks_a_rule_is_no_whole_one(keep: Any) -> None:
    whole = messages(a_change(a_cell(), DeleteFamily("f")))[0]
    require_the_same([whole, whole], keep)
    for field in whole.data_change.DESCRIPTOR.fields:
        message = Response.FromString(whole.SerializeToString())
        message.data_change.ClearField(field.name)
        require_the_same([message], keep)
        require_the_same([message, whole], keep)
    for edit in (
        _set("type_", CONTINUATION),
        _set("type_", GARBAGE_COLLECTION),
        _set("commit_timestamp.seconds", -1),
        _set("commit_timestamp.seconds", 253_402_300_800),
        _set("estimated_low_watermark.seconds", -1),
        _set("estimated_low_watermark.seconds", 253_402_300_800),
        _set("chunks.0.chunk_info.chunked_value_size", 1),
        _set("chunks.0.chunk_info.chunked_value_size", 0),
    ):
        message = Response.FromString(whole.SerializeToString())
        edit([message])
        require_the_same([message], keep)
    of_a_later_version = Response.FromString(whole.SerializeToString())
    of_a_later_version.data_change.chunks[1].ParseFromString(b"\x1a\x01x")  # a field of number 3, and no mutation
    require_the_same([of_a_later_version], keep)
    not_text = whole.SerializeToString().replace(
        whole.data_change.token.encode(), b"\xff" * len(whole.data_change.token)
    )
    with pytest.raises(DecodeError):
        records_of(Merging(keep=keep), [not_text])


def test_a_change_that_is_not_done_is_no_record_though_it_has_a_token() -> None:
    message = messages(a_change(a_cell()))[0]
    message.data_change.done = False
    assert merged([message]) == []


def test_a_change_of_100000_entries_in_as_many_messages_comes_together() -> None:
    change = a_change(*(a_cell(qualifier=b"%d" % index) for index in range(100_000)))
    merging = Merging()
    last: StreamRecord | None = None
    for message in messages(change, ends=range(1, 100_000)):
        assert last is None
        last = merging.take(message)

    assert last == change


def test_heartbeats_carry_token_and_watermark() -> None:
    assert merged([heartbeat()]) == [Heartbeat("later", Microseconds(5_000_001))]


def broken(edit: Callable[[list[Any]], Sequence[Any] | None]) -> Sequence[Any]:
    """Return the messages of a change in three, whose value is in three pieces, after an edit."""
    change = a_change(a_cell(value=b"abcdef"), DeleteFamily("f"))
    whole = messages(change, cuts=[[2, 4]], ends=[1, 3])
    assert len(whole) == 3
    assert [len(message.data_change.chunks) for message in whole] == [1, 2, 1]
    return edit(whole) or whole


def _set(path: str, value: object, message: int = 0) -> Callable[[list[Any]], None]:
    def edit(whole: list[Any]) -> None:
        target = whole[message].data_change
        *way, name = path.split(".")
        for step in way:
            target = target[int(step)] if step.isdigit() else getattr(target, step)
        setattr(target, name, value)

    return edit


def _clear(field: str, message: int = 0) -> Callable[[list[Any]], None]:
    return lambda whole: whole[message].data_change.ClearField(field)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (_set("row_key", b""), "without a row key"),
        (_clear("commit_timestamp"), "without a commit timestamp"),
        (_set("commit_timestamp.seconds", -1), "outside the years"),
        (_clear("chunks"), "begins without an entry"),
        (_set("source_cluster_id", ""), "has a source cluster"),
        (_set("type_", GARBAGE_COLLECTION), "garbage collection has none"),
        (_set("type_", CONTINUATION), "a continuation of nothing"),
        (_set("type_", 0), "a change of type 0"),
        (_set("type_", 9), "a change of type 9"),
        (_set("type_", 1, message=1), "begins before another is done"),
        (lambda whole: whole[1:], "a continuation of nothing"),
        (lambda whole: [whole[0], heartbeat()], "a heartbeat in the middle"),
        (lambda whole: [whole[0], _closing()], "a close_stream in the middle"),
        (lambda whole: [whole[0], *whole], "begins before another is done"),
        (lambda whole: [whole[0], whole[2]], "before all its chunks"),
        (_clear("chunks", message=1), "before all its chunks"),
        (_set("chunks.0.chunk_info.chunked_value_size", 7), "has a chunk of one of"),
        (_set("chunks.1.chunk_info.chunked_value_offset", 5, message=1), "a chunk from byte 5"),
        (_set("chunks.1.mutation.set_cell.value", b"e", message=1), "came with 5"),
        (_set("chunks.1.chunk_info.last_chunk", False, message=1), "before all its chunks"),
        (_set("chunks.0.mutation.delete_from_family.family_name", "f", message=1), "no SetCell"),
        (_set("token", "", message=2), "without a token or a low watermark"),
        (_clear("estimated_low_watermark", message=2), "without a token or a low watermark"),
    ],
)
def test_what_contradicts_itself_is_no_record(edit: Callable[[list[Any]], Any], what: str) -> None:
    assert len(merged(broken(lambda _whole: None))) == 1

    with pytest.raises(BrokenStreamError, match=what):
        merged(broken(edit))


def test_a_change_that_is_done_within_a_value_is_no_record() -> None:
    def done_too_early(whole: list[Any]) -> list[Any]:
        whole[0].data_change.done = True
        return whole[:1]

    with pytest.raises(BrokenStreamError, match="done before all chunks"):
        merged(broken(done_too_early))


def test_a_change_that_memory_may_not_hold_stops_with_what_to_raise() -> None:
    change = a_change(*(a_cell(value=b"x" * 100) for _ in range(100)), row_key=b"wide")
    stream = messages(change, ends=range(1, 100))

    assert merged(stream, most_bytes=100_000) == [change]
    with pytest.raises(
        MisconfiguredError, match=r"key: 4 bytes, SHA-256 [0-9a-f]{16}\.\.\.\) has more than the 5000 bytes"
    ) as e:
        merged(stream, most_bytes=5_000)
    assert "MOST_CHANGE_BYTES" in str(e.value)
    assert "wide" not in str(e.value)
    assert len(merged(stream, most_bytes=20_000, keep="names")) == 1


def test_what_was_held_is_released_with_the_record() -> None:
    change = a_change(*(a_cell(value=b"x" * 100) for _ in range(10)))

    assert len(merged(messages(change, ends=range(1, 10)) * 10, most_bytes=3_000)) == 10


def test_mutations_of_no_known_kind_are_carried_by_their_name() -> None:
    message = messages(a_change(a_cell(), a_cell(), a_cell()))[0]
    chunks = message.data_change.chunks
    chunks[0].mutation.delete_from_row.SetInParent()
    chunks[1].mutation.ParseFromString(b"\x38\x01" + b"\xa2\x06\x03new")  # timestamp_origin, and a field 100
    chunks[2].mutation.Clear()

    (record,) = merged([message])

    assert isinstance(record, DataChange)
    assert record.entries == (
        UnknownEntry("DELETE_FROM_ROW", "", b"\x22\x00"),
        UnknownEntry("MUTATION_100", "", b"\x38\x01\xa2\x06\x03new"),
        UnknownEntry("MUTATION_UNKNOWN", "", b""),
    )


def test_what_is_added_to_an_aggregate_is_carried_as_a_cell_would_hold_it() -> None:
    message = messages(a_change(a_cell(), a_cell()))[0]
    first, second = (chunk.mutation for chunk in message.data_change.chunks)
    first.add_to_cell.family_name, first.add_to_cell.column_qualifier.raw_value = "sums", b"q"
    first.add_to_cell.timestamp.raw_timestamp_micros, first.add_to_cell.input.int_value = 7, -2
    second.merge_to_cell.family_name, second.merge_to_cell.column_qualifier.bytes_value = "sums", b"q"
    second.merge_to_cell.timestamp.int_value, second.merge_to_cell.input.float_value = 8, 1.0

    (record,) = merged([message])

    assert isinstance(record, DataChange)
    assert record.entries == (
        Aggregated("ADD_TO_CELL", "sums", b"q", Microseconds(7), b"\xff" * 7 + b"\xfe"),
        Aggregated("MERGE_TO_CELL", "sums", b"q", Microseconds(8), b"\x3f\xf0" + b"\0" * 6),
    )


def test_a_message_of_no_known_kind_stops() -> None:
    with pytest.raises(MisconfiguredError, match="upgrade the reader"):
        merged([Response()])


def _closing(*parts: tuple[bytes, bytes, bytes, bytes], name_partitions: bool = True) -> Any:
    message = Response()
    message.close_stream.status.code = 11
    for start, end, partition_start, partition_end in parts:
        token = message.close_stream.continuation_tokens.add(token=f"{start.decode()}-{end.decode()}")
        token.partition.row_range.start_key_closed = start
        token.partition.row_range.end_key_open = end
        if name_partitions:
            row_range = message.close_stream.new_partitions.add().row_range
            row_range.start_key_closed, row_range.end_key_open = partition_start, partition_end
    return message


def test_a_closed_stream_names_each_token_with_the_partition_that_it_belongs_to() -> None:
    (record,) = merged([_closing((b"b", b"c", b"a", b"c"), (b"c", b"d", b"c", b""))])

    assert record == CloseStream(
        11,
        "",
        (
            Child(RangeToken(KeyRange(b"b", b"c"), "b-c"), KeyRange(b"a", b"c")),
            Child(RangeToken(KeyRange(b"c", b"d"), "c-d"), KeyRange(b"c", b"")),
        ),
    )


def test_without_new_partitions_each_token_has_its_own() -> None:
    (record,) = merged([_closing((b"", b"c", b"", b""), name_partitions=False)])

    assert record == CloseStream(11, "", (Child(RangeToken(KeyRange(b"", b"c"), "-c"), KeyRange(b"", b"c")),))


def test_tokens_that_belong_to_no_partition_are_read_for_their_own_ranges_and_that_is_reported() -> None:
    message = _closing((b"b", b"c", b"a", b"c"))
    message.close_stream.new_partitions.add().row_range.end_key_open = b"x"

    (record,) = merged([message])

    own = Child(RangeToken(KeyRange(b"b", b"c"), "b-c"), KeyRange(b"b", b"c"))
    assert record == CloseStream(11, "", (own,), "closed with 1 tokens for 2 new partitions")


@pytest.mark.parametrize(("start", "end"), [(b"c", b"b"), (b"c", b"c")])
def test_a_range_without_keys_is_a_broken_stream(start: bytes, end: bytes) -> None:
    with pytest.raises(BrokenStreamError, match="a range without keys"):
        merged([_closing((start, end, b"a", b""))])


def test_the_end_that_was_asked_for_has_no_children() -> None:
    message = Response()
    message.close_stream.status.code = 0

    assert merged([message]) == [CloseStream(0, "")]


def test_bounds_of_a_range_may_be_open_or_closed() -> None:
    row_range = _closing((b"", b"", b"", b"")).close_stream.new_partitions[0].row_range
    assert key_range(row_range) == KeyRange(b"", b"")

    row_range.start_key_open, row_range.end_key_closed = b"a", b"b"
    assert key_range(row_range) == KeyRange(b"a\0", b"b\0")
