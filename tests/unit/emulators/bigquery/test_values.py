"""Texts, packed integers and bytes of the types that DuckDB does not have, or holds in another way."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.bigquery import decimals
from emulators.bigquery.civil_times import datetime_microseconds, time_microseconds
from emulators.bigquery.geographies import geography_text
from emulators.bigquery.intervals import Interval, interval_of, parse_interval, parse_span

SECOND = 1_000_000
FIRST_YEAR = -62_135_596_800 * SECOND
units = st.integers(decimals.BIGNUMERIC.least, decimals.BIGNUMERIC.greatest)
an_interval = st.builds(
    Interval,
    st.integers(-120_000, 120_000),
    st.integers(-3_660_000, 3_660_000),
    st.integers(-2_562_047 * 3_600 * SECOND, 2_562_047 * 3_600 * SECOND),
)


class TestDecimals:
    @given(units, units)
    def test_bytes_sort_as_the_numbers_do(self, one: int, other: int) -> None:
        assert (decimals.sortable(one) < decimals.sortable(other)) is (one < other)

    @given(units)
    def test_the_text_is_the_number_and_comes_back_from_every_form(self, number: int) -> None:
        text = decimals.bignumeric_text(decimals.sortable(number))

        assert decimals.BIGNUMERIC.units(text) == number
        assert decimals.BIGNUMERIC.units(number.to_bytes(32, "little", signed=True)) == number
        assert "e" not in text.lower()
        assert not (text.endswith("0") and "." in text)

    @given(st.floats(-1e28, 1e28))
    def test_a_float_is_rounded_and_not_cut_off(self, number: float) -> None:
        exact = Decimal(repr(number)) * 10**9
        assert abs(decimals.NUMERIC.units(number) - exact) <= Decimal("0.5")

    @pytest.mark.parametrize("text", ["", " 1", "1_0", "0x1", "NaN", "inf", "1e9999", "--1", "."])
    def test_what_is_no_number_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"not a number|out of range"):
            decimals.BIGNUMERIC.units(text)


class TestCivilTimes:
    @pytest.mark.parametrize(
        ("packed", "text"),
        [
            (0x442000000000, "0001-01-01 00:00:00"),
            (0x486004200BB8, "0001-02-03 00:01:02.003"),
            (0x442D38F03E80, "0001-01-01 13:14:15.016"),
            (0x9C3F3F7EFBF3E58, "9999-12-31 23:59:59.999"),
        ],
    )
    def test_a_packed_datetime_is_what_the_java_client_makes_of_it(self, packed: int, text: str) -> None:
        """java-bigquerystorage, CivilTimeEncoderTest."""
        assert datetime_microseconds(packed) == datetime_microseconds(text)

    @given(st.integers(0, 86_400 * SECOND - 1))
    def test_a_time_of_day_comes_back_from_both_forms(self, micros: int) -> None:
        seconds, fraction = divmod(micros, SECOND)
        hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60

        assert time_microseconds(f"{hour}:{minute}:{second}.{fraction:06}") == micros
        assert time_microseconds(hour << 32 | minute << 26 | second << 20 | fraction) == micros

    def test_the_first_datetime(self) -> None:
        assert datetime_microseconds("0001-01-01") == FIRST_YEAR

    @pytest.mark.parametrize("value", [0x9C4042000000000, 1 << 60, -1, 0, "2024-13-01", "24-01-01", "2024-01-01 1:2"])
    def test_what_is_no_datetime_is_refused(self, value: int | str) -> None:
        with pytest.raises(ValueError, match=r".+"):
            datetime_microseconds(value)


class TestIntervals:
    @given(an_interval)
    def test_the_text_comes_back(self, interval: Interval) -> None:
        assert parse_interval(str(interval)) == interval

    @pytest.mark.parametrize(
        ("interval", "text"),
        [
            (Interval(microseconds=10 * 60 * SECOND), "0-0 0 0:10:0"),  # "change data capture", section "max_staleness"
            (Interval(14, -3, 500_000), "1-2 -3 0:0:0.500"),
            (Interval(-1, 0, -SECOND), "-0-1 0 -0:0:1"),
            (interval_of(3, "QUARTER"), "0-9 0 0:0:0"),
            (interval_of(-2, "WEEK"), "0-0 -14 0:0:0"),
        ],
    )
    def test_the_canonical_form(self, interval: Interval, text: str) -> None:
        assert str(interval) == text

    @pytest.mark.parametrize(
        ("text", "first", "last", "expected"),
        [
            ("1-2 3 4:5:6.789", "YEAR", "SECOND", Interval(14, 3, (4 * 3600 + 5 * 60 + 6) * SECOND + 789_000)),
            ("10:20:30.52", "HOUR", "SECOND", Interval(0, 0, (10 * 3600 + 20 * 60 + 30) * SECOND + 520_000)),
            ("1-2", "YEAR", "MONTH", Interval(14)),
            ("1 5:30", "DAY", "MINUTE", Interval(0, 1, (5 * 3600 + 30 * 60) * SECOND)),
            ("-8 -20 17", "MONTH", "HOUR", Interval(-8, -20, 17 * 3600 * SECOND)),
        ],
    )
    def test_a_span_of_units(self, text: str, first: str, last: str, expected: Interval) -> None:
        """GoogleSQL, "Data types", section "Construct an interval with a datetime part range"."""
        assert parse_span(text, first, last) == expected

    @pytest.mark.parametrize(
        ("text", "first", "last"), [("1-2 3", "YEAR", "MONTH"), ("1", "DAY", "DAY"), ("", "A", "B")]
    )
    def test_a_span_that_is_none_is_refused(self, text: str, first: str, last: str) -> None:
        with pytest.raises(ValueError, match=r".+"):
            parse_span(text, first, last)


class TestGeographies:
    @pytest.mark.parametrize(
        ("given_text", "kept"),
        [
            ("point(1.50 -2)", "POINT(1.5 -2)"),
            ("POINT EMPTY", "POINT EMPTY"),
            ("MULTIPOINT((1 2), (3 4))", "MULTIPOINT(1 2, 3 4)"),
            ("POLYGON((0 0,1 0,1 1,0 0))", "POLYGON((0 0, 1 0, 1 1, 0 0))"),
            ("MULTIPOLYGON(((0 0,1 0,1 1,0 0)))", "MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))"),
            (
                "GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))",
                "GEOMETRYCOLLECTION(POINT(1 2), LINESTRING(0 0, 1 1))",
            ),
            ('{"type": "Point", "coordinates": [1, 2.5]}', "POINT(1 2.5)"),
            (
                '{"type": "GeometryCollection", "geometries": [{"type": "Point", "coordinates": [1, 2]}]}',
                "GEOMETRYCOLLECTION(POINT(1 2))",
            ),
        ],
    )
    def test_both_formats_are_kept_in_one_spelling(self, given_text: str, kept: str) -> None:
        assert geography_text(given_text) == kept
        assert geography_text(kept) == kept

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "x",
            "POINT()",
            "POINT(1)",
            "POINT(1 2",
            "POINT(1 2 3)",
            "POINT(a b)",
            "POINT(181 0)",
            "POINT(0 -91)",
            "POINT(1 2) POINT(1 2)",
            "LINESTRING(1 1)",
            "POLYGON((0 0, 1 0, 1 1, 0 1))",
            "GEOMETRYCOLLECTION(" * 40,
            "{",
            "{}",
            '{"type": "Point"}',
            '{"type": "Point", "coordinates": ["1", "2"]}',
            '{"type": "Feature", "geometry": null}',
        ],
    )
    def test_what_is_no_geography_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r".+"):
            geography_text(text)
