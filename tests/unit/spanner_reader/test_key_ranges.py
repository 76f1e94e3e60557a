"""Keys that people type: typed like the table's, or refused with what they should be."""

import re

import pytest

from services.spanner_reader.core.snapshot.key_ranges import check_some_between, typed_key
from services.spanner_reader.core.snapshot.snapshot import KeyText
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
    ("text", "message"),
    [
        ("[5]", """such as '["a"]' (the value of carrier is no STRING)"""),
        ('["UA","x"]', "(the value of number is no INT64)"),
        ('["UA",1,"2013-99-99"]', "(the value of day is no DATE)"),
        ('["UA",1,"2013-02-29"]', "(the value of day is no DATE)"),
        ('["UA",1,"2013-02-28",2]', "(of 3 columns, 4 values are given)"),
    ],
)
def test_what_is_wrong_with_a_key_is_reported_in_the_tables_words(text: str, message: str) -> None:
    with pytest.raises(MisconfiguredError, match=re.escape(message)):
        typed_key(text, "airlines", [("carrier", "STRING"), ("number", "INT64"), ("day", "DATE")])


@pytest.mark.parametrize(
    "kind", ["INT64", "ENUM", "BOOL", "FLOAT64", "FLOAT32", "NUMERIC", "TIMESTAMP", "DATE", "BYTES", "STRING"]
)
def test_the_example_of_a_key_is_one(kind: str) -> None:
    with pytest.raises(MisconfiguredError) as error:
        typed_key("{}", "things", [("id", kind)])
    (example,) = re.findall(r"such as '(.*?)' ", str(error.value))
    assert typed_key(example, "things", [("id", kind)]) == example


@pytest.mark.parametrize(
    ("kinds", "earlier", "later"),
    [
        ("INT64", '["9"]', '["10"]'),
        ("ENUM", '["9"]', '["10"]'),
        ("INT64 STRING", '["9"]', '["10","a"]'),
        ("STRING", '["é"]', '["🛩"]'),
        ("INT64 STRING", '["7","a"]', '["7","b"]'),
        ("BOOL", "[false]", "[true]"),
        ("BYTES", '["fw=="]', '["gA=="]'),
        ("DATE", '["2013-01-31"]', '["2013-02-01"]'),
        ("TIMESTAMP", '["2013-01-01T00:00:00Z"]', '["2013-01-01T00:00:00.5Z"]'),
    ],
)
def test_keys_that_are_the_wrong_way_round_are_refused_with_the_fix(kinds: str, earlier: str, later: str) -> None:
    key = [(f"k{place}", kind) for place, kind in enumerate(kinds.split())]
    low, high = KeyText(earlier), KeyText(later)
    check_some_between(low, high, key, ())
    with pytest.raises(MisconfiguredError, match="swap them"):
        check_some_between(high, low, key, ())
    down = {name for name, _kind in key}
    check_some_between(high, low, key, down)
    with pytest.raises(MisconfiguredError, match="swap them"):
        check_some_between(low, high, key, down)


def test_all_that_begins_so_has_some_keys_behind_one_of_them_and_none_behind_itself() -> None:
    check_some_between(KeyText('["7","a"]'), KeyText('["7"]'), KEY, ())
    for until in ('["7"]', '["7","a"]'):
        with pytest.raises(MisconfiguredError, match="itself is not included"):
            check_some_between(KeyText('["7"]'), KeyText(until), KEY, ())


@pytest.mark.parametrize(("after", "until"), [("[null]", '["7"]'), ('["7"]', "[null]"), ('["2"]', '["1"]')])
def test_where_the_order_is_not_known_nothing_is_refused(after: str, until: str) -> None:
    check_some_between(KeyText(after), KeyText(until), [("n", "NUMERIC" if after == '["2"]' else "INT64")], ())
