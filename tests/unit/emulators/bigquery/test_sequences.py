"""Sequence numbers in columns order exactly as the contracts' own, which follow the document's text one by one."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from emulators.bigquery.sequences import comparable
from shared.contracts.change_sequence import parse_sequence

sections = st.lists(st.text("0123456789abcdefABCDEF", min_size=1, max_size=16), min_size=1, max_size=4)
numbers = sections.map("/".join)


def one(text: str | None) -> str | None:
    result: str | None = comparable(pa.array([text], pa.string()))[0].as_py()
    return result


def filled(text: str) -> tuple[int, ...]:
    """Return all four sections: a missing one counts as zero here, which the document leaves open."""
    given_sections = parse_sequence(text).sections
    return given_sections + (0,) * (4 - len(given_sections))


@given(numbers, numbers)
def test_two_numbers_compare_as_their_sections_do(left: str, right: str) -> None:
    first, second = one(left), one(right)
    assert first is not None
    assert second is not None
    assert (first < second, first == second) == (filled(left) < filled(right), filled(left) == filled(right))


@given(st.text("0123456789abcdefABCDEFg/ -x\n", max_size=24) | numbers)
def test_what_the_contracts_refuse_is_null_and_nothing_else(text: str) -> None:
    try:
        parse_sequence(text)
    except ValueError:
        assert one(text) is None
    else:
        assert one(text) is not None


@given(st.lists(numbers, max_size=5))
def test_numbers_in_their_full_form_go_the_short_way_to_the_same_result(texts: list[str]) -> None:
    full = ["/".join(f"{section:016X}" for section in filled(text)) for text in texts]

    assert comparable(pa.array(full, pa.string())).to_pylist() == comparable(pa.array(texts, pa.string())).to_pylist()
