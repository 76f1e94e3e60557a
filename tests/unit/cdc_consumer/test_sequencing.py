"""Newest per key: against a dictionary, across column lists, and again after a refusal."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE, TableChanges, decode_messages
from services.cdc_consumer.core.stream.sequencing import newest_per_key
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import four_sections, parse_sequence
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, batch_of, delete, header_of, messages_of, upsert

NARROW = header_of({"id": "INT64", "note": "STRING"})
WIDE = header_of({"id": "INT64", "note": "STRING", "more": "STRING"})


def decoded(*batches: tuple[Header, Sequence[Change]]) -> Sequence[TableChanges]:
    found = decode_messages(messages_of(*(batch_of(changes, header) for header, changes in batches)), AN_HOUR_LATER)
    assert not found.poison
    return found.tables


def written(
    group: Sequence[TableChanges], excluded: Sequence[pa.Array | None] | None = None
) -> list[list[tuple[int, int]]]:
    """Return, for each column list, message and change of the rows to write."""
    chosen = newest_per_key(group, excluded or [None] * len(group))
    return [
        [(row[MESSAGE], row[CHANGE]) for row in changes.rows.take(indices).to_pylist()]
        for changes, indices in zip(group, chosen, strict=True)
    ]


def test_the_largest_sequence_of_a_key_wins_whenever_it_arrives() -> None:
    group = decoded(
        (NARROW, [upsert(1, sequence=5), upsert(2, sequence=5), upsert(1, sequence=9)]),
        (NARROW, [upsert(1, sequence=7)]),
    )
    assert written(group) == [[(0, 1), (0, 2)]]


def test_a_delete_wins_and_loses_like_any_change() -> None:
    group = decoded(
        (NARROW, [delete(1, sequence=9), upsert(1, sequence=8), delete(2, sequence=1), upsert(2, sequence=2)])
    )
    assert written(group) == [[(0, 0), (0, 3)]]


def test_keys_are_compared_across_column_lists() -> None:
    group = decoded(
        (NARROW, [upsert(1, sequence=1), upsert(2, sequence=9)]),
        (WIDE, [upsert(1, sequence=2), upsert(2, sequence=8)]),
    )
    assert written(group) == [[(0, 1)], [(1, 0)]]


def test_of_equal_sequences_the_one_delivered_last_wins() -> None:
    group = decoded(
        (NARROW, [upsert(1), upsert(1)]), (WIDE, [upsert(1), upsert(2)]), (NARROW, [upsert(1)]), (WIDE, [upsert(2)])
    )
    assert written(group) == [[(2, 0)], [(3, 0)]]


def test_after_a_refusal_the_next_newest_is_written() -> None:
    group = decoded(
        (NARROW, [upsert(1, sequence=1), upsert(1, sequence=3), upsert(2, sequence=1)]), (WIDE, [upsert(1, sequence=2)])
    )
    assert written(group) == [[(0, 1), (0, 2)], []]
    assert written(group, [pa.array([1]), None]) == [[(0, 2)], [(1, 0)]]
    assert written(group, [pa.array([1]), pa.array([0])]) == [[(0, 0), (0, 2)], []]
    assert written(group, [pa.array([0, 1, 2]), pa.array([0])]) == [[], []]


def test_nothing_to_write_is_nothing_to_write() -> None:
    assert list(newest_per_key([], [])) == []
    assert written(decoded((NARROW, []), (WIDE, []))) == [[], []]
    assert written(decoded((NARROW, []), (WIDE, [upsert(1)]))) == [[], [(1, 0)]]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        # BigQuery, "Manage custom ordering": its worked examples.
        ("77", "7B"),
        ("FFF/B", "FFF/ABC"),
        ("BA/FFFFFFFF", "ABC"),
        ("ABC", "FFF/ABC"),
        # Sections of another length or case, and what starts alike.
        ("9", "10"),
        ("000000000000000F", "10"),
        ("f", "10"),
        ("A/0", "a/1"),
        ("A", "A/0/1"),
        ("0", "0/0"),
        (str(four_sections(9)), "a"),
        ("9", str(four_sections(10))),
        (str(four_sections(1, 2**63 - 1)), str(four_sections(1, 2**63))),
        (str(four_sections(1, 2, 3, 4)), str(four_sections(1, 2, 3, 5))),
        (str(four_sections(10)).lower(), str(four_sections(11))),
        ("1/FFFFFFFFFFFFFFFE/FFFFFFFFFFFFFFFF", "1/ffffffffffffffff"),
    ],
)
def test_sequences_compare_as_numbers_section_by_section(older: str, newer: str) -> None:
    for pair in ((older, newer), (newer, older)):
        group = decoded((NARROW, [upsert(1, sequence=text) for text in pair]))
        assert written(group) == [[(0, pair.index(newer))]]


def test_the_contracts_order_of_our_numbers_is_the_order_here() -> None:
    numbers = [four_sections(a, b, c, d) for a in (0, 1) for b in (0, 2**64 - 1) for c in (0, 9) for d in (0, 16)]
    for older, newer in zip(sorted(numbers)[:-1], sorted(numbers)[1:], strict=True):
        group = decoded((NARROW, [upsert(1, sequence=str(newer)), upsert(1, sequence=str(older))]))
        assert written(group) == [[(0, 0)]]


def test_a_composite_key_is_the_same_only_if_all_of_it_is() -> None:
    header = header_of({"a": "STRING", "b": "INT64", "c": "BOOL", "v": "STRING"}, key=("c", "a", "b"))
    keys: list[Mapping[str, object]] = [
        {"a": a, "b": b, "c": c} for a in ("", "x", "xx") for b in ("1", "11") for c in (True, False)
    ]
    changes = [upsert(key, sequence=sequence) for sequence in (2, 1, 3) for key in keys]
    assert written(decoded((header, changes))) == [[(0, index) for index in range(24, 36)]]


@pytest.mark.parametrize(
    ("kind", "same", "other"),
    [
        ("NUMERIC", ('"1.0"', '"1.00"'), '"1.01"'),
        ("TIMESTAMP", ('"2024-01-01T00:00:00Z"', '"2024-01-01T01:00:00.000+01:00"'), '"2024-01-01T00:00:00.000001Z"'),
        ("DATE", ('"2024-01-01"', '"2024-01-01"'), '"2024-01-02"'),
        ("BOOL", ("true", "true"), "false"),
        ("INT64", ('"5"', "5"), '"-5"'),
        ("STRING", ('"é"', '"\\u00e9"'), '"e"'),
    ],
)
def test_a_key_of_each_type_is_one_row_however_it_is_written(kind: str, same: tuple[str, str], other: str) -> None:
    header = header_of({"id": kind, "note": "STRING"})
    texts = [same[0], other, same[1]]
    group = decoded((header, [upsert(f'{{"id":{text}}}', sequence=n) for n, text in enumerate(texts)]))
    assert written(group) == [[(0, 1), (0, 2)]]


SECTIONS = ["0", "1", "0001", "A", "a", "b"]
sequences = st.one_of(
    st.builds(four_sections, st.integers(0, 3), st.integers(0, 2)).map(str),
    st.tuples(st.sampled_from(SECTIONS), st.lists(st.sampled_from([*SECTIONS, "F" * 16]), max_size=3)).map(
        lambda drawn: "/".join([drawn[0], *drawn[1]])
    ),
)
histories = st.lists(
    st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from(["x", "y"]), sequences, st.booleans()), max_size=60
)


@settings(deadline=None)
@given(histories)
def test_it_agrees_with_a_dictionary(history: Sequence[tuple[bool, int, str, str, bool]]) -> None:
    """Each entry: whether the wide list, the two parts of the key, the sequence, whether BigQuery refused it."""
    types = {"a": "INT64", "b": "STRING"}
    headers = {
        wide: header_of(types | ({"v": "STRING", "w": "STRING"} if wide else {"v": "STRING"}), key=("a", "b"))
        for wide in (False, True)
    }
    batches = [
        (headers[wide], [upsert({"a": str(a), "b": b}, sequence=sequence)]) for wide, a, b, sequence, _ in history
    ]
    group = decoded(*batches)
    excluded = [
        pa.array([row for row, message in enumerate(each.rows[MESSAGE].to_pylist()) if history[message][4]], pa.int64())
        for each in group
    ]

    newest: dict[tuple[int, str], int] = {}
    for message, (_, a, b, sequence, refused) in enumerate(history):
        before = newest.get((a, b))
        if not refused and (
            before is None or parse_sequence(sequence).sections >= parse_sequence(history[before][3]).sections
        ):
            newest[a, b] = message

    found = [message for each in written(group, excluded) for message, _ in each]
    assert sorted(found) == sorted(newest.values())
    assert all(each == sorted(each) for each in written(group, excluded))
