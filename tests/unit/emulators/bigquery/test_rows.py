"""Rows that decode in columns and rows that decode one by one are the same rows."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.bigquery.append_errors import AppendRefusedError
from emulators.bigquery.catalog import Table, TableName
from emulators.bigquery.column_types import ALL, Column, column_type
from emulators.bigquery.rows import RowReader
from emulators.bigquery.writer_schema import read_writer_schema
from tests.row_messages import CHANGE, row_message, serialized

PROTO = {
    "BOOL": ("bool", st.booleans()),
    "INT64": ("int64", st.integers(-(1 << 63), (1 << 63) - 1)),
    "FLOAT64": ("double", st.floats(allow_nan=False)),
    "NUMERIC": ("string", st.sampled_from(["0", "-1.5", "12345678901234567890123456789.123456789"])),
    "STRING": ("string", st.text(max_size=8)),
    "BYTES": ("bytes", st.binary(max_size=8)),
    "DATE": ("int32", st.integers(-719_162, 2_932_896)),
    "TIMESTAMP": ("int64", st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)),
    "JSON": ("string", st.sampled_from(["null", '{"b":1,"a":[2.5]}', '"x"'])),
    "BIGNUMERIC": ("bytes", st.binary(max_size=32)),
    "DATETIME": ("string", st.datetimes().map(str)),
    "TIME": ("int64", st.integers(0, 23).map(lambda hour: hour << 32)),
    "INTERVAL": ("string", st.sampled_from(["1-2 3 4:5:6", "-0-1 0 0:0:0.5"])),
    "GEOGRAPHY": ("string", st.sampled_from(["POINT(1 2)", "LINESTRING(1 2, 3 4)"])),
}
NOW = 1_700_000_000_000_000
FIELDS = {"k": "int64", **{f"c_{name}": proto for name, (proto, _) in PROTO.items()}, **CHANGE}
TABLE = Table(
    TableName("p", "d", "t"),
    (Column("k", column_type("INT64")), *(Column(f"c_{each.googlesql}", each) for each in ALL)),
    primary_key=("k",),
)
a_row = st.fixed_dictionaries(
    {
        "k": st.integers(0, 9),
        "_CHANGE_TYPE": st.sampled_from(["UPSERT", "DELETE"]),
        "_CHANGE_SEQUENCE_NUMBER": st.sampled_from(["1", "FF/a", "0/0/0/1"]),
    },
    optional={f"c_{name}": values for name, (_, values) in PROTO.items()},
)


@given(st.lists(a_row, min_size=1, max_size=6))
def test_both_ways_give_the_same_columns(rows: list[Mapping[str, Any]]) -> None:
    message = row_message(FIELDS)
    reader = RowReader(read_writer_schema(TABLE, message))
    slow = RowReader(read_writer_schema(TABLE, message))
    slow._columnar = None
    data = serialized(message, rows)

    columns = reader.read(data, None, NOW).columns

    assert reader._columnar is not None
    assert columns.equals(slow.read(data, None, NOW).columns)
    for name in ("k", "c_INT64", "c_STRING", "c_BYTES", "c_BOOL", "c_FLOAT64"):
        assert columns.column(name).to_pylist() == [row.get(name) for row in rows]


def test_every_bad_row_is_named_once_with_its_first_fault() -> None:
    message = row_message(FIELDS)
    reader = RowReader(read_writer_schema(TABLE, message))
    good: dict[str, Any] = {"k": 1, "_CHANGE_TYPE": "UPSERT", "_CHANGE_SEQUENCE_NUMBER": "1"}
    bad: list[dict[str, Any]] = [
        {"c_DATE": 9_999_999},
        {"c_JSON": "{"},
        {"_CHANGE_TYPE": "X", "c_NUMERIC": "y"},
        {"c_JSON": "[" * 100_000},
    ]
    data = [*serialized(message, [good, *({**good, **fault} for fault in bad)]), b"\xff"]

    with pytest.raises(AppendRefusedError) as refused:
        reader.read(data, None, NOW)

    assert sorted(refused.value.row_errors) == [1, 2, 3, 4, 5]


def test_json_is_kept_as_its_value_not_as_its_text() -> None:
    message = row_message({"k": "int64", "c_JSON": "string"})
    reader = RowReader(read_writer_schema(TABLE, message))

    rows = reader.read(serialized(message, [{"k": 1, "c_JSON": ' { "b" : 1.0, "a" : [ ] } '}]), None, NOW)

    assert rows.columns.column("c_JSON").to_pylist() == ['{"a":[],"b":1.0}']


def test_json_keeps_the_first_of_two_members_of_one_name_and_no_number_beyond_64_bits() -> None:
    message = row_message({"k": "int64", "c_JSON": "string"})
    reader = RowReader(read_writer_schema(TABLE, message))
    kept = reader.read(serialized(message, [{"k": 1, "c_JSON": '{"a":1,"b":18446744073709551615,"a":2}'}]), None, NOW)
    assert kept.columns.column("c_JSON").to_pylist() == ['{"a":1,"b":18446744073709551615}']

    wide = ["18446744073709551616", "[-9223372036854775809]", '{"a":1e400}']
    with pytest.raises(AppendRefusedError) as refused:
        reader.read(serialized(message, [{"k": 1, "c_JSON": each} for each in wide]), None, NOW)
    assert sorted(refused.value.row_errors) == [0, 1, 2]
