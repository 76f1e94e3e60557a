"""Values in text: CAST AS STRING, FORMAT, TO_JSON_STRING and TO_JSON of the BigQuery stand-in.

Source: GoogleSQL, "Conversion functions", section "CAST AS STRING"; "String functions", section "FORMAT"; "JSON
functions", section "JSON encodings". A value that differs from those would be a wrong answer that nothing reports.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from emulators.bigquery.errors import ApiError
from emulators.bigquery.warehouse import Warehouse
from tests.unit.emulators.bigquery.warehouses import a_warehouse, value_of

INTERVAL = "INTERVAL '1-2 3 4:5:6.789' YEAR TO SECOND"


@pytest.fixture(scope="module")
def warehouse() -> Iterator[Warehouse]:
    with a_warehouse() as warehouse:
        yield warehouse


def read(warehouse: Warehouse, expression: str) -> Any:
    return value_of(warehouse, f"SELECT {expression}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("TIMESTAMP '2024-01-02 03:04:05+02:00'", "2024-01-02 01:04:05+00"),
        ("TIMESTAMP '2024-01-02 03:04:05.5'", "2024-01-02 03:04:05.500+00"),
        ("TIMESTAMP '0001-01-01 00:00:00.000001'", "0001-01-01 00:00:00.000001+00"),
        ("TIMESTAMP_MICROS(1000)", "1970-01-01 00:00:00.001+00"),
        (INTERVAL, "1-2 3 4:5:6.789"),
        ("INTERVAL '-1-2 -3 -4:5:6' YEAR TO SECOND", "-1-2 -3 -4:5:6"),
        ("INTERVAL 3 DAY", "0-0 3 0:0:0"),
        ("INTERVAL 0 DAY", "0-0 0 0:0:0"),
        ("DATETIME '2024-01-02 03:04:05.12'", "2024-01-02 03:04:05.120"),
        ("TIME '03:04:05.00012'", "03:04:05.000120"),
        ("DATE '2024-01-02'", "2024-01-02"),
        ("1.0", "1"),
        ("-0.0", "0"),
        ("1e15", "1e+15"),
        ("CAST(0.1 AS FLOAT64) + CAST(0.2 AS FLOAT64)", "0.30000000000000004"),
        ("CAST('nan' AS FLOAT64)", "nan"),
        ("CAST('-inf' AS FLOAT64)", "-inf"),
        ("NUMERIC '1.50'", "1.5"),
        ("NUMERIC '20'", "20"),
        (r"b'\xc2\xa9\\x'", "©\\x"),
        ("TRUE", "true"),
        ("9007199254740993", "9007199254740993"),
        ("NULL", None),
        ("CAST(NULL AS TIMESTAMP)", None),
    ],
)
def test_a_value_cast_to_string(warehouse: Warehouse, value: str, text: str | None) -> None:
    assert read(warehouse, f"CAST({value} AS STRING)") == text


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1.5", 1.5),
        ("0.1 + 0.2", 0.30000000000000004),
        ("-1e3", -1000.0),
        ("CAST(0.1 AS NUMERIC) + NUMERIC '0.2'", Decimal("0.3")),
        ("CAST(-99999999999999999999.5 AS NUMERIC)", Decimal("-99999999999999999999.5")),
        ("ROUND(2.345, 2)", 2.35),
        ("7", 7),
    ],
)
def test_a_number_with_a_fraction_is_a_float64(warehouse: Warehouse, expression: str, value: object) -> None:
    found = read(warehouse, expression)
    assert (type(found), found) == (type(value), value)


def test_what_is_put_together_is_of_strings_bytes_or_arrays(warehouse: Warehouse) -> None:
    assert read(warehouse, "CONCAT('a', x, 'c') || x FROM UNNEST(['b']) AS x") == "abcb"
    assert read(warehouse, "CONCAT('a', NULL)") is None
    assert read(warehouse, r"b'\x01' || b'\x02'") == b"\x01\x02"
    assert read(warehouse, "[1] || [2, 3]") == [1, 2, 3]


def test_the_function_string_and_a_safe_cast_do_the_same(warehouse: Warehouse) -> None:
    assert read(warehouse, "STRING(TIMESTAMP '2024-01-02 03:04:05')") == "2024-01-02 03:04:05+00"
    assert read(warehouse, r"SAFE_CAST(b'\xff' AS STRING)") is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("'%t', DATE '2024-01-02'", "2024-01-02"),
        ("'%T', DATE '2024-01-02'", 'DATE "2024-01-02"'),
        ("'%t', TIMESTAMP '2024-01-02 03:04:05'", "2024-01-02 03:04:05+00"),
        ("'%T', TIMESTAMP '2024-01-02 03:04:05'", 'TIMESTAMP "2024-01-02 03:04:05+00"'),
        (f"'%t', {INTERVAL}", "1-2 3 4:5:6.789"),
        (f"'%T', {INTERVAL}", 'INTERVAL "1-2 3 4:5:6.789" YEAR TO SECOND'),
        ("'%t %T %t', 123.0, 1e20, CAST('inf' AS FLOAT64)", "123.0 1e+20 inf"),
        ("'%T', CAST('nan' AS FLOAT64)", 'CAST("nan" AS FLOAT64)'),
        ("'%t %T', 'a', 'a'", 'a "a"'),
        (r"'%t %T', b'abc\x01\x02', b'abc\x01\x02'", r'abc\x01\x02 b"abc\x01\x02"'),
        ("'%t %T', JSON '{\"stock\":3}', JSON '{\"stock\":3}'", '{"stock":3} JSON \'{"stock":3}\''),
        ("'%t %T', TRUE, 5", "true 5"),
        ("'00-%t-00', NULL", "00-NULL-00"),
        ("'%d', CAST(NULL AS INT64)", None),
        ("'%05d|%x|%+d', 42, 255, 7", "00042|ff|+7"),
        ("'%s|%-3s|%3s|%.2s|%%', 'a', 'b', 'c', 'defg'", "a|b  |  c|de|%"),
        ("'%.2f %e %g', 2.5, 2.5, 2.5", "2.50 2.500000e+00 2.5"),
        ("'plain'", "plain"),
    ],
)
def test_format(warehouse: Warehouse, call: str, text: str | None) -> None:
    assert read(warehouse, f"FORMAT({call})") == text


@pytest.mark.parametrize(
    ("value", "as_string", "as_json"),
    [
        ("TIMESTAMP '2017-03-06 12:34:56.789012'", '"2017-03-06T12:34:56.789012Z"', '"2017-03-06T12:34:56.789012Z"'),
        ("DATETIME '2017-03-06 12:34:56'", '"2017-03-06T12:34:56"', '"2017-03-06T12:34:56"'),
        ("TIME '12:34:56.789012'", '"12:34:56.789012"', '"12:34:56.789012"'),
        ("DATE '2017-03-06'", '"2017-03-06"', '"2017-03-06"'),
        ("9007199254740992", "9007199254740992", "9007199254740992"),
        ("9007199254740993", '"9007199254740993"', "9007199254740993"),
        ("NUMERIC '123.56'", '"123.56"', "123.56"),
        ("NUMERIC '-1'", "-1", "-1"),
        ("1.0", "1", "1"),
        ("CAST('inf' AS FLOAT64)", '"Infinity"', '"Infinity"'),
        ("b'Google'", '"R29vZ2xl"', '"R29vZ2xl"'),
        ("'\"abc\"'", r'"\"abc\""', r'"\"abc\""'),
        ("CAST(NULL AS INT64)", "null", "null"),
        ("STRUCT('é' AS a, [9007199254740993, 1] AS b)", '{"a":"é","b":["9007199254740993",1]}', None),
    ],
)
def test_json(warehouse: Warehouse, value: str, as_string: str, as_json: str | None) -> None:
    assert read(warehouse, f"TO_JSON_STRING({value})") == as_string
    if as_json is not None:
        assert read(warehouse, f"TO_JSON({value})") == as_json


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(JSON '1' AS STRING)",
        "CAST(BIGNUMERIC '1' AS STRING)",
        "CAST([1] AS STRING)",
        r"CAST(b'\xff' AS STRING)",
        "CAST(DATE '2024-01-02' AS STRING FORMAT 'YYYY')",
        "STRING(TIMESTAMP '2024-01-02', 'Asia/Tokyo')",
        "FORMAT('%t', [1])",
        "FORMAT('%s', 1)",
        "FORMAT('%')",
        "FORMAT('%d %d', 1)",
        "FORMAT('%d', 1, 2)",
        "FORMAT('%*d', 5, 1)",
        "TO_JSON_STRING(STRUCT(TIMESTAMP '2024-01-02' AS t))",
        "TO_JSON_STRING(INTERVAL 3 DAY)",
        "CONCAT('a', TIMESTAMP '2024-01-02')",
        "'a' || 1",
        "TO_JSON_STRING(STRUCT(1 AS a), TRUE)",
    ],
)
def test_what_has_no_text_that_is_served_is_refused(warehouse: Warehouse, expression: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(warehouse, expression)

    assert not any(word in refused.value.message for word in ("Python", "UDF", "Invalid Input Error", "Traceback"))
