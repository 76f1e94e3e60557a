"""What a value means: every type's limits, and that the vectorised way and the exact one never disagree."""

import base64
import json
import math
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cdc_consumer.core.stream.parsing import parsed_type
from services.cdc_consumer.core.types.types import (
    BYTES,
    BYTES_KEY,
    COLUMN_TYPES,
    DATE,
    ENUM,
    FLOAT32,
    FLOAT32_KEY,
    FLOAT64_KEY,
    INT64,
    INTERVAL,
    JSON,
    NUMERIC,
    PG_JSONB,
    PG_JSONB_EXACT,
    PG_NUMERIC,
    PROTO,
    PROTO_KEY,
    TIMESTAMP,
    UUID,
    ColumnType,
    array_of,
)
from services.cdc_consumer.core.types.values import (
    beyond_microseconds,
    exact_bytes,
    exact_bytes_text,
    exact_day,
    exact_interval,
    exact_json,
    exact_microsecond,
    exact_numeric,
    exact_pg_jsonb,
    exact_pg_jsonb_numbers,
    exact_pg_numeric,
    exact_uuid,
    exact_whole_number,
    float_text,
    holding_null,
    limit_of,
    normal_numeric,
    normal_numerics,
    wire_values,
)
from tests.seeds import examples


def fitted(kind: ColumnType, *texts: str | None) -> list[object]:
    """Return the values of texts, or the word "misfit", each judged both alone and among many good ones."""
    together, invalid = wire_values(kind, pa.array(texts, pa.string()))
    found = ["misfit" if index in invalid else value for index, value in enumerate(together.to_pylist())]
    alone = [
        "misfit" if invalid else array.to_pylist()[0]
        for array, invalid in (wire_values(kind, pa.array([text], pa.string())) for text in texts)
    ]
    assert found == alone
    assert together.type == kind.wire
    return found


def test_int64_is_taken_to_its_bounds_and_no_further() -> None:
    assert fitted(INT64, "0", "-0", "007", None, "9223372036854775807", "-9223372036854775808") == [
        0, 0, 7, None, 2**63 - 1, -(2**63),
    ]  # fmt: skip
    bad = ["0x10", "+5", " 5", "5 ", "5\n", "", "1e3", "1.0", "9223372036854775808", "-9223372036854775809", "٣", "1_0"]
    assert fitted(INT64, *bad) == ["misfit"] * len(bad)


def test_numeric_is_taken_within_38_digits_9_of_them_after_the_point() -> None:
    most = "9" * 29 + "." + "9" * 9
    assert fitted(NUMERIC, "1.10", "-0.5", "0", most, "-" + most, None) == ["1.10", "-0.5", "0", most, "-" + most, None]
    # Not plain, and still exact: written anew.
    assert fitted(NUMERIC, "1.1000000000000", "007.50", "1E5", "0e999", "1.", "-00") == [
        "1.1", "7.5", "100000", "0", "1", "0",
    ]  # fmt: skip
    bad = ["1" * 30, "0.0000000001", "1e29", "NaN", "Infinity", "", " 1", "1_0", "+1", "1e999999999", "0x1", ".", "1\n"]
    assert fitted(NUMERIC, *bad) == ["misfit"] * len(bad)


def test_dates_are_days_from_year_1_to_year_9999() -> None:
    assert fitted(DATE, "0001-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2024-02-29", None) == [
        -719_162, 2_932_896, 0, -1, 19_782, None,
    ]  # fmt: skip
    bad = [
        "0000-12-31",
        "10000-01-01",
        "2023-02-29",
        "2024-1-1",
        "20240101",
        "2024-01-01T00:00:00Z",
        "",
        "2024-01-01\n",
    ]
    assert fitted(DATE, *bad) == ["misfit"] * len(bad)


def test_timestamps_are_cut_to_microseconds_towards_minus_infinity() -> None:
    assert fitted(
        TIMESTAMP,
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00.0000019Z",
        "1969-12-31T23:59:59.9999999Z",
        "1969-12-31T23:59:59.123456789Z",
        "0001-01-01T00:00:00.000000999Z",
        "9999-12-31T23:59:59.999999999Z",
        None,
    ) == [0, 1, -1, -876_544, -62_135_596_800_000_000, 253_402_300_799_999_999, None]


def test_a_timestamp_may_have_an_offset() -> None:
    texts = [
        "1970-01-01T01:00:00+01:00",
        "1970-01-01 00:00:00+00",
        "1969-12-31T16:30:00-0730",
        "1970-01-01T00:00:00-00",
    ]
    assert fitted(TIMESTAMP, *texts) == [0, 0, 0, 0]
    assert fitted(TIMESTAMP, "1970-01-01T05:30:00.123456789+05:30") == [123_456]


def test_what_is_no_timestamp_of_the_years_1_to_9999_does_not_fit() -> None:
    bad = [
        "0000-12-31T23:59:59Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2024-02-30T00:00:00Z",
        "2024-01-01T24:00:00Z", "2024-01-01T23:59:60Z", "2024-01-01T00:00:00", "2024-01-01T00:00Z", "2024-01-01",
        "2024-01-01T00:00:00.Z", "2024-01-01T00:00:00.1234567890Z", "", "2024-01-01T00:00:00Z\n", "1704067200",
        "2024-01-01T00:00+00:00", "2024-01-01T00:00-0000", "2024-01-01T00+00:00",
        "2024-01-01T00:00:00.1234567890+01:00",
    ]  # fmt: skip
    assert fitted(TIMESTAMP, *bad) == ["misfit"] * len(bad)


def test_bytes_are_padded_base64_of_the_standard_alphabet() -> None:
    assert fitted(BYTES, "AP9hYmM=", "", None, "YQ==", "YWI=", "YWJj", "+/+/") == [
        b"\x00\xffabc", b"", None, b"a", b"ab", b"abc", b"\xfb\xff\xbf",
    ]  # fmt: skip
    bad = ["YQ", "YQ=", "Y===", "====", "-_-_", "YQ==YQ==", "YWJ\n", " YWJj", "Y=Jj", "é", "YWJj===="]
    assert fitted(BYTES, *bad) == ["misfit"] * len(bad)


def test_json_is_any_json_text_and_stays_as_it_is() -> None:
    texts = ['{"a":[1,2.5,null]}', "12345678901234567890", '"x"', "null", " true ", '{"a": 1, "a": 2}', "[]", "1e400"]
    assert fitted(JSON, *texts, None) == [*texts, None]
    bad = ["", "{", "NaN", "{'a':1}", "1 2", "1,2", '"a', 'b"', "[1,]", '"\n"', '"\\ud800"', "[" * 100_000]
    assert fitted(JSON, *bad) == ["misfit"] * len(bad)


def test_a_postgresql_numeric_is_any_number_of_digits_and_stays_as_it_is() -> None:
    texts = ["1.50", "-0.000", "0" * 3 + "1", "9" * 147_455 + "." + "9" * 16_383, "NaN", None]
    assert fitted(PG_NUMERIC, *texts) == texts
    bad = ["", "Infinity", "nan", "1e5", "+1", ".5", "1.", " 1", "1\n", "0x1", "1_0"]
    assert fitted(PG_NUMERIC, *bad) == ["misfit"] * len(bad)


def test_a_uuid_is_its_text_in_lower_case() -> None:
    normal = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
    assert fitted(UUID, normal, normal.upper(), None, "0" * 8 + "-0000" * 3 + "-" + "0" * 12) == [
        normal, normal, None, "00000000-0000-0000-0000-000000000000",
    ]  # fmt: skip
    bad = ["", normal.replace("-", ""), "{" + normal + "}", normal + "\n", normal[:-1], "g" + normal[1:], " " + normal]
    assert fitted(UUID, *bad, "\u212a" + normal[1:]) == ["misfit"] * (len(bad) + 1)


def test_an_enum_is_its_number_and_a_proto_its_bytes() -> None:
    assert fitted(ENUM, "0", "-1", None, "2147483647") == [0, -1, None, 2_147_483_647]
    assert fitted(ENUM, "ON", "") == ["misfit", "misfit"]
    assert fitted(PROTO, "CAU=", "", None) == [b"\x08\x05", b"", None]
    assert fitted(PROTO_KEY, "CAV=", None, "?") == ["CAU=", None, "misfit"]


def test_an_interval_is_its_iso_8601_text() -> None:
    texts = ["P1Y2M3DT4H5M6.5S", "P0Y", "PT0S", "P-1Y-2M-3DT-4H-5M-6.123456789S", "PT1H", "P10000Y", None]
    assert fitted(INTERVAL, *texts) == texts
    bad = ["", "P", "PT", "P1YT", "1Y", "P1S", "PT1D", "P1.5Y", "PT.5S", "PT1.S", "PT1.1234567890S", "p1y", "P1Y\n"]
    assert fitted(INTERVAL, *bad, "PT1,5S", "P+1Y", "1-2 3 4:5:6") == ["misfit"] * (len(bad) + 3)


def test_a_key_of_bytes_is_their_one_base64_text() -> None:
    # The last bits of YR== and YWJ= are no part of any byte: a decoder takes them for YQ== and YWI=.
    assert fitted(BYTES_KEY, "AP9hYmM=", "", None, "YQ==", "YR==", "YWI=", "YWJ=", "+/+/") == [
        "AP9hYmM=", "", None, "YQ==", "YQ==", "YWI=", "YWI=", "+/+/",
    ]  # fmt: skip
    bad = ["YQ", "YQ=", "Y===", "-_-_", "YQ==YQ==", " YWJj", "YWJj\n", "é"]
    assert fitted(BYTES_KEY, *bad) == ["misfit"] * len(bad)


def test_a_float32_is_the_number_of_32_bits_however_many_digits_it_is_written_with() -> None:
    numbers = [1.1, 1.100000023841858, -0.0, math.nan, math.inf, None, 3.4028235e38, 1e-45, 16_777_217.0, 1e39, -1e300]
    values, invalid = wire_values(FLOAT32, pa.array(numbers, pa.float64()))

    assert repr(values.to_pylist()[:9]) == repr(
        [
            1.100000023841858, 1.100000023841858, -0.0, math.nan, math.inf, None,
            3.4028234663852886e38, 1.401298464324817e-45, 16_777_216.0,
        ]
    )  # fmt: skip
    assert list(invalid) == [9, 10]
    assert limit_of(FLOAT32) == "not a number of 32 bits"


def test_a_key_of_a_number_is_its_shortest_text_and_zero_has_no_sign() -> None:
    numbers = [1.5, 0.0, -0.0, 1.0, math.nan, -math.nan, math.inf, -math.inf, None, 0.1, 1e300, 5e-324]
    texts = ["1.5", "0.0", "0.0", "1.0", "NaN", "NaN", "Infinity", "-Infinity", None, "0.1", "1e+300", "5e-324"]
    values, invalid = wire_values(FLOAT64_KEY, pa.array(numbers, pa.float64()))
    assert (values.to_pylist(), values.type, list(invalid)) == (texts, pa.string(), [])

    singles, invalid = wire_values(FLOAT32_KEY, pa.array([1.1, 1.100000023841858, -0.0, 1e39], pa.float64()))
    assert (singles.to_pylist()[:3], list(invalid)) == (["1.100000023841858", "1.100000023841858", "0.0"], [3])


@given(st.floats(), st.floats())
def test_two_numbers_have_one_text_in_a_key_only_if_they_are_one_key(one: float, other: float) -> None:
    assert repr(float(float_text(one))) == repr(one + 0.0)
    assert (float_text(one) == float_text(other)) is (one == other or (math.isnan(one) and math.isnan(other)))


@given(st.binary(), st.binary())
def test_two_keys_of_bytes_have_one_text_only_if_they_are_the_same_bytes(one: bytes, other: bytes) -> None:
    texts = [base64.b64encode(content).decode() for content in (one, other)]
    keys = fitted(BYTES_KEY, *texts)
    assert [base64.b64decode(str(key)) for key in keys] == [one, other]


def test_an_array_with_a_value_that_does_not_fit_is_invalid_as_a_whole_and_alone() -> None:
    texts = [["1", "2"], ["x"], None, [], ["3"], ["4", None, "5"], ["6", "0x7"], []]
    for start, stop in ((0, 8), (2, 7), (3, 4)):
        arrays = pa.array(texts, pa.list_(pa.string())).slice(start, stop - start)
        values, invalid = wire_values(array_of(INT64), arrays)
        expected = {0: [1, 2], 2: None, 3: [], 4: [3], 7: []}

        assert [start + index for index in invalid] == [index for index in (1, 6) if start <= index < stop]
        assert {n: values[n - start].as_py() for n in expected if start <= n < stop} == {
            n: value for n, value in expected.items() if start <= n < stop
        }
        assert [start + index for index in holding_null(arrays)] == [n for n in (5,) if start <= n < stop]
    assert limit_of(array_of(INT64)) == "an element is not a whole number of 64 bits"


def test_elements_that_a_null_array_hides_are_not_inspected() -> None:
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2, 2]), pa.array(["x", "5"]), mask=pa.array([True, False, False]))
    values, invalid = wire_values(array_of(INT64), hidden)
    assert (values.to_pylist(), list(invalid), list(holding_null(hidden))) == ([None, [5], []], [], [])


def test_an_array_that_is_a_slice_of_another_is_decoded_from_its_own_start() -> None:
    texts = pa.array(["YQ==", None, "YWI=", "", "YWJj", "not"])
    assert wire_values(BYTES, texts.slice(1, 4))[0].to_pylist() == [None, b"ab", b"", b"abc"]
    assert wire_values(BYTES, texts.slice(2, 3))[0].to_pylist() == [b"ab", b"", b"abc"]


@pytest.mark.parametrize("kind", COLUMN_TYPES.values(), ids=COLUMN_TYPES)
def test_nothing_and_only_null_are_arrays_too(kind: ColumnType) -> None:
    for texts in ([], [None], [None] * 50):
        values, invalid = wire_values(kind, pa.array(texts, parsed_type(kind)))
        assert (values.to_pylist(), values.type, list(invalid)) == (texts, kind.wire, [])


def test_digits_beyond_the_microsecond_are_seen_where_they_are_not_zero() -> None:
    texts = pa.array(
        ["2024-01-01T00:00:00.1234567Z", "2024-01-01T00:00:00.123456000Z", "2024-01-01T00:00:00.100000001+01:00",
         "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123456+01:30"]
    )  # fmt: skip
    assert beyond_microseconds(texts).to_pylist() == [True, False, True, False, False]


@settings(deadline=None, max_examples=examples(100))
@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=9), st.booleans()
)
def test_a_numeric_key_has_one_text_however_it_was_written(number: Decimal, padded: bool) -> None:
    text = f"{number:f}" if padded else f"{number:f}".rstrip("0").rstrip(".")
    normal = normal_numerics(pa.array([text, None, "1.0"])).to_pylist()

    assert Decimal(normal[0]) == number
    assert normal[0] == normal_numeric(text)
    assert normal[0] == "0" or not normal[0].startswith(("-0", "00")) or "." in normal[0]
    assert normal[1:] == [None, "1"]


EXACT = {
    INT64: (exact_whole_number, "0123456789+-x eE_. "),
    NUMERIC: (exact_numeric, "0123456789+-.eE _"),
    DATE: (exact_day, "0123456789- "),
    TIMESTAMP: (exact_microsecond, "0123456789-+:TZ. "),
    BYTES: (exact_bytes, "AZaz09+/=-_ \n"),
    JSON: (exact_json, '[]{}",:0123456789.-eEtruefalsn \\u'),
    BYTES_KEY: (exact_bytes_text, "AZaz09+/=-_ \n"),
    PG_JSONB: (exact_pg_jsonb, '[]{}",:0123456789.-eEtruefalsn \\u'),
    PG_JSONB_EXACT: (exact_pg_jsonb_numbers, '[]{}",:0123456789.-eEtruefalsn \\u'),
    PG_NUMERIC: (exact_pg_numeric, "0123456789+-.eE _Na"),
    UUID: (exact_uuid, "0123456789abcdefABCDEF-{}"),
    ENUM: (exact_whole_number, "0123456789+-x eE_. "),
    PROTO: (exact_bytes, "AZaz09+/=-_ \n"),
    PROTO_KEY: (exact_bytes_text, "AZaz09+/=-_ \n"),
    INTERVAL: (exact_interval, "0123456789-.,PYMWDTHS \n"),
}

dates = st.dates().map(date.isoformat)
instants = st.builds(
    "{}{}{:02d}:{:02d}:{:02d}{}{}".format,
    dates,
    st.sampled_from("T "),
    st.integers(0, 24),
    st.integers(0, 60),
    st.integers(0, 60),
    st.one_of(st.just(""), st.from_regex(r"\.[0-9]{1,9}", fullmatch=True)),
    st.one_of(st.just("Z"), st.from_regex(r"[+-](0[0-9]|1[0-9]|2[0-3])(:?[0-5][0-9])?", fullmatch=True)),
)


@st.composite
def damaged(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """Return a text of a strategy with one character taken out, put in or replaced."""
    text = draw(texts)
    at = draw(st.integers(0, len(text)))
    return (
        text[:at]
        + draw(st.sampled_from("0519-+:.TZ x,_e=")) * draw(st.integers(0, 1))
        + text[at + draw(st.integers(0, 1)) :]
    )


LIKELY = {
    INT64: st.integers(-(2**65), 2**65).map(str),
    NUMERIC: st.decimals(allow_nan=False, allow_infinity=False).map(str),
    DATE: dates,
    TIMESTAMP: instants,
    BYTES: st.binary(max_size=20).map(lambda content: base64.b64encode(content).decode()),
    JSON: st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(json.dumps),
}


NUMBERS = st.builds(
    "{}{}.{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**25),
    st.integers(0, 10**25),
    st.sampled_from(["", "e5", "E-200", "e+400"]),
)
LIKELY[PG_JSONB] = LIKELY[JSON] | st.builds('[{}, {{"9{}": {}}}]'.format, NUMBERS, NUMBERS, LIKELY[INT64])
DURATIONS = st.builds("P{}Y{}M{}DT{}H{}M{}S".format, *[st.integers(-(10**6), 10**6)] * 5, st.integers(-99, 99))
LIKELY |= {ENUM: LIKELY[INT64], PROTO: LIKELY[BYTES], PROTO_KEY: LIKELY[BYTES], INTERVAL: DURATIONS}
LIKELY[PG_JSONB_EXACT] = LIKELY[PG_JSONB]
LIKELY |= {BYTES_KEY: LIKELY[BYTES], PG_NUMERIC: LIKELY[NUMERIC], UUID: st.uuids().map(str)}


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: f"{kind.googlesql}-{kind.bigquery}")
@settings(deadline=None, max_examples=examples(100))
@given(data=st.data())
def test_the_vectorised_way_and_the_exact_one_give_the_same_values_and_find_the_same_invalid_ones(
    kind: ColumnType, data: st.DataObject
) -> None:
    exact, alphabet = EXACT[kind]
    texts = data.draw(
        st.lists(
            st.one_of(st.none(), LIKELY[kind], LIKELY[kind], damaged(LIKELY[kind]), st.text(alphabet, max_size=30)),
            max_size=40,
        )
    )
    expected: list[object] = []
    for text in texts:
        try:
            expected.append(None if text is None else exact(text))
        except ValueError:
            expected.append("misfit")

    assert fitted(kind, *texts) == expected


@pytest.mark.parametrize(
    "number",
    [
        *("0", "-0", "1.50", "0.1", "-1e-7", "123456789012345", "9223372036854775807", "-9223372036854775808"),
        *(
            "18446744073709551615",
            "100000000000000000000",
            "1e308",
            "0.1234567890123456",
            "5e-324",
            "0." + 40 * "0" + "1",
        ),
        "1" + 300 * "0",
    ],
)
def test_a_jsonb_fits_whose_numbers_bigquery_holds(number: str) -> None:
    texts = [f'{{"a":[{number}]}}', f'{{"{number}":"12345678901234567890.123"}}']
    assert fitted(PG_JSONB, *texts) == texts


@pytest.mark.parametrize(
    "number",
    [
        *(
            "123456789012345678901234567890.12",
            "12345678901234567890123",
            "0.12345678901234567890123",
            "1e400",
            "-1E+309",
        ),
        *(
            "18446744073709551617",
            "-9223372036854775809",
            "1e-400",
            "1e-99999999999999999999",
            "9" * 5_000,
            "0." + "9" * 5_000,
        ),
    ],
)
def test_a_jsonb_with_another_number_does_not_fit_and_its_neighbours_do(number: str) -> None:
    bad = [f'{{"a":[1,{{"b":{number}}}]}}', number]
    assert fitted(PG_JSONB, "{}", *bad, None, "[1]") == ["{}", "misfit", "misfit", None, "[1]"]
    assert fitted(JSON, *bad) == bad, "of Spanner's other dialect every number is a FLOAT64 already"


@settings(deadline=None, max_examples=examples(300))
@given(LIKELY[PG_JSONB])
def test_a_jsonb_with_exact_numbers_is_the_same_document_but_for_numbers_that_bigquery_does_not_hold(text: str) -> None:
    """Nothing is rounded, and no text and no name is taken for a number."""
    (found,) = fitted(PG_JSONB_EXACT, text)

    def a_number(digits: str) -> object:
        return ("number", digits)

    def distinct(digits: str) -> object:
        return digits if fitted(PG_JSONB, digits) == ["misfit"] else a_number(digits)

    before = json.loads(text, parse_int=distinct, parse_float=distinct)
    assert json.loads(str(found), parse_int=a_number, parse_float=a_number) == before
    assert fitted(PG_JSONB, str(found)) == [found]


def test_a_jsonb_with_exact_numbers_shows_what_does_not_fit_as_text() -> None:
    wide = "12345678901234567890123.45"
    assert fitted(PG_JSONB_EXACT, f'{{"{wide}": [{wide}, 1.5, -1e400, "\\"{wide}"]}}', wide, "{", None) == [
        f'{{"{wide}": ["{wide}", 1.5, "-1e400", "\\"{wide}"]}}', f'"{wide}"', "misfit", None,
    ]  # fmt: skip
