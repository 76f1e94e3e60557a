import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.spanner_reader.adapters.spanner.chunks import ChunkedValue

# Null, booleans and numbers are never cut; text and lists are, anywhere.
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=25,
)


def merged(*chunks: Any) -> Any:
    value = ChunkedValue()
    for chunk in chunks:
        value.add(copy.deepcopy(chunk))
    return value.take()


def cut(value: Any, random: Any) -> tuple[Any, Any]:
    """Cut a value in two that merge back, as the service may: a text anywhere, a list between or inside elements."""
    if isinstance(value, str):
        place = random.randint(0, len(value))
        return value[:place], value[place:]
    if not value:
        return [], []
    index = random.randrange(len(value))
    if isinstance(value[index], str | list) and random.random() < 0.7:
        left, right = cut(value[index], random)
        return [*value[:index], left], [right, *value[index + 1 :]]
    left, right = value[: index + 1], value[index + 1 :]
    if right and _would_merge(left[-1], right[0]):  # then it has to be cut inside: the last piece may be empty
        return left, [type(right[0])(), *right]
    return left, right


def _would_merge(last: Any, first: Any) -> bool:
    return (isinstance(last, str) and isinstance(first, str)) or (isinstance(last, list) and isinstance(first, list))


@given(value=st.one_of(st.text(), st.lists(VALUES, min_size=1)), cuts=st.integers(0, 8), random=st.randoms())
def test_a_value_cut_anywhere_merges_back(value: Any, cuts: int, random: Any) -> None:
    chunks = [value]
    for _ in range(cuts):
        index = random.randrange(len(chunks))
        if isinstance(chunks[index], str | list):
            chunks[index : index + 1] = cut(chunks[index], random)
    assert merged(*chunks) == value


@pytest.mark.parametrize(
    ("chunks", "value"),
    [  # the examples of Spanner's reference
        (["foo", "bar"], "foobar"),
        ([["2", "3"], ["4"]], ["2", "34"]),
        ([["2", 3.0], ["4"]], ["2", 3.0, "4"]),
        ([["a", ["b", "c"]], [["d"], "e"]], ["a", ["b", "cd"], "e"]),
        ([["a"], [None, "b"]], ["a", None, "b"]),
        ([[True], [False]], [True, False]),
    ],
)
def test_the_documented_examples(chunks: list[Any], value: Any) -> None:
    assert merged(*chunks) == value


def test_a_value_is_whole_after_it_was_taken() -> None:
    value = ChunkedValue()
    started = [value.started]
    value.add("a")
    started.append(value.started)
    value.add("b")
    assert value.take() == "ab"
    assert [*started, value.started] == [False, True, False]
    value.add("c")
    assert value.take() == "c"


def test_a_text_in_very_many_pieces_is_joined_once() -> None:
    parts = [[["x" * 1_000]]] * 5_000
    assert merged(*parts) == [["x" * 5_000_000]]
