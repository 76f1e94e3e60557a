"""Rows of a change stream query as records, read straight from the protobuf values.

Fields are found by the names in the result's metadata, so that a field added by Spanner one day moves nothing. The
values of mods are kept as the JSON text that they are; column types, the bulk of a record, are cached by their bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.cloud.spanner_v1 import TypeCode

from services.spanner_reader.core.stream.records import (
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    PartitionToken,
    SpannerColumnType,
    StreamRecord,
)
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp

Fields = Mapping[str, int]

_DATA: Final = "data_change_record"
_HEARTBEAT: Final = "heartbeat_record"
_CHILDREN: Final = "child_partitions_record"
_CACHED: Final = 10_000


class RecordDecoder:
    """Decodes the rows of one query, whose metadata say where each field stands."""

    def __init__(self, row_type: Any) -> None:
        # Column -> array of struct of three arrays of structs.
        (column,) = row_type.fields
        self._records = _fields(column.type_, "change record")
        kinds = {field.name: field.type_ for field in column.type_.array_element_type.struct_type.fields}
        missing = {_DATA, _HEARTBEAT, _CHILDREN} - kinds.keys()
        if missing:
            raise MisconfiguredError(
                f"the change stream returns records without {', '.join(sorted(missing))}: only streams with "
                "partition_mode IMMUTABLE_KEY_RANGE are read"
            )
        self._data = _fields(kinds[_DATA], _DATA)
        self._heartbeat = _fields(kinds[_HEARTBEAT], _HEARTBEAT)
        self._children = _fields(kinds[_CHILDREN], _CHILDREN)
        self._child = _fields(_field_type(kinds[_CHILDREN], "child_partitions"), "child_partitions")
        self._column = _fields(_field_type(kinds[_DATA], "column_types"), "column_types")
        self._mod = _fields(_field_type(kinds[_DATA], "mods"), "mods")
        self._column_types: dict[bytes, tuple[SpannerColumnType, ...]] = {}

    def decode(self, value: Any) -> list[StreamRecord]:
        """Return the records of one row: exactly one, says the documentation, and as many as there are, say we."""
        records: list[StreamRecord] = []
        for element in _list(value):
            fields = _list(element)
            # The two kinds that a record is not of are empty or NULL.
            records.extend(map(self._data_record, _list(fields[self._records[_DATA]])))
            records.extend(map(self._heartbeat_record, _list(fields[self._records[_HEARTBEAT]])))
            records.extend(map(self._children_record, _list(fields[self._records[_CHILDREN]])))
        return records

    def _data_record(self, value: Any) -> DataChangeRecord:
        fields, at = _list(value), self._data
        return DataChangeRecord(
            commit_timestamp=_time(fields[at["commit_timestamp"]]),
            record_sequence=_text(fields[at["record_sequence"]]),
            server_transaction_id=_text(fields[at["server_transaction_id"]]),
            is_last_record_in_transaction_in_partition=fields[
                at["is_last_record_in_transaction_in_partition"]
            ].bool_value,
            table=fields[at["table_name"]].string_value,
            column_types=self._columns(fields[at["column_types"]]),
            mods=tuple(map(self._mod_of, _list(fields[at["mods"]]))),
            mod_type=fields[at["mod_type"]].string_value,
            value_capture_type=fields[at["value_capture_type"]].string_value,
            number_of_records_in_transaction=int(_text(fields[at["number_of_records_in_transaction"]])),
            number_of_partitions_in_transaction=int(_text(fields[at["number_of_partitions_in_transaction"]])),
            transaction_tag=fields[at["transaction_tag"]].string_value,
            is_system_transaction=fields[at["is_system_transaction"]].bool_value,
        )

    def _mod_of(self, value: Any) -> Mod:
        fields, at = _list(value), self._mod
        return Mod(
            fields[at["keys"]].string_value,
            _text_or_null(fields[at["new_values"]]),
            _text_or_null(fields[at["old_values"]]),
        )

    def _columns(self, value: Any) -> tuple[SpannerColumnType, ...]:
        content = value.SerializeToString(deterministic=True)
        columns = self._column_types.get(content)
        if columns is None:
            if len(self._column_types) >= _CACHED:
                self._column_types.clear()
            at = self._column
            columns = self._column_types[content] = tuple(
                SpannerColumnType(
                    fields[at["name"]].string_value,
                    fields[at["type"]].string_value,
                    fields[at["is_primary_key"]].bool_value,
                    int(_text(fields[at["ordinal_position"]])),
                )
                for fields in map(_list, _list(value))
            )
        return columns

    def _heartbeat_record(self, value: Any) -> HeartbeatRecord:
        return HeartbeatRecord(_time(_list(value)[self._heartbeat["timestamp"]]))

    def _children_record(self, value: Any) -> ChildPartitionsRecord:
        fields, at, child = _list(value), self._children, self._child
        children = []
        for element in map(_list, _list(fields[at["child_partitions"]])):
            # The first partitions have no parents: [NULL], [] and NULL all say so.
            parents = map(_text_or_null, _list(element[child["parent_partition_tokens"]]))
            children.append(
                ChildPartition(
                    PartitionToken(element[child["token"]].string_value),
                    frozenset(PartitionToken(parent) for parent in parents if parent),
                )
            )
        return ChildPartitionsRecord(
            _time(fields[at["start_timestamp"]]), _text(fields[at["record_sequence"]]), tuple(children)
        )


def _field_type(array: Any, name: str) -> Any:
    return next(field.type_ for field in array.array_element_type.struct_type.fields if field.name == name)


_REQUIRED: Final[Mapping[str, Sequence[str]]] = {
    "change record": (_DATA, _HEARTBEAT, _CHILDREN),
    _DATA: (
        "commit_timestamp",
        "record_sequence",
        "server_transaction_id",
        "is_last_record_in_transaction_in_partition",
        "table_name",
        "column_types",
        "mods",
        "mod_type",
        "value_capture_type",
        "number_of_records_in_transaction",
        "number_of_partitions_in_transaction",
        "transaction_tag",
        "is_system_transaction",
    ),
    _HEARTBEAT: ("timestamp",),
    _CHILDREN: ("start_timestamp", "record_sequence", "child_partitions"),
    "child_partitions": ("token", "parent_partition_tokens"),
    "column_types": ("name", "type", "is_primary_key", "ordinal_position"),
    "mods": ("keys", "new_values", "old_values"),
}


def _fields(array: Any, what: str) -> Fields:
    """Return where each field of an array's structs stands."""
    if array.code != TypeCode.ARRAY or array.array_element_type.code != TypeCode.STRUCT:
        raise MisconfiguredError(f"the change stream returns {what} in a form this version does not know")
    found = {field.name: index for index, field in enumerate(array.array_element_type.struct_type.fields)}
    missing = set(_REQUIRED[what]) - found.keys()
    if missing:
        raise MisconfiguredError(f"the change stream returns {what} without {', '.join(sorted(missing))}")
    return found


def _list(value: Any) -> Sequence[Any]:
    values: Sequence[Any] = value.list_value.values  # empty where the value is NULL
    return values


def _text(value: Any) -> str:
    """Return text; of a number, which Spanner's documentation shows in places, its digits."""
    if value.WhichOneof("kind") == "number_value":
        return str(int(value.number_value))
    return str(value.string_value)


def _text_or_null(value: Any) -> str | None:
    return value.string_value if value.WhichOneof("kind") == "string_value" else None


def _time(value: Any) -> Nanoseconds:
    return parse_timestamp(value.string_value)
