"""Tokens, ranges, partitions and chunks of the change-stream front, on whatever hypothesis thinks of."""

import base64
import zlib
from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from emulators.bigtable_streams.change_log import ChangeLog, Record
from emulators.bigtable_streams.data_changes import ChunkLimits, messages_of
from emulators.bigtable_streams.key_range import KeyRange, exactly_covers, read_range
from emulators.bigtable_streams.protocol import Mutation, ReadChangeStreamRequest
from emulators.bigtable_streams.tokens import Position, Token, advanced, cut_to, decode_token
from tests.integration.bigtable_messages import put_together

KEYS = st.binary(min_size=1, max_size=2)
STARTS = st.lists(KEYS, max_size=5, unique=True).map(sorted)


def ranges_from(starts: Sequence[bytes]) -> list[KeyRange]:
    return [KeyRange(start, end) for start, end in pairwise([b"", *starts, b""])]


@st.composite
def positions(draw: st.DrawFn) -> tuple[Position, ...]:
    parts = ranges_from(draw(STARTS))
    return tuple(Position(part.start, part.end, draw(st.integers(0, 9))) for part in parts)


def set_cell(value: bytes) -> Any:
    mutation = Mutation()
    mutation.set_cell.family_name, mutation.set_cell.column_qualifier = "f", b"q"
    mutation.set_cell.timestamp_micros, mutation.set_cell.value = 1_000, value
    return mutation


def delete_family() -> Any:
    mutation = Mutation()
    mutation.delete_from_family.family_name = "f"
    return mutation


@given(positions())
def test_a_token_comes_back_as_it_was_made(places: tuple[Position, ...]) -> None:
    token = Token("an epoch", places)

    assert decode_token(token.encode()) == token
    assert token.range == KeyRange()


@example(base64.b64encode(zlib.crc32(b"\x01").to_bytes(4, "big") + b"\x01").decode())  # well made, of a number
@given(st.text(max_size=40) | positions().map(lambda places: Token("e", places).encode()[:-1]))
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pass a token on as it came") as refused:
        decode_token(text)
    assert "Expected" not in str(refused.value)


@given(positions(), st.integers(0, 9), KEYS)
def test_joined_positions_mean_the_same_for_every_key(places: tuple[Position, ...], index: int, key: bytes) -> None:
    def position_of(key: bytes, places: Sequence[Position]) -> int:
        (found,) = [place.index for place in places if key in place.range]
        return found

    joined = advanced(places, index)

    assert position_of(key, joined) == max(position_of(key, places), index)
    assert exactly_covers([place.range for place in joined], KeyRange())
    assert all(left.index != right.index for left, right in pairwise(joined))


@given(positions(), KEYS, KEYS)
def test_positions_cut_to_a_range_cover_it_exactly(places: tuple[Position, ...], one: bytes, other: bytes) -> None:
    keys = KeyRange(min(one, other), max(one, other) + b"\0")

    assert exactly_covers([place.range for place in cut_to(places, keys)], keys)


@given(STARTS, st.data())
def test_only_parts_without_gap_or_overlap_cover_exactly(starts: list[bytes], data: st.DataObject) -> None:
    parts = ranges_from(starts)
    shuffled = data.draw(st.permutations(parts))
    assert exactly_covers(shuffled, KeyRange())
    if len(parts) > 1:
        assert not exactly_covers(shuffled[1:], KeyRange())
    assert not exactly_covers([*shuffled, shuffled[0]], KeyRange())


@pytest.mark.parametrize(
    ("fields", "first", "last", "outside"),
    [
        ({"start_key_closed": b"b", "end_key_open": b"d"}, b"b", b"c\xff", b"d"),
        ({"start_key_open": b"b", "end_key_closed": b"d"}, b"b\0", b"d", b"b"),
        ({}, b"\0", b"\xff\xff", None),
    ],
)
def test_a_row_range_has_its_ends(fields: dict[str, bytes], first: bytes, last: bytes, outside: bytes | None) -> None:
    keys = read_range(type(ReadChangeStreamRequest().partition.row_range)(**fields))

    assert first in keys
    assert last in keys
    assert outside is None or outside not in keys


@given(
    st.lists(st.binary(max_size=40).map(set_cell) | st.builds(delete_family), min_size=1, max_size=8),
    st.builds(ChunkLimits, st.integers(1, 20), st.integers(1, 60), st.integers(1, 4)),
)
def test_a_change_is_put_together_again_however_it_was_cut(entries: list[Any], limits: ChunkLimits) -> None:
    record = Record(3, b"row", entries, "USER", "cluster", commit=5, tiebreaker=-7, watermark=6)

    messages = [message.data_change for message in messages_of(record, limits, "a token")]

    together = put_together(messages)
    assert list(together.entries) == entries
    assert together.identity == (b"row", 5, -7, "cluster")
    assert max(len(message.chunks) for message in messages) <= limits.message_chunks
    assert max(len(c.mutation.set_cell.value) for m in messages for c in m.chunks) <= limits.value_bytes


class Log(RuleBasedStateMachine):
    """Partitions come and go; each record is in the one that holds its key, in the order it was applied."""

    def __init__(self) -> None:
        super().__init__()
        self.log = ChangeLog(count(1_000).__next__)
        self.written: list[Record] = []

    @rule(key=KEYS)
    def write(self, key: bytes) -> None:
        self.written.append(self.log.append(key, [delete_family()], "c"))

    @rule(key=KEYS)
    def split(self, key: bytes) -> None:
        starts = {partition.range.start for partition in self.log.partitions}
        assert self.log.split(key) is (key not in starts)

    @rule(key=KEYS, data=st.data())
    def merge(self, key: bytes, data: st.DataObject) -> None:
        starts = [partition.range.start for partition in self.log.partitions]
        at = data.draw(st.sampled_from([key, *starts]))
        assert self.log.merge(at) is (at in starts and at != b"")

    @rule(starts=STARTS)
    def repartition(self, starts: list[bytes]) -> None:
        before = {partition.range: partition for partition in self.log.partitions}
        self.log.repartition(starts)
        for partition in self.log.partitions:
            assert before.get(partition.range, partition) is partition, "a range that stays is not closed"

    @rule(key=KEYS)
    def move(self, key: bytes) -> None:
        (old,) = [partition for partition in self.log.partitions if key in partition.range]
        self.log.move(key)
        assert not old.is_open()

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        kept = self.written[round(len(self.written) * share) :]
        self.log.trim(kept[0].commit if kept else None)
        for gone in self.written[: len(self.written) - len(kept)]:
            assert self.log.expired(Position(gone.row_key, gone.row_key + b"\0", gone.index))
        self.written = kept
        everything = Position(b"", b"", self.log.next_index)
        assert not self.log.expired(everything)

    @invariant()
    def partitions_cover_the_table_once(self) -> None:
        assert exactly_covers([partition.range for partition in self.log.partitions], KeyRange())

    @invariant()
    def every_record_is_where_its_key_is(self) -> None:
        for partition in self.log.partitions:
            assert partition.is_open()
            assert partition.records == [record for record in self.written if record.row_key in partition.range]
        assert self.log.count_from([Position(b"", b"", 0)]) == len(self.written)
        for record in self.written:
            assert record in self.log.history(record.row_key)


TestLog = Log.TestCase
