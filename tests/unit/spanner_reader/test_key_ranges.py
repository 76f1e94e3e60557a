"""Keys that people type: typed like the table's, or refused with what they should be."""

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
    with pytest.raises(MisconfiguredError, match=r"Id INT64, Class STRING, Cool BOOL"):
        typed_key(text, "Seats", KEY)
