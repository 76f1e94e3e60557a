"""Records of the PostgreSQL dialect: one JSON document each, and the same records as GoogleSQL's."""

import json
from typing import Any

import pytest
from google.cloud.spanner_v1 import PartialResultSet, StructType, Type, TypeCode
from google.cloud.spanner_v1.types import TypeAnnotationCode
from hypothesis import given
from hypothesis import strategies as st

from services.spanner_reader.adapters.spanner.dialects import Dialect
from services.spanner_reader.adapters.stream.change_stream import StreamRows, change_stream_query
from services.spanner_reader.core.stream.changes import googlesql_type
from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    PartitionToken,
    SpannerColumnType,
    SpannerStreamQuery,
    StreamRecord,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import parse_timestamp

JSONB = Type(code=TypeCode.JSON, type_annotation=TypeAnnotationCode.PG_JSONB)
ROW_TYPE = StructType(fields=[StructType.Field(name="read_json_everything", type_=JSONB)])
# As the emulator wrote it, cut to three columns.
DATA = (
    '{"data_change_record":{"column_types":[{"is_primary_key":true,"name":"id","ordinal_position":1,"type":'
    '{"code":"INT64"}},{"is_primary_key":false,"name":"n","ordinal_position":2,"type":{"code":"NUMERIC",'
    '"type_annotation":"PG_NUMERIC"}},{"is_primary_key":false,"name":"an","ordinal_position":3,"type":'
    '{"array_element_type":{"code":"NUMERIC","type_annotation":"PG_NUMERIC"},"code":"ARRAY"}}],"commit_timestamp":'
    '"2026-11-21T16:26:01.675631+00:00","is_last_record_in_transaction_in_partition":false,"is_system_transaction":'
    'false,"mod_type":"INSERT","mods":[{"keys":{"id":"1"},"new_values":{"an":["1.50", "NaN"],"n":"1.50"},"old_values":'
    '{}},{"keys":{"id":"2"},"new_values":null}],"number_of_partitions_in_transaction":1,'
    '"number_of_records_in_transaction":3,"record_sequence":"00000001","server_transaction_id":"29","table_name":'
    '"shop.everything","transaction_tag":"t","value_capture_type":"NEW_ROW_AND_OLD_VALUES"}}'
)


def responses(*documents: str, chunks: int = 1) -> list[Any]:
    """Return responses with these rows, each cut into so many pieces, as a response of the service may be cut."""
    made: list[Any] = []
    for document in documents:
        size = -(-len(document) // chunks)
        parts = [document[start : start + size] for start in range(0, len(document), size)] if size else [""]
        for number, part in enumerate(parts, start=1):
            one = PartialResultSet.pb(PartialResultSet(chunked_value=number < len(parts)))
            if not made:
                one.metadata.row_type.CopyFrom(StructType.pb(ROW_TYPE))
            one.values.add().string_value = part
            made.append(one)
    return made


def decode(*documents: str, chunks: int = 1) -> list[StreamRecord]:
    rows = StreamRows()
    answers = responses(*documents, chunks=chunks)
    found = [record for one in answers for some in rows.records([one.SerializeToString()]) for record in some]
    rows.end()
    return found


def test_a_data_change_record_keeps_its_values_as_the_text_they_are() -> None:
    (record,) = decode(DATA)
    assert isinstance(record, DataChangeRecord)
    assert record == DataChangeRecord(
        commit_timestamp=parse_timestamp("2026-11-21T16:26:01.675631Z"),
        record_sequence="00000001",
        server_transaction_id="29",
        is_last_record_in_transaction_in_partition=False,
        table="shop.everything",
        column_types=(
            SpannerColumnType("id", '{"code":"INT64"}', True, 1),
            SpannerColumnType("n", '{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', False, 2),
            SpannerColumnType("an", record.column_types[2].type, False, 3),
        ),
        mods=(Mod('{"id":"1"}', '{"an":["1.50", "NaN"],"n":"1.50"}', "{}"), Mod('{"id":"2"}', None, None)),
        mod_type="INSERT",
        value_capture_type="NEW_ROW_AND_OLD_VALUES",
        number_of_records_in_transaction=3,
        number_of_partitions_in_transaction=1,
        transaction_tag="t",
    )
    assert [googlesql_type(column.type) for column in record.column_types] == [
        "INT64", "PG_NUMERIC", "ARRAY<PG_NUMERIC>",
    ]  # fmt: skip


def test_heartbeats_and_children_are_the_same_records_as_in_googlesql() -> None:
    children = {"start_timestamp": "2026-11-21T16:26:01.662814+00:00", "record_sequence": "00000001"}
    start = parse_timestamp("2026-11-21T16:26:01.662814Z")
    for parents in ([], [None], None):
        child = {"token": "a", "parent_partition_tokens": parents}
        document = json.dumps({"child_partitions_record": children | {"child_partitions": [child]}})
        first = ChildPartition(PartitionToken("a"), frozenset())
        assert decode(document) == [ChildPartitionsRecord(start, "00000001", (first,))]

    both = {"token": "c", "parent_partition_tokens": ["a", "b"]}
    merged = {"child_partitions_record": children | {"record_sequence": 1000012389, "child_partitions": [both]}}
    beat = {"heartbeat_record": {"timestamp": "2026-11-21T17:00:00+00:00"}}
    assert decode(json.dumps(merged), json.dumps(beat)) == [
        ChildPartitionsRecord(
            start, "1000012389", (ChildPartition(PartitionToken("c"), frozenset(map(PartitionToken, "ab"))),)
        ),
        HeartbeatRecord(parse_timestamp("2026-11-21T17:00:00Z")),
    ]


@given(st.integers(1, 200), st.integers(1, 3))
def test_a_record_cut_anywhere_is_put_together_again(chunks: int, times: int) -> None:
    assert decode(*[DATA] * times, chunks=chunks) == decode(DATA) * times


def test_a_stream_cut_off_inside_a_record_is_not_complete() -> None:
    rows = StreamRows()
    for one in responses(DATA, chunks=5)[:-1]:
        assert list(rows.records([one.SerializeToString()])) == []
    with pytest.raises(TransientError):
        rows.end()


@pytest.mark.parametrize(
    "document",
    [
        '{"partition_start_record":{"start_timestamp":"2026-11-21T17:00:00Z"}}',
        '{"data_change_record":{}}',
        DATA.replace('"mods"', '"mod"'),
        "[]",
        "",
        "{",
    ],
)
def test_records_in_another_form_are_refused(document: str) -> None:
    with pytest.raises(MisconfiguredError, match="in a form this version does not know"):
        decode(document)


def test_the_query_is_the_function_of_the_streams_name_with_four_bound_parameters() -> None:
    """S3 L38-44 (A35), in the PostgreSQL dialect."""
    start, end = parse_timestamp("2022-05-01T09:00:00Z"), parse_timestamp("2022-05-01T09:30:00.000000001Z")
    query = SpannerStreamQuery(PartitionToken("t"), start, end, 10_000)
    statement = change_stream_query("SingersNameStream", query, Dialect.POSTGRESQL)

    assert statement.sql == 'SELECT * FROM "spanner"."read_json_SingersNameStream"($1, $2, $3, $4, null)'
    assert {name: (bound.value, bound.type.code) for name, bound in statement.parameters.items()} == {
        "p1": ("2022-05-01T09:00:00Z", TypeCode.TIMESTAMP),
        "p2": ("2022-05-01T09:30:00.000000001Z", TypeCode.TIMESTAMP),
        "p3": ("t", TypeCode.STRING),
        "p4": ("10000", TypeCode.INT64),
    }
    first = change_stream_query("s", SpannerStreamQuery(ROOT, start, None, 1_000), Dialect.POSTGRESQL).parameters
    assert (first["p2"].value, first["p3"].value) == (None, None)
