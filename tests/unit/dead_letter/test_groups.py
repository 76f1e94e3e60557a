"""Which dead letters fail for one cause: what differs from record to record is taken out of a detail, nothing else."""

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.dead_letter.core.groups import group_of, normalised
from shared.contracts.reasons import Reason
from tests.seeds import examples

NUMBERS = st.one_of(st.integers().map(str), st.decimals(allow_nan=False, allow_infinity=False).map(str))
INNARDS = st.text(st.characters(exclude_characters="'\"\\", exclude_categories=["Cs"]), max_size=30)
QUOTED = st.one_of(INNARDS.map(lambda text: f"'{text}'"), INNARDS.map(lambda text: f'"{text}"'))
TIMES = st.datetimes().map(lambda time: time.isoformat() + "Z")
HEX = st.integers(1 << 60, (1 << 64) - 1).map(lambda n: f"{n:016X}").filter(lambda text: not text.isalpha())
IDS = st.one_of(st.uuids().map(str), HEX)
DETAILS: dict[str, Callable[[str], str]] = {
    "alone": lambda particular: particular,
    "in words": lambda particular: f"column seats of type INT64: {particular} is too much",
    "in brackets": lambda particular: f"not JSON ({particular} bytes)",
    "at the end": lambda particular: f"refused: {particular}.",
}


@pytest.mark.parametrize("detail", DETAILS.values(), ids=DETAILS.keys())
@pytest.mark.parametrize("particulars", [NUMBERS, QUOTED, TIMES], ids=["numbers", "quoted", "times"])
def test_dead_letters_that_differ_in_their_particulars_are_of_one_group(
    particulars: st.SearchStrategy[str], detail: Callable[[str], str]
) -> None:
    @settings(max_examples=examples(40))
    @given(particulars, particulars)
    def same(one: str, another: str) -> None:
        assert normalised(detail(one)) == normalised(detail(another))
        groups = {group_of(Reason.VALUE_DOES_NOT_FIT, "planes", detail(particular)) for particular in (one, another)}
        assert len(groups) == 1

    same()


@given(IDS)
def test_ids_are_particulars(one: str) -> None:
    assert normalised(f"row {one} is locked") in ("row <id> is locked", "row <number> is locked")


@given(st.uuids(), st.datetimes())
def test_an_id_and_a_time_are_each_reported_as_what_they_are(uuid: UUID, time: datetime) -> None:
    assert normalised(f"{uuid} at {time.isoformat()}Z") == "<id> at <time>"


@settings(max_examples=examples(50))
@given(st.text(max_size=100))
def test_what_is_normal_stays_as_it_is(detail: str) -> None:
    assert normalised(normalised(detail)) == normalised(detail)


@given(st.text(st.characters(categories=("L", "Zs"), include_characters="_.:,"), max_size=200))
def test_words_are_no_particulars(detail: str) -> None:
    assert normalised(detail) == detail


@pytest.mark.parametrize(
    ("detail", "normal"),
    [
        ("column seats of type INT64: not a whole number", "column seats of type INT64: not a whole number"),
        ("column c_2 of type FLOAT32: 1e400", "column c_2 of type FLOAT32: <number>"),
        ("column 'a b': twice", "column 'a b': twice"),
        ("column name 'ß': its prefix is reserved", "column name 'ß': its prefix is reserved"),
        ("the row has 'Hans', which is not one of", "the row has <value>, which is not one of"),
        ("it's 5 o'clock, isn't it", "it's <number> o'clock, isn't it"),
        ("Expected `int`, got `str` - at `$.op[3]`", "Expected `int`, got `str` - at `$.op[<number>]`"),
        ("12000000 bytes as a row; an append takes 9000000", "<number> bytes as a row; an append takes <number>"),
        ("2026-11-21 and 2026-11-21T12:00:00.5+02:00", "<time> and <time>"),
        ("an unfinished 'quote and 7", "an unfinished 'quote and <number>"),
        ("'it\\'s' and \"a 'b' c\"", "<value> and <value>"),
        ("-1.5, +2, 1,000", "<number>, <number>, <number>"),
        ("", ""),
    ],
)
def test_what_is_taken_out_and_what_stays(detail: str, normal: str) -> None:
    assert normalised(detail) == normal


def test_groups_differ_by_reason_by_table_and_by_what_is_wrong() -> None:
    details = ("column seats of type INT64: not a whole number", "column name of type INT64: not a whole number")
    reasons = (Reason.VALUE_DOES_NOT_FIT, Reason.BAD_CHANGE)
    groups = {group_of(reason, table, detail) for reason in reasons for table in ("a", "b") for detail in details}
    assert len(groups) == 8
    assert group_of(Reason.BAD_CHANGE, "ab", "c") != group_of(Reason.BAD_CHANGE, "a", "bc")


@given(st.text(max_size=300), st.text(st.characters(categories=("Cs", "Cc", "L")), max_size=50))
def test_a_group_is_made_of_any_detail_and_table(detail: str, table: str) -> None:
    group = group_of(Reason.UNEXPLAINED, table, detail)
    assert len(group) == 12
    assert group == group_of(Reason.UNEXPLAINED, table, detail)


@pytest.mark.parametrize("part", ["'", '"a', "1-", "12:", "column '", "\\'", "0xF", "deadbeef1"])
def test_no_detail_takes_long(part: str) -> None:
    assert normalised(part * 100_000)
