"""What is shown of a dead letter to whom."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dead_letter.core.masking import attributes, detail, masked, payload
from shared.contracts.change_batch import encode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_header
from tests.unit.dead_letter.dead_letters import a_dead_letter, junk

ONE_DIGIT = "<number of 1 digits>"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def document(dead_letter: DeadLetter, *, values: bool) -> Any:
    return json.loads(msgspec.json.encode(payload(dead_letter, values=values)))


def test_a_row_is_shown_by_its_structure_and_its_key_and_place_as_they_are() -> None:
    dead_letter = a_dead_letter(a_change(7, name="Spirit", seats=None, weight=12.5, tags={"a": ["x", True], "b": []}))
    shown = document(dead_letter, values=False)

    assert shown["kind"] == "change_batch"
    assert shown["header"]["table"] == "planes"
    (change,) = shown["changes"]
    assert change["key"] == {"id": "7"}
    assert change["place"] == {"transaction": "t"}
    assert change["old"] is None
    assert change["row"] == {
        "name": "<string of 6>",
        "seats": None,
        "weight": "<number of 3 digits>",
        "tags": {"a": ["<string of 1>", "<boolean>"], "b": []},
    }


def test_values_are_shown_digit_for_digit_to_whom_asks() -> None:
    dead_letter = a_dead_letter(a_change(7, name="Spirit"))
    dead_letter = a_dead_letter(data=dead_letter.data.replace(b'"Spirit"', b"1.2345678901234567890e2"))
    assert b'"name": 1.2345678901234567890e2' in msgspec.json.encode(payload(dead_letter, values=True))


def test_of_a_long_message_the_first_changes_are_shown_and_the_rest_counted() -> None:
    dead_letter = a_dead_letter(data=encode_batch(a_header(), [a_change(n) for n in range(25)]), sequence="")
    shown = document(dead_letter, values=False)
    assert (len(shown["changes"]), shown["more_changes"]) == (20, 5)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"user":"ada","ids":[1]}', {"kind": "json", "document": {"user": "<string of 3>", "ids": [ONE_DIGIT]}}),
        (b'"ada"', {"kind": "bytes", "size": 5}),
        (b"\xff\x00ada", {"kind": "bytes", "size": 5}),
        (b"", {"kind": "bytes", "size": 0}),
        (b"[" * 100_000, {"kind": "bytes", "size": 100_000}),
    ],
)  # fmt: skip
def test_what_is_no_change_batch_is_shown_by_what_it_is(data: bytes, expected: object) -> None:
    assert document(junk(data), values=False) == expected


def test_what_could_not_be_kept_reports_its_size() -> None:
    dead_letter = a_dead_letter(data=b'{"id":"secret"}', payload_bytes=11_000_000)
    assert payload(dead_letter, values=False) == {"kind": "left_out", "payload_bytes": 11_000_000}


def test_of_foreign_attributes_the_names_are_shown() -> None:
    dead_letter = a_dead_letter(attributes={"table": "planes", "replay_of": "x", "user": "ada"})
    assert attributes(dead_letter, values=False) == {"table": "planes", "replay_of": "x", "user": "<string of 3>"}
    assert attributes(dead_letter, values=True) == dead_letter.attributes


def test_what_bigquery_quotes_is_not_shown() -> None:
    words = "Field seats: Could not convert 'ada@example.org' to INT64, row 12: \"x\""
    shown = detail(Reason.REFUSED_BY_BIGQUERY, words)
    assert shown == "Field seats: Could not convert <value> to INT64, row <number>: <value>"
    assert detail(Reason.REFUSED_BY_BIGQUERY, words, values=True) == words
    assert detail(Reason.VALUE_DOES_NOT_FIT, "column seats of type INT64: 'x'") == "column seats of type INT64: 'x'"


@given(json_values)
def test_nothing_but_structure_is_left_of_any_value(value: object) -> None:
    def leaves(shown: object) -> list[object]:
        match shown:
            case dict():
                return [leaf for each in shown.values() for leaf in leaves(each)]
            case list():
                return [leaf for each in shown for leaf in leaves(each)]
            case _:
                return [shown]

    for leaf in leaves(masked(value)):
        assert leaf is None or (isinstance(leaf, str) and leaf.startswith("<") and leaf.endswith(">"))


@given(st.text(min_size=3, alphabet="abcdefg"), json_values)
def test_two_rows_of_one_structure_cannot_be_told_apart(text: str, rest: object) -> None:
    one, other = (a_dead_letter(a_change(1, name=name, rest=rest)) for name in (text, text[::-1].upper()))
    assert document(one, values=False) == document(other, values=False)
    assert text not in json.dumps(document(one, values=False)["changes"][0]["row"]["name"])
