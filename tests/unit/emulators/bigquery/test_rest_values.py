"""Values as the REST API writes them."""

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from emulators.bigquery.rest_values import TimestampFormat, result_rows, result_schema, timestamp_format

MICROS = 1_714_478_400_123_456


@pytest.mark.parametrize(
    ("value", "arrow", "written"),
    [
        (None, pa.int64(), None),
        (-5, pa.int64(), "-5"),
        (Decimal(2**100), pa.decimal128(38, 0), str(2**100)),
        (True, pa.bool_(), "true"),
        (math.nan, pa.float64(), "NaN"),
        (-math.inf, pa.float64(), "-Infinity"),
        (0.1, pa.float64(), "0.1"),
        (Decimal("1.500000000"), pa.decimal128(38, 9), "1.5"),
        (Decimal("0E-9"), pa.decimal128(38, 9), "0"),
        (Decimal("100.000000000"), pa.decimal128(38, 9), "100"),
        (b"\x00\xff", pa.binary(), "AP8="),
        (0, pa.date32(), "1970-01-01"),
        ("text", pa.string(), "text"),
        ([1, 2], pa.list_(pa.int64()), [{"v": "1"}, {"v": "2"}]),
        (None, pa.list_(pa.int64()), []),
        ({"a": 1, "b": None}, pa.struct([("a", pa.int64()), ("b", pa.string())]), {"f": [{"v": "1"}, {"v": None}]}),
    ],
)
def test_each_type_has_its_text(value: Any, arrow: pa.DataType, written: Any) -> None:
    table = pa.table({"c": pa.array([value], arrow)})

    assert result_rows(table, TimestampFormat.INT64) == [{"f": [{"v": written}]}]


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, "1714478400.123456"),
        ({"useInt64Timestamp": True}, "1714478400123456"),
        ({"useInt64Timestamp": "true"}, "1714478400123456"),
        ({"timestampOutputFormat": "ISO8601_STRING"}, "2024-04-30T12:00:00.123456Z"),
    ],
)
def test_a_timestamp_is_written_as_the_request_asks(options: dict[str, Any], written: str) -> None:
    table = pa.table({"c": pa.array([MICROS], pa.timestamp("us"))})

    assert result_rows(table, timestamp_format(options)) == [{"f": [{"v": written}]}]


def test_the_schema_says_what_is_repeated_and_what_is_nested() -> None:
    schema = pa.schema([("l", pa.list_(pa.struct([("a", pa.int64())]))), ("n", pa.decimal128(38, 9))])

    assert result_schema(schema) == [
        {
            "name": "l",
            "type": "RECORD",
            "mode": "REPEATED",
            "fields": [{"name": "a", "type": "INTEGER", "mode": "NULLABLE"}],
        },
        {"name": "n", "type": "NUMERIC", "mode": "NULLABLE"},
    ]
