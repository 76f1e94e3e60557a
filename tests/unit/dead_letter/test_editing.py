"""Edits: other values for one row, and nothing else."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cdc_consumer.core.stream.poison import poison_change
from services.dead_letter.core.editing import edited, row_text, with_columns
from services.dead_letter.core.plan import is_newer
from services.spanner_reader.core.stream.completion import published_again
from shared.contracts.change_batch import decode_batch, encode_batch
from shared.contracts.change_sequence import ChangeSequenceNumber, four_sections, parse_sequence
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_header
from tests.unit.dead_letter.dead_letters import a_dead_letter, junk

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
rows = st.fixed_dictionaries({}, optional={"name": json_values, "seats": json_values})


def row_of(dead_letter: DeadLetter) -> Any:
    return json.loads(bytes(decode_batch(dead_letter.data).rows[0]))


def with_row(row: bytes) -> DeadLetter:
    """Return a dead letter whose row is this text."""
    dead_letter = a_dead_letter()
    return a_dead_letter(data=dead_letter.data.replace(b'{"name": "name 1"}', row))


def test_one_column_gets_another_value_and_the_diff_reports_so() -> None:
    dead_letter = a_dead_letter(a_change(7, sequence=5, name="a", seats="many"))
    edit = edited(dead_letter, with_columns(dead_letter, {"seats": '"12"'}))

    assert row_of(edit.copy) == {"name": "a", "seats": "12"}
    assert edit.copy.sequence == str(four_sections(5, 0, 0, 1))
    assert edit.diff.splitlines()[4:] == ['   "name": "a",', '-  "seats": "many"', '+  "seats": "12"', " }"]


def test_the_copy_is_the_dead_letter_that_the_consumer_would_make_of_it() -> None:
    dead_letter = a_dead_letter(a_change(7, sequence=5, seats="many"))
    copy = edited(dead_letter, with_columns(dead_letter, {"seats": '"still many"'})).copy
    batch = decode_batch(copy.data)
    failed = poison_change(0, batch, 0, Reason.REFUSED_BY_BIGQUERY, "why")
    again = a_dead_letter(
        data=batch.cut(0), table=failed.table, key=failed.key, sequence=failed.sequence, reason=failed.reason
    )
    assert again.identity == copy.identity
    assert copy.identity != dead_letter.identity


def test_values_that_are_not_edited_keep_their_text() -> None:
    dead_letter = with_row(b'{"name": 1.50e3, "seats": 12345678901234567890.10}')
    edit = edited(dead_letter, with_columns(dead_letter, {"name": "null"}))
    assert bytes(decode_batch(edit.copy.data).rows[0]) == b'{"name":null,"seats":12345678901234567890.10}'


def test_a_row_is_one_column_a_line_to_be_edited_and_comes_back_on_one_line() -> None:
    dead_letter = a_dead_letter(a_change(1, name="a", seats={"deep": [1, 2]}))
    text = row_text(dead_letter)
    assert text == '{\n  "name": "a",\n  "seats": {"deep":[1,2]}\n}\n'
    edit = edited(dead_letter, text.replace('"a"', '"b"').replace("[1,2]", "[\n1,\n2]"))
    assert bytes(decode_batch(edit.copy.data).rows[0]) == b'{"name":"b","seats":{"deep":[1,2]}}'


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"name":"a"', "not a JSON object"),
        ('{"name":"a"} {}', "not a JSON object"),
        ('{"name":"\udc80"}', "not a JSON object"),
        ('{"id":"2","name":"a"}', "primary key"),
        ('{"nmae":"a"}', "no column nmae"),
        ('{ "name" : "name 1" }', "nothing is changed"),
        ('{"name":"' + "x" * 9_000_000 + '"}', "a message takes"),
    ],
)
def test_what_is_no_row_of_the_table_is_refused(row: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edited(a_dead_letter(), row)


@pytest.mark.parametrize(
    ("dead_letter", "message"),
    [
        (junk(), "cannot be read"),
        (junk(b'{"rows":[{}]}'), "cannot be read"),
        (a_dead_letter(data=b"{}", payload_bytes=9), "could not be kept"),
        (a_dead_letter(data=encode_batch(a_header(), [a_change(1), a_change(2)])), "2 changes"),
        (a_dead_letter(data=encode_batch(a_header(), [])), "0 changes"),
        (a_dead_letter(a_change(op="DELETE")), "no row"),
        (a_dead_letter(msgspec.structs.replace(a_change(), sequence="zero")), "no later revision"),
        (a_dead_letter(msgspec.structs.replace(a_change(), sequence="0/0/0/FFFFFFFFFFFFFFFF")), "no later revision"),
    ],
)
def test_what_cannot_be_edited_reports_what_can_be_done(dead_letter: DeadLetter, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edited(dead_letter, "{}")
    with pytest.raises(ValueError, match=message):
        row_text(dead_letter)


@pytest.mark.parametrize("text", ["", "twelve", "{", "1 2", '"\udc80"'])
def test_a_value_that_is_not_json_is_refused_by_its_column(text: str) -> None:
    with pytest.raises(ValueError, match="column seats: not JSON"):
        with_columns(a_dead_letter(), {"seats": text})


@given(rows, rows, st.lists(st.integers(0, (1 << 64) - 2), min_size=1, max_size=4))
def test_an_edit_is_of_the_same_row_with_the_row_that_was_asked_for_and_wins(
    before: dict[str, Any], after: dict[str, Any], sections: list[int]
) -> None:
    sequence = "/".join(f"{section:X}" for section in sections)
    change = msgspec.structs.replace(a_change(7), row=json.dumps(before), sequence=sequence)
    dead_letter = a_dead_letter(change)
    if json.dumps(before) == json.dumps(after):
        return
    copy = edited(dead_letter, json.dumps(after)).copy
    was, now = decode_batch(dead_letter.data), decode_batch(copy.data)

    assert json.loads(bytes(now.rows[0])) == after
    assert b"\n" not in bytes(now.rows[0])
    assert (now.header_text, bytes(now.keys[0]), bytes(now.place[0])) == (
        was.header_text,
        bytes(was.keys[0]),
        bytes(was.place[0]),
    )
    assert (now.op, now.mod_type, now.commit_timestamp) == (was.op, was.mod_type, was.commit_timestamp)
    full = (*sections, 0, 0, 0)[:4]
    assert parse_sequence(copy.sequence).sections == (*full[:3], full[3] + 1)
    assert is_newer(copy.sequence, str(ChangeSequenceNumber(full)))
    assert not is_newer(copy.sequence, str(ChangeSequenceNumber((*full[:3], full[3] + 1))))
    assert (copy.attributes, copy.ordering_key) == (dead_letter.attributes, dead_letter.ordering_key)
    assert now.cut(0) == copy.data


def test_an_edit_loses_to_the_change_that_its_reader_has_published_again_in_its_place() -> None:
    first = a_dead_letter(a_change(1, sequence=5, name="a"))
    again = published_again(a_change(1, sequence=5, name="b"), 1)
    edit = edited(first, '{"name":"c"}').copy
    edit_of_edit = edited(edit, '{"name":"d"}').copy

    assert is_newer(again.sequence, edit_of_edit.sequence)
    assert is_newer(edited(a_dead_letter(again), '{"name":"e"}').copy.sequence, again.sequence)
    assert is_newer(published_again(again, 2).sequence, again.sequence)
