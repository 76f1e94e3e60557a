"""Instants keep every digit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.timestamps import (
    Nanoseconds,
    format_microseconds,
    format_timestamp,
    microseconds,
    parse_timestamp,
)

FIRST = parse_timestamp("0001-01-01T00:00:00Z")
LAST = parse_timestamp("9999-12-31T23:59:59.999999999Z")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2022-09-27T12:30:00.123456Z", 1664281800123456000),
        ("2022-05-01 09:00:01-00", 1651395601_000000000),
        ("2026-11-21T09:47:11.042951+00:00", 1795254431_042951000),
        ("2022-05-01T09:00:00+02:30", 1651395600_000000000 - 9000_000000000),
        ("2022-05-01T09:00:00-0800", 1651395600_000000000 + 28800_000000000),
    ],
)
def test_every_form_the_sources_write_is_read(text: str, nanoseconds: int) -> None:
    assert parse_timestamp(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        *["", "2022-05-01", "2022-05-01T09:00:00", "2022-13-01T00:00:00Z", "2022-02-30T00:00:00Z"],
        *["2022-05-01T24:00:00Z", "2022-05-01T09:00:60Z", "2022-05-01T09:00:00.1234567890Z"],
        *["x2022-05-01T09:00:00Z", "2022-05-01T09:00:00Z\n", "2022-02-30T00:00:00.5Z", "2022-05-01T09:00:00.Z"],
        *["2022-05-01T09:00:00.\u0663Z", "2022-05-01T09:00:00.\u00b2Z", "2022-05-01T09:00:00.-1Z"],
    ],
)
def test_what_names_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_timestamp(text)


@given(st.integers(FIRST, LAST))
def test_the_canonical_text_is_read_back_to_the_nanosecond(instant: int) -> None:
    text = format_timestamp(Nanoseconds(instant))

    assert parse_timestamp(text) == instant
    assert not text.removesuffix("Z").endswith(".")


@given(st.integers(FIRST // 1_000 + 1, LAST // 1_000))
def test_an_instant_in_microseconds_has_the_same_text(instant: int) -> None:
    assert format_microseconds(instant) == format_timestamp(Nanoseconds(instant * 1_000))


def test_microseconds_are_cut_towards_minus_infinity() -> None:
    assert microseconds(parse_timestamp("1969-12-31T23:59:59.999999999Z")) == -1
    assert microseconds(parse_timestamp("1970-01-01T00:00:00.000000999Z")) == 0


def test_what_is_no_timestamp_is_answered_with_one() -> None:
    with pytest.raises(ValueError, match="with a zone") as error:
        parse_timestamp("yesterday")
    assert parse_timestamp(str(error.value).partition("such as ")[2].partition(")")[0])
