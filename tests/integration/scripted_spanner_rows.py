"""Change stream records as a real Spanner writes them on the wire, in each form that it may choose.

Sources: Spanner, "Change streams partitions, records, and queries" (the record types, and the looser forms of its
worked examples), and the reference of PartialResultSet (how a value is cut).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, assert_never

from google.cloud.spanner_v1 import PartialResultSet, StructType, Type, TypeCode
from google.protobuf.struct_pb2 import ListValue

from services.spanner_reader.core.stream.records import (
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionToken,
    StreamRecord,
)
from shared.contracts.timestamps import format_timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a server may choose when it writes a record."""

    absent: Literal["empty", "null"] = "empty"
    """How the two kinds that a record is not of are written: [] or NULL."""
    no_parents: Literal["empty", "null", "list of null"] = "empty"
    """How a partition without parents is written: [], NULL or [NULL]."""
    numbers: bool = False
    """Whether sequences, transaction ids and counts are JSON numbers, as in the documentation's examples."""
    chunk_size: int | None = None
    """The size, in characters, of the pieces that rows are cut in; None for a whole row in each response."""


def _array(element: Type) -> Type:
    return Type(code=TypeCode.ARRAY, array_element_type=element)


def _struct(**fields: Type) -> Type:
    listed = [StructType.Field(name=name, type_=kind) for name, kind in fields.items()]
    return Type(code=TypeCode.STRUCT, struct_type=StructType(fields=listed))


_STRING, _BOOL, _INT64, _TIMESTAMP, _JSON = (
    Type(code=code) for code in (TypeCode.STRING, TypeCode.BOOL, TypeCode.INT64, TypeCode.TIMESTAMP, TypeCode.JSON)
)
_DATA: Final = _struct(
    commit_timestamp=_TIMESTAMP,
    record_sequence=_STRING,
    server_transaction_id=_STRING,
    is_last_record_in_transaction_in_partition=_BOOL,
    table_name=_STRING,
    column_types=_array(_struct(name=_STRING, type=_JSON, is_primary_key=_BOOL, ordinal_position=_INT64)),
    mods=_array(_struct(keys=_JSON, new_values=_JSON, old_values=_JSON)),
    mod_type=_STRING,
    value_capture_type=_STRING,
    number_of_records_in_transaction=_INT64,
    number_of_partitions_in_transaction=_INT64,
    transaction_tag=_STRING,
    is_system_transaction=_BOOL,
)
_HEARTBEAT: Final = _struct(timestamp=_TIMESTAMP)
_CHILDREN: Final = _struct(
    start_timestamp=_TIMESTAMP,
    record_sequence=_STRING,
    child_partitions=_array(_struct(token=_STRING, parent_partition_tokens=_array(_STRING))),
)
_RECORD: Final = _struct(
    data_change_record=_array(_DATA),
    heartbeat_record=_array(_HEARTBEAT),
    child_partitions_record=_array(_CHILDREN),
)
ROW_TYPE: Final = StructType(fields=[StructType.Field(name="ChangeRecord", type_=_array(_RECORD))])


def responses(record: StreamRecord, form: Form, *, first: bool, resume_token: bytes) -> Iterator[Any]:
    """Return the responses that carry one record; the first of a result names its columns."""
    chunks = list(_chunks(change_record(record, form), form.chunk_size))
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1
        response = PartialResultSet.pb(PartialResultSet(chunked_value=not last))
        if first and number == 0:
            response.metadata.CopyFrom(PartialResultSet.pb(PartialResultSet(metadata={"row_type": ROW_TYPE})).metadata)
        response.values.add().CopyFrom(_wire(chunk))
        if last:  # a real server gives tokens only now and then, never inside a value
            response.resume_token = resume_token
        yield response


def change_record(record: StreamRecord, form: Form) -> Any:
    """Return the one column of a row: an array of exactly one struct of three arrays."""
    absent: list[Any] | None = [] if form.absent == "empty" else None
    match record:
        case DataChangeRecord():
            return [[[_data(record, form)], absent, absent]]
        case HeartbeatRecord(timestamp=timestamp):
            return [[absent, [[format_timestamp(timestamp)]], absent]]
        case ChildPartitionsRecord():
            return [[absent, absent, [_children(record, form)]]]
    assert_never(record)


def _data(record: DataChangeRecord, form: Form) -> list[Any]:
    number = int if form.numbers else str
    return [
        format_timestamp(record.commit_timestamp),
        _sequence(record.record_sequence, form),
        _sequence(record.server_transaction_id, form),
        record.is_last_record_in_transaction_in_partition,
        record.table,
        [[c.name, c.type, c.is_primary_key, number(c.ordinal_position)] for c in record.column_types],
        [[mod.keys, mod.new_values, mod.old_values] for mod in record.mods],
        record.mod_type,
        record.value_capture_type,
        number(record.number_of_records_in_transaction),
        number(record.number_of_partitions_in_transaction),
        record.transaction_tag,
        record.is_system_transaction,
    ]


def _children(record: ChildPartitionsRecord, form: Form) -> list[Any]:
    children = [[child.token, _parents(sorted(child.parents), form)] for child in record.children]
    return [format_timestamp(record.start_timestamp), _sequence(record.record_sequence, form), children]


def _parents(parents: Sequence[PartitionToken], form: Form) -> list[Any] | None:
    if parents:
        return list(parents)
    return {"empty": [], "null": None, "list of null": [None]}[form.no_parents]


def _sequence(text: str, form: Form) -> str | int:
    return int(text) if form.numbers and text.isdecimal() else text


def _chunks(value: Any, size: int | None) -> Iterator[Any]:
    while size is not None:
        chunk, rest = cut(value, size)
        if rest is None:
            break
        yield chunk
        value = rest
    yield value


def cut(value: Any, room: int) -> tuple[Any, Any]:
    """Return a first piece of about ``room`` characters and the rest, or None where nothing is left.

    They merge back: where a list is cut between two texts or two lists, the rest begins with an empty one.
    """
    if isinstance(value, str):
        return (value, None) if len(value) <= room else (value[:room], value[room:])
    taken: list[Any] = []
    for index, item in enumerate(value):
        rest = None
        if isinstance(item, str | list):
            chunk, rest = cut(item, room)
            taken.append(chunk)
            room -= _size(chunk)
        else:
            taken.append(item)
            room -= 1
        left = value[index + 1 :]
        if rest is not None:
            return taken, [rest, *left]
        if room <= 0 and left:
            same = any(isinstance(item, kind) and isinstance(left[0], kind) for kind in (str, list))
            return taken, [type(item)(), *left] if same else left
    return taken, None


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else sum(map(_size, value)) if isinstance(value, list) else 1


def _wire(value: Any) -> Any:
    listed = ListValue()
    listed.extend([value])
    return listed.values[0]
