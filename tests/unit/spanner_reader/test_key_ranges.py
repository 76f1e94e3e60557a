"""Keys that people type: typed like the table's, or refused with what they should be."""

import re

import pytest

from services.spanner_reader.core.key_ranges import typed_key
from shared.contracts.errors import MisconfiguredError

KEY = [("Id", "INT64"), ("Class", "STRING"), ("Cool", "BOOL")]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('["7","é",true]', '["7","é",true]'),
        ('[7, "a"]', '["7","a"]'),
        ("[9007199254740993]", '["9007199254740993"]'),
        ('["7", null, false]', '["7",null,false]'),
        ("[null]", "[null]"),
    ],
)
def test_a_key_or_the_first_of_its_values_is_stored_as_the_wire_has_it(text: str, stored: str) -> None:
    assert typed_key(text, "Seats", KEY) == stored


@pytest.mark.parametrize(
    "text", ["7", "[]", '{"Id":7}', "[7,", '["x"]', "[7,7]", '[7,"a",1]', '[7,"a",true,1]', "[1.5]"]
)
def test_what_is_no_key_is_refused_with_the_types_that_it_has(text: str) -> None:
    with pytest.raises(MisconfiguredError, match=r"""Id INT64, Class STRING, Cool BOOL.* such as '\["7"\]'"""):
        typed_key(text, "Seats", KEY)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[5]", """such as '["a"]' (the value of carrier is no STRING)"""),
        ('["UA","x"]', "(the value of number is no INT64)"),
        ('["UA",1,2]', "(of 2 columns, 3 values are given)"),
    ],
)
def test_what_is_wrong_with_a_key_is_said_in_the_tables_words(text: str, told: str) -> None:
    with pytest.raises(MisconfiguredError, match=re.escape(told)):
        typed_key(text, "airlines", [("carrier", "STRING"), ("number", "INT64")])


@pytest.mark.parametrize(
    "kind", ["INT64", "BOOL", "FLOAT64", "FLOAT32", "NUMERIC", "TIMESTAMP", "DATE", "BYTES", "STRING"]
)
def test_the_example_of_a_key_is_one(kind: str) -> None:
    with pytest.raises(MisconfiguredError) as error:
        typed_key("{}", "things", [("id", kind)])
    (example,) = re.findall(r"such as '(.*?)' ", str(error.value))
    assert typed_key(example, "things", [("id", kind)]) == example
