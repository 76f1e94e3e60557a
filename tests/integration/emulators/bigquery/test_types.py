"""Types through real sockets: every pair of protobuf and column type that the documents list, and what comes back.

Source: BigQuery, "Introduction to the Storage Write API", section "Data type conversions".
"""

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from google.cloud import bigquery

from tests.integration.stand_in import StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

NOON = datetime(2024, 4, 30, 12, 0, 0, 123456, tzinfo=UTC)
CIVIL_NOON = NOON.replace(tzinfo=None)
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
NOON_MICROS = 1_714_478_400_123_456
DAY = (date(2024, 4, 30) - date(1970, 1, 1)).days
G = "google.protobuf."
BIGGEST = "578960446186580977117854925043439539266.34992332820282019728792003956564819967"
LEAST = "-578960446186580977117854925043439539266.34992332820282019728792003956564819968"


class Parts:
    """An INTERVAL by its parts; equal to what the official client makes of one, which has them as attributes."""

    _NAMES = ("years", "months", "days", "hours", "minutes", "seconds", "microseconds")

    def __init__(self, **parts: int) -> None:
        self._parts = tuple(parts.get(name, 0) for name in self._NAMES)

    def __repr__(self) -> str:
        return f"Parts{self._parts}"

    def __eq__(self, other: object) -> bool:
        return self._parts == tuple(getattr(other, name, None) for name in self._NAMES)

    __hash__ = None  # type: ignore[assignment]


LISTED: list[tuple[str, str, Any, Any]] = [
    *[("BOOL", proto, 1, True) for proto in ("int32", "int64", "uint32", "uint64")],
    ("BOOL", "bool", False, False),
    ("BOOL", G + "BoolValue", {"value": True}, True),
    ("BYTES", "bytes", b"\x00\xff", b"\x00\xff"),
    ("BYTES", "string", "é", "é".encode()),
    ("BYTES", G + "BytesValue", {"value": b"ab"}, b"ab"),
    ("DATE", "int32", DAY, date(2024, 4, 30)),
    ("DATE", "int64", DAY, date(2024, 4, 30)),
    ("FLOAT64", "double", 0.1, 0.1),
    ("FLOAT64", "double", math.inf, math.inf),
    ("FLOAT64", "double", -math.inf, -math.inf),
    ("FLOAT64", "float", 0.5, 0.5),
    ("FLOAT64", G + "DoubleValue", {"value": 1e300}, 1e300),
    ("FLOAT64", G + "FloatValue", {"value": 2.5}, 2.5),
    ("INT64", "int64", -(1 << 63), -(1 << 63)),
    ("INT64", "int64", (1 << 63) - 1, (1 << 63) - 1),
    ("INT64", "int32", -7, -7),
    ("INT64", "uint32", 4_294_967_295, 4_294_967_295),
    ("INT64", "enum", 1, 1),
    *[("INT64", G + name, {"value": 7}, 7) for name in ("Int32Value", "Int64Value", "UInt32Value")],
    ("JSON", "string", '{"a": [1, null, "x"]}', {"a": [1, None, "x"]}),
    ("JSON", "string", '["a\\u0000b"]', ["a\0b"]),
    *[("NUMERIC", proto, 42, Decimal(42)) for proto in ("int32", "int64", "uint32", "uint64")],
    ("NUMERIC", "double", 0.1, Decimal("0.1")),
    ("NUMERIC", "float", 0.5, Decimal("0.5")),
    (
        "NUMERIC",
        "string",
        "-99999999999999999999999999999.999999999",
        Decimal("-99999999999999999999999999999.999999999"),
    ),
    ("NUMERIC", "bytes", (-1_500_000_000).to_bytes(16, "little", signed=True), Decimal("-1.5")),
    ("NUMERIC", G + "BytesValue", {"value": (1).to_bytes(1, "little")}, Decimal("0.000000001")),
    *[("BIGNUMERIC", proto, 42, Decimal(42)) for proto in ("int32", "int64", "uint32", "uint64")],
    ("BIGNUMERIC", "double", 0.1, Decimal("0.1")),
    ("BIGNUMERIC", "float", 0.5, Decimal("0.5")),
    ("BIGNUMERIC", "string", BIGGEST, Decimal(BIGGEST)),
    ("BIGNUMERIC", "string", "-0.00000000000000000000000000000000000001", Decimal(-1).scaleb(-38)),
    ("BIGNUMERIC", "bytes", (-15 * 10**37).to_bytes(32, "little", signed=True), Decimal("-1.5")),
    ("BIGNUMERIC", G + "BytesValue", {"value": (10**37).to_bytes(16, "little")}, Decimal("0.1")),
    ("DATETIME", "string", "2024-04-30 12:00:00.123456", CIVIL_NOON),
    ("DATETIME", "string", "2024-4-30T1:2:3", CIVIL_NOON.replace(hour=1, minute=2, second=3, microsecond=0)),
    ("DATETIME", "string", "2024-04-30", CIVIL_NOON.replace(hour=0, microsecond=0)),
    ("DATETIME", "int64", 2024 << 46 | 4 << 42 | 30 << 37 | 12 << 32 | 123_456, CIVIL_NOON),
    ("TIME", "string", "12:34:56.789", time(12, 34, 56, 789_000)),
    ("TIME", "string", "1:2:3", time(1, 2, 3)),
    ("TIME", "int64", (((23 << 6 | 59) << 6 | 58) << 20) | 999_999, time(23, 59, 58, 999_999)),
    (
        "INTERVAL",
        "string",
        "1-2 -3 4:5:6.5",
        Parts(years=1, months=2, days=-3, hours=4, minutes=5, seconds=6, microseconds=500_000),
    ),
    ("INTERVAL", "string", "-0-1 0 -0:0:1", Parts(months=-1, seconds=-1)),
    ("INTERVAL", G + "Duration", {"seconds": 90, "nanos": 1_999}, Parts(minutes=1, seconds=30, microseconds=1)),
    (
        "INTERVAL",
        G + "Duration",
        {"seconds": -1, "nanos": -500_000_000},
        Parts(seconds=-1, microseconds=-500_000),
    ),
    ("GEOGRAPHY", "string", "point (1.50  -2)", "POINT(1.5 -2)"),
    ("GEOGRAPHY", "string", '{"type": "LineString", "coordinates": [[1, 2], [3, 4]]}', "LINESTRING(1 2, 3 4)"),
    ("STRING", "string", "naïve 🙂", "naïve 🙂"),
    ("STRING", "string", "a\0b", "a\0b"),
    ("STRING", "enum", 1, "RED"),
    ("STRING", G + "StringValue", {"value": ""}, ""),
    ("TIMESTAMP", "int64", NOON_MICROS, NOON),
    ("TIMESTAMP", "int32", 1, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("TIMESTAMP", "uint32", 1, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("TIMESTAMP", G + "Timestamp", {"seconds": NOON_MICROS // 1_000_000, "nanos": 123_456_789}, NOON),
    # The first and the last value.
    ("DATE", "int32", -719_162, date(1, 1, 1)),
    ("DATE", "int32", 2_932_896, date(9999, 12, 31)),
    ("TIMESTAMP", "int64", -62_135_596_800_000_000, FIRST),
    ("TIMESTAMP", "int64", 253_402_300_799_999_999, LAST),
    ("DATETIME", "string", "0001-01-01T00:00:00", FIRST.replace(tzinfo=None)),
    ("DATETIME", "string", "9999-12-31T23:59:59.999999", LAST.replace(tzinfo=None)),
    ("TIME", "string", "0:0:0", time.min),
    ("TIME", "string", "23:59:59.999999", time.max),
    ("BIGNUMERIC", "bytes", (-(1 << 255)).to_bytes(32, "little", signed=True), Decimal(LEAST)),
    ("BIGNUMERIC", "bytes", ((1 << 255) - 1).to_bytes(32, "little", signed=True), Decimal(BIGGEST)),
]

UNLISTED = [
    ("BIGNUMERIC", "bool"),
    ("BOOL", "string"),
    ("BYTES", "int64"),
    ("DATE", "string"),
    ("DATETIME", "int32"),
    ("DATETIME", G + "Timestamp"),
    ("FLOAT64", "int64"),
    ("GEOGRAPHY", "bytes"),
    ("INT64", "double"),
    ("INT64", "uint64"),
    ("INT64", "string"),
    ("INTERVAL", "int64"),
    ("JSON", "bytes"),
    ("NUMERIC", "bool"),
    ("STRING", "bytes"),
    ("STRING", "int64"),
    ("TIME", "int32"),
    ("TIMESTAMP", "string"),
    ("TIMESTAMP", "double"),
]

UNMATCHED = [
    ("DATE", "int32", -719_163),
    ("DATE", "int64", 2_932_897),
    ("TIMESTAMP", "int64", -62_135_596_800_000_001),
    ("TIMESTAMP", "int64", 253_402_300_800_000_000),
    ("BIGNUMERIC", "string", BIGGEST[:-1] + "8"),
    ("BIGNUMERIC", "string", "1e-39"),
    ("BIGNUMERIC", "bytes", b"\x00" * 33),
    ("BIGNUMERIC", "double", math.inf),
    ("DATETIME", "string", "2024-04-30T12:00:00Z"),
    ("DATETIME", "string", "2024-02-30T12:00:00"),
    ("DATETIME", "string", "2024-04-30T12:00:00.1234567"),
    ("DATETIME", "string", ""),
    ("TIME", "string", "24:00:00"),
    ("TIME", "string", "12:00"),
    ("TIME", "int64", 24 << 32),
    ("TIME", "int64", 1 << 46 | 1 << 42 | 1 << 37),
    ("INTERVAL", "string", "1 day"),
    ("INTERVAL", "string", "10001-0 0 0:0:0"),
    ("INTERVAL", "string", "0-0 3660001 0:0:0"),
    ("GEOGRAPHY", "string", "POINT(1)"),
    ("NUMERIC", "bytes", b"\x00" * 17),
    ("NUMERIC", "string", "0.0000000001"),
    ("NUMERIC", "string", "100000000000000000000000000000"),
    ("NUMERIC", "double", math.nan),
    ("JSON", "string", "{"),
    ("JSON", "string", ""),
    ("JSON", "string", "NaN"),
]


def make(stand_in: StandIn, column_type: str) -> None:
    stand_in.run(f"CREATE TABLE t (k INT64, v {column_type}, PRIMARY KEY (k) NOT ENFORCED)")


@pytest.mark.parametrize(("column_type", "proto_type", "sent", "read"), LISTED)
def test_a_listed_pair_is_taken_and_the_value_comes_back(
    stand_in: StandIn, column_type: str, proto_type: str, sent: Any, read: Any
) -> None:
    make(stand_in, column_type)

    rows = [change("UPSERT", "1", k=1, v=sent), change("UPSERT", "1", k=2)]
    answer = stand_in.append("t", {"k": "int64", "v": proto_type, **CHANGE}, rows)

    assert not answer.HasField("error"), answer
    assert stand_in.run("SELECT v FROM t ORDER BY k") == [(read,), (None,)]


@pytest.mark.parametrize(("column_type", "proto_type"), UNLISTED)
def test_a_pair_that_is_not_listed_is_refused(stand_in: StandIn, column_type: str, proto_type: str) -> None:
    make(stand_in, column_type)

    answer = stand_in.append("t", {"k": "int64", "v": proto_type, **CHANGE}, [change("UPSERT", "1", k=1)])

    assert answer.error.code == 3
    assert "mismatched" in answer.error.message
    assert stand_in.run("SELECT * FROM t") == []


@pytest.mark.parametrize(("column_type", "proto_type", "sent"), UNMATCHED)
def test_a_value_that_does_not_fit_is_its_rows_error(
    stand_in: StandIn, column_type: str, proto_type: str, sent: Any
) -> None:
    make(stand_in, column_type)
    rows = [change("UPSERT", "1", k=1), change("UPSERT", "1", k=2, v=sent)]

    answer = stand_in.append("t", {"k": "int64", "v": proto_type, **CHANGE}, rows)

    assert [error.index for error in answer.row_errors] == [1]
    assert "Field v" in answer.row_errors[0].message
    assert stand_in.run("SELECT * FROM t") == []


def test_nan_is_a_value(stand_in: StandIn) -> None:
    make(stand_in, "FLOAT64")
    stand_in.append("t", {"k": "int64", "v": "double", **CHANGE}, [change("UPSERT", "1", k=1, v=math.nan)])

    [(value,)] = stand_in.run("SELECT v FROM t")
    assert math.isnan(value)


def test_the_official_client_makes_a_table_of_every_type_and_reads_a_row_of_it(stand_in: StandIn) -> None:
    of_type: dict[str, tuple[str, Any, Any]] = {}
    for column_type, proto_type, sent, read in LISTED:
        of_type.setdefault(column_type, (proto_type, sent, read))
    fields = {f"a_{column_type}": proto_type for column_type, (proto_type, _, _) in of_type.items()} | CHANGE
    row = {f"a_{column_type}": sent for column_type, (_, sent, _) in of_type.items()}
    expected = tuple(read for _, _, read in of_type.values())
    table = bigquery.Table(
        f"{stand_in.client.project}.{stand_in.dataset}.every",
        schema=[bigquery.SchemaField(f"a_{column_type}", column_type) for column_type in of_type],
    )
    table.table_constraints = bigquery.table.TableConstraints(bigquery.table.PrimaryKey(columns=["a_INT64"]), None)
    made = stand_in.client.create_table(table)

    assert not stand_in.append("every", fields, [change("UPSERT", "1", **row)]).HasField("error")

    assert stand_in.run("SELECT * FROM every") == [expected]
    assert [tuple(found.values()) for found in stand_in.client.list_rows(made)] == [expected]
    job = stand_in.client.query(
        f"SELECT * FROM {stand_in.dataset}.every WHERE a_TIMESTAMP = @t",
        job_config=bigquery.QueryJobConfig(query_parameters=[bigquery.ScalarQueryParameter("t", "TIMESTAMP", NOON)]),
    )
    assert [tuple(found.values()) for found in job.result()] == [expected]
