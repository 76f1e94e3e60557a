from typing import Any

import pytest
from google.cloud.spanner_v1 import PartialResultSet, StructType, Type, TypeCode
from google.protobuf.struct_pb2 import ListValue, Value

from services.spanner_reader.adapters.spanner.chunks import value_from_wire
from services.spanner_reader.adapters.stream.change_stream import StreamRows, change_stream_query
from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionToken,
    SpannerStreamQuery,
)
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp


def scalar(code: int) -> Type:
    return Type(code=code)


def array(element: Type) -> Type:
    return Type(code=TypeCode.ARRAY, array_element_type=element)


def struct(**fields: Type) -> Type:
    listed = [StructType.Field(name=name, type_=kind) for name, kind in fields.items()]
    return Type(code=TypeCode.STRUCT, struct_type=StructType(fields=listed))


STRING, BOOL, INT64, TIMESTAMP, JSON = map(
    scalar, (TypeCode.STRING, TypeCode.BOOL, TypeCode.INT64, TypeCode.TIMESTAMP, TypeCode.JSON)
)
DATA = {
    "commit_timestamp": TIMESTAMP,
    "record_sequence": STRING,
    "server_transaction_id": STRING,
    "is_last_record_in_transaction_in_partition": BOOL,
    "table_name": STRING,
    "column_types": array(struct(name=STRING, type=JSON, is_primary_key=BOOL, ordinal_position=INT64)),
    "mods": array(struct(keys=JSON, new_values=JSON, old_values=JSON)),
    "mod_type": STRING,
    "value_capture_type": STRING,
    "number_of_records_in_transaction": INT64,
    "number_of_partitions_in_transaction": INT64,
    "transaction_tag": STRING,
    "is_system_transaction": BOOL,
}
HEARTBEAT = {"timestamp": TIMESTAMP}
CHILDREN = {
    "start_timestamp": TIMESTAMP,
    "record_sequence": STRING,
    "child_partitions": array(struct(token=STRING, parent_partition_tokens=array(STRING))),
}


def row_type(data: dict[str, Type] | None = None) -> StructType:
    record = struct(
        data_change_record=array(struct(**(data or DATA))),
        heartbeat_record=array(struct(**HEARTBEAT)),
        child_partitions_record=array(struct(**CHILDREN)),
    )
    return StructType(fields=[StructType.Field(name="ChangeRecord", type_=array(record))])


def wire(value: Any) -> Value:
    listed = ListValue()
    listed.extend([value])
    return listed.values[0]


def response(*values: Any, chunked: bool = False, data: dict[str, Type] | None = None) -> Any:
    made = PartialResultSet.pb(PartialResultSet(metadata={"row_type": row_type(data)}, chunked_value=chunked))
    made.values.extend(wire(value) for value in values)
    return made


DATA_ROW: list[Any] = [
    "2022-09-27T12:30:00.123456789Z",
    "00000001",
    "6329047911",
    True,
    "AccountBalance",
    [["AccountId", '{"code":"STRING"}', True, "1"], ["Balance", '{"code":"INT64"}', False, "2"]],
    [['{"AccountId":"Id1"}', '{"Balance":"1000"}', "{}"], ['{"AccountId":"Id2"}', None, None]],
    "UPDATE",
    "NEW_ROW",
    "2",
    "1",
    "tag",
    False,
]


def child_row(parents: Any, sequence: Any = "1000012389") -> Any:
    return [[None, None, [["2022-05-01T09:00:01Z", sequence, [["child_token_1", parents]]]]]]


def decode(*responses: Any) -> list[Any]:
    rows = StreamRows()
    found = [record for one in responses for some in rows.records([one.SerializeToString()]) for record in some]
    rows.end()
    return found


def test_a_data_change_record_keeps_its_values_as_text_and_its_time_exact() -> None:
    (record,) = decode(response([[[DATA_ROW], [], []]]))
    assert isinstance(record, DataChangeRecord)
    assert record.commit_timestamp == parse_timestamp("2022-09-27T12:30:00.123456789Z")
    assert [mod.keys for mod in record.mods] == ['{"AccountId":"Id1"}', '{"AccountId":"Id2"}']
    assert [mod.new_values for mod in record.mods] == ['{"Balance":"1000"}', None]
    assert [(c.name, c.is_primary_key, c.ordinal_position) for c in record.column_types] == [
        ("AccountId", True, 1),
        ("Balance", False, 2),
    ]
    assert record.number_of_records_in_transaction == 2
    assert record.is_last_record_in_transaction_in_partition
    assert record.transaction_tag == "tag"


@pytest.mark.parametrize("empty", [[], None])
def test_the_other_two_kinds_are_empty_or_null(empty: Any) -> None:
    heartbeat = "2022-09-27T12:35:00.312486Z"
    assert decode(response([[empty, [[heartbeat]], empty]])) == [HeartbeatRecord(parse_timestamp(heartbeat))]


@pytest.mark.parametrize("parents", [[None], [], None])
def test_no_parents_are_written_in_three_ways(parents: Any) -> None:
    (record,) = decode(response(child_row(parents)))
    assert isinstance(record, ChildPartitionsRecord)
    assert record.start_timestamp == parse_timestamp("2022-05-01 09:00:01-00")
    assert [(child.token, child.parents) for child in record.children] == [("child_token_1", frozenset())]


def test_parents_are_named_and_a_record_sequence_may_be_a_bare_number() -> None:
    (record,) = decode(response(child_row(["child_token_2", "child_token_3"], 1000012389)))
    assert record.children[0].parents == {"child_token_2", "child_token_3"}
    assert record.record_sequence == "1000012389"


def test_fields_are_found_by_name_wherever_they_stand() -> None:
    names = list(DATA)
    order = [*reversed(names), "added_by_spanner_one_day"]
    types = {name: DATA.get(name, STRING) for name in order}
    values = dict(zip(names, DATA_ROW, strict=True)) | {"added_by_spanner_one_day": "?"}
    (record,) = decode(response([[[[values[name] for name in order]], [], []]], data=types))
    assert record == decode(response([[[DATA_ROW], [], []]]))[0]


def test_a_record_of_another_form_is_refused() -> None:
    without = {name: kind for name, kind in DATA.items() if name != "mods"}
    with pytest.raises(MisconfiguredError, match="mods"):
        decode(response([[[DATA_ROW], [], []]], data=without))


def test_a_row_cut_anywhere_in_its_json_is_put_together_and_what_follows_is_read() -> None:
    row: Any = [[[DATA_ROW], [], []]]
    mod = row[0][0][0][6][0]
    text = mod[1]
    head = [[[[*DATA_ROW[:6], [[mod[0], text[:7]]]]]]]
    tail = [[[[[[text[7:], "{}"], DATA_ROW[6][1]], *DATA_ROW[7:]]], [], []]]
    heartbeat = [[[], [["2022-09-27T12:35:00Z"]], []]]
    first = response(heartbeat, head, chunked=True)
    found = decode(first, response(tail, heartbeat))
    assert [type(record) for record in found] == [HeartbeatRecord, DataChangeRecord, HeartbeatRecord]
    assert found[1] == decode(response(row))[0]
    assert value_from_wire(first.values[0]) == heartbeat  # the rest of the response is left as it was


def test_a_query_that_ends_inside_a_row_has_not_ended_properly() -> None:
    with pytest.raises(TransientError):
        decode(response([[[DATA_ROW], [], []]], chunked=True))


def test_the_query_has_named_arguments_and_four_bound_parameters() -> None:
    start, end = parse_timestamp("2022-05-01T09:00:00.123456789Z"), parse_timestamp("2022-05-01T10:00:00Z")
    statement = change_stream_query("SingersNameStream", SpannerStreamQuery(PartitionToken("t"), start, end, 10_000))
    assert statement.sql == (
        "SELECT ChangeRecord FROM READ_SingersNameStream ("
        "start_timestamp => @start_timestamp, end_timestamp => @end_timestamp, "
        "partition_token => @partition_token, heartbeat_milliseconds => @heartbeat_milliseconds)"
    )
    assert {name: (bound.value, bound.type.code.name) for name, bound in statement.parameters.items()} == {
        "start_timestamp": ("2022-05-01T09:00:00.123456789Z", "TIMESTAMP"),
        "end_timestamp": ("2022-05-01T10:00:00Z", "TIMESTAMP"),
        "partition_token": ("t", "STRING"),
        "heartbeat_milliseconds": ("10000", "INT64"),
    }
    first = change_stream_query("s", SpannerStreamQuery(ROOT, start, None, 1_000)).parameters
    assert first["partition_token"].value is None
    assert first["end_timestamp"].value is None


@pytest.mark.parametrize("milliseconds", [999, 300_001])
def test_a_heartbeat_that_spanner_refuses_is_no_query(milliseconds: int) -> None:
    with pytest.raises(ValueError, match="1000 to 300000"):
        SpannerStreamQuery(ROOT, Nanoseconds(1), None, milliseconds)
