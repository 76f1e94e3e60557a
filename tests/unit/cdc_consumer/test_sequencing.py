"""Newest per key: against a dictionary, across column lists, and again after a refusal.

Of a mirror only the newest row of each key is parsed, and others as soon as one of those cannot be written.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.columns import (
    CHANGE,
    MESSAGE,
    Decoded,
    TableChanges,
    decode_messages,
    with_superseded,
)
from services.cdc_consumer.core.stream.sequencing import newest_per_key
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.tables_file import read_tables_file
from tests.builders import a_change, a_header, a_message, messages_table
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, batch_of, delete, header_of, messages_of, upsert
from tests.unit.cdc_consumer.world import NOW, WIDER, World

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


def test_a_delete_wins_and_loses_like_any_change() -> None:
    group = decoded(
        (NARROW, [delete(1, sequence=9), upsert(1, sequence=8), delete(2, sequence=1), upsert(2, sequence=2)])
    )
    assert written(group) == [[(0, 0), (0, 3)]]


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


# Of a mirror only the newest rows are parsed, and others as soon as one of those cannot be written.


HEADERS = {
    False: header_of({"id": "INT64", "n": "INT64"}),
    True: header_of({"id": "INT64", "n": "INT64", "more": "STRING"}),
}
BAD = '{"n":"many"}'
BOTH = 'mode = "both"'

backlogs = st.lists(
    st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 9), st.sampled_from(["good", "bad", "delete"])),
    max_size=40,
)
"""Each change: whether it is of the wide list, its key, its sequence, and what it is."""


def decoded_of(history: Sequence[tuple[bool, int, int, str]], *, newest_only: bool) -> Decoded:
    batches = []
    for wide, key, sequence, kind in history:
        row = BAD if kind == "bad" else '{"n":"1"}'
        change = delete(key, sequence=sequence) if kind == "delete" else upsert(key, row, sequence=sequence)
        batches.append(batch_of([change], HEADERS[wide]))
    return decode_messages(messages_of(*batches), AN_HOUR_LATER, newest_only=newest_only)


def places(tables: Sequence[TableChanges], chosen: Sequence[pa.Array] | None = None) -> list[list[int]]:
    taken = [each.rows if chosen is None else each.rows.take(chosen[n]) for n, each in enumerate(tables)]
    return [rows[MESSAGE].to_pylist() for rows in taken]


@settings(deadline=None)
@given(backlogs)
def test_the_rows_parsed_are_those_that_are_written_of_all(history: Sequence[tuple[bool, int, int, str]]) -> None:
    every, newest = decoded_of(history, newest_only=False), decoded_of(history, newest_only=True)
    chosen = newest_per_key(every.tables, [None] * len(every.tables))
    written = newest_per_key(newest.tables, [None] * len(newest.tables))

    assert places(newest.tables, written) == places(every.tables, chosen)
    assert set(newest.poison) <= set(every.poison)
    if not newest.poison:
        assert sum(map(len, places(newest.tables))) == len({key for _wide, key, _sequence, _kind in history})


@settings(deadline=None)
@given(backlogs)
def test_the_superseded_are_all_there_once_they_are_asked_for(history: Sequence[tuple[bool, int, int, str]]) -> None:
    every, newest = decoded_of(history, newest_only=False), decoded_of(history, newest_only=True)
    completed = [with_superseded(each) for each in newest.tables]
    rows = [changes.rows.sort_by([(MESSAGE, "ascending"), (CHANGE, "ascending")]) for changes, _poison in completed]

    assert [each.to_pylist() for each in rows] == [each.rows.to_pylist() for each in every.tables]
    assert {*newest.poison, *(one for _changes, poison in completed for one in poison)} == set(every.poison)


def test_a_superseded_row_that_does_not_fit_is_no_dead_letter_and_one_of_a_history_is() -> None:
    changes = [upsert(1, BAD, sequence=1), upsert(1, '{"n":"2"}', sequence=2)]
    messages = messages_of(batch_of(changes, HEADERS[False]))

    assert not decode_messages(messages, AN_HOUR_LATER, newest_only=True).poison
    both = Plan(read_tables_file(f"[defaults]\n{BOTH}"))
    (poison,) = decode_messages(messages, AN_HOUR_LATER, both, newest_only=True).poison
    assert poison.change == 0


@pytest.mark.parametrize("bad", [1, 5, 60])
def test_the_next_newest_that_fits_is_parsed_whatever_number_do_not(bad: int) -> None:
    changes = [upsert(1, sequence=n) for n in range(3)] + [upsert(1, BAD, sequence=3 + n) for n in range(bad)]
    decoded = decode_messages(messages_of(batch_of(changes, HEADERS[False])), AN_HOUR_LATER, newest_only=True)

    (table,) = decoded.tables
    (written,) = newest_per_key([table], [None])
    assert table.rows.take(written)[CHANGE].to_pylist() == [2]
    assert [one.change for one in decoded.poison] == list(range(3, 3 + bad))


def test_what_bigquery_refuses_lets_the_superseded_be_parsed_and_the_bad_among_them_are_dead_letters() -> None:
    world = World()
    world.writer.refuses = lambda _table, row: row["name"] == "name 9"
    counts = world.apply(
        a_message(a_change(1, 9), a_change(1, 7, seats="many"), a_change(1, 6), a_change(1, 5), a_change(2, 1))
    )

    assert world.names() == {1: "name 6", 2: "name 1"}
    assert counts.dead_letters == {"refused_by_bigquery": 1, "value_does_not_fit": 1}
    assert (counts.rows_written, counts.superseded, counts.acked) == (2, 1, 1)


def test_a_conflict_dead_letters_the_superseded_too() -> None:
    world = World()
    world.apply(a_message(a_change(9)))
    of_another_key = a_header(columns=(("id", "STRING"), ("name", "STRING"), ("seats", "INT64")))
    counts = world.apply(a_message(a_change(1, 2), a_change(1, 1), header=of_another_key))

    assert counts.dead_letters == {"schema_conflict": 2}


def test_a_list_in_trouble_whose_changes_are_all_superseded_is_in_trouble_still() -> None:
    world = World()
    world.apply(a_message(a_change(9)))
    world.writer.invisible["colour"] = 1_000_000
    red = a_message(a_change(1, 2, colour="red"), header=WIDER)
    assert world.apply(red).deferred == 1
    (wider,) = (one.definition for one in decode_messages(messages_table(red), NOW).tables)
    world.clock.pass_time(timedelta(seconds=11))

    assert world.apply(red, a_message(a_change(1, 3))).acked == 2
    assert world.memory.tables.known(wider)
