"""Of a mirror only the newest row of each key is parsed, and others as soon as one of those cannot be written."""

from collections.abc import Sequence
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
from shared.contracts.tables_file import read_tables_file
from tests.builders import a_change, a_header, a_message, messages_table
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, batch_of, delete, header_of, messages_of, upsert
from tests.unit.cdc_consumer.world import NOW, WIDER, World

HEADERS = {
    False: header_of({"id": "INT64", "n": "INT64"}),
    True: header_of({"id": "INT64", "n": "INT64", "more": "STRING"}),
}
BAD = '{"n":"many"}'
BOTH = 'mode = "both"'

histories = st.lists(
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
@given(histories)
def test_the_rows_parsed_are_those_that_are_written_of_all(history: Sequence[tuple[bool, int, int, str]]) -> None:
    every, newest = decoded_of(history, newest_only=False), decoded_of(history, newest_only=True)
    chosen = newest_per_key(every.tables, [None] * len(every.tables))
    written = newest_per_key(newest.tables, [None] * len(newest.tables))

    assert places(newest.tables, written) == places(every.tables, chosen)
    assert set(newest.poison) <= set(every.poison)
    if not newest.poison:
        assert sum(map(len, places(newest.tables))) == len({key for _wide, key, _sequence, _kind in history})


@settings(deadline=None)
@given(histories)
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


def test_a_list_in_trouble_supersedes_nothing_of_another() -> None:
    world = World()
    world.apply(a_message(a_change(9)))
    world.writer.invisible["colour"] = 1_000_000
    counts = world.apply(a_message(a_change(1, 2, colour="red"), header=WIDER), a_message(a_change(1, 1)))

    assert (counts.acked, counts.deferred) == (1, 1)
    assert world.names()[1] == "name 1"


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
