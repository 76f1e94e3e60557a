"""The change sequence number, as BigQuery's change data capture document defines it.

The worked examples are that document's ("Manage custom ordering"); the grammar's edges are derived from it.
"""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.change_sequence import ChangeSequenceNumber, four_sections, parse_sequence

HIGHEST = "/".join(["F" * 16] * 4)
SECTIONS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4)


@pytest.mark.parametrize(
    "text", ["0/0/0/0", HIGHEST, "ab/CD", "16/B374D848", "18F2EBB6480", "18F2EBB6480/7B/636F6D706C657465"]
)
def test_what_the_grammar_allows_is_read(text: str) -> None:
    sections = tuple(int(section, 16) for section in text.split("/"))

    assert parse_sequence(text).sections == sections


@pytest.mark.parametrize(
    "text", ["", "/", "1/", "/1", "1//2", "1/2/3/4/5", "1" + "0" * 16, "0x1", "-1", "+1", " 1", "1 ", "1\n", "G", "١"]
)
def test_what_the_grammar_does_not_allow_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a change sequence number"):
        parse_sequence(text)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        pytest.param("77", "7B", id="example 1"),
        pytest.param("FFF/B", "FFF/ABC", id="example 2"),
        pytest.param("BA/FFFFFFFF", "ABC", id="example 3"),
        pytest.param("ABC", "FFF/ABC", id="example 4"),
        pytest.param("7FFFFFFFFFFFFFFF", "8000000000000000", id="unsigned"),
        pytest.param("00009", "A", id="leading zeros do not matter"),
        pytest.param("0/0/0/0", HIGHEST, id="the whole range"),
    ],
)
def test_the_documents_worked_examples_compare_as_it_says(older: str, newer: str) -> None:
    assert parse_sequence(older) < parse_sequence(newer)


def test_identical_numbers_are_equal_however_they_are_written() -> None:
    assert parse_sequence("ab/0cd") == parse_sequence("00AB/CD")


def test_the_documents_timestamp_example() -> None:
    milliseconds = int(datetime(2024, 4, 30, 11, 19, 44, tzinfo=UTC).timestamp() * 1000)

    assert f"{milliseconds:X}" == "18F2EBB6480"
    assert parse_sequence("18F2EBB6480").sections == (1714475984000,)


@given(SECTIONS, SECTIONS)
def test_our_texts_sort_as_their_numbers_when_they_have_equally_many_sections(a: list[int], b: list[int]) -> None:
    left, right = four_sections(*a), four_sections(*b)

    assert (str(left) < str(right)) == (left < right)
    assert parse_sequence(str(left)) == left


@given(SECTIONS)
def test_what_is_written_is_read_back(sections: list[int]) -> None:
    number = ChangeSequenceNumber(tuple(sections))

    assert parse_sequence(str(number)) == number
    assert parse_sequence(str(number).lower()) == number


@pytest.mark.parametrize("sections", [(), (1, 2, 3, 4, 5), (-1,), (2**64,)])
def test_a_number_cannot_be_built_wrong(sections: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="section"):
        ChangeSequenceNumber(sections)


def test_a_persons_edit_beats_its_original_and_nothing_else() -> None:
    original, edited, later = four_sections(7, 1, 3), four_sections(7, 1, 3, 1), four_sections(7, 1, 4)

    assert original < edited < later
