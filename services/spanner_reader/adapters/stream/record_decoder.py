"""Rows of a change stream query as records, read straight from their bytes.

Fields are found by the names in the result's metadata, so that a field added by Spanner one day moves nothing. The
values of mods are kept as the JSON text that they are; column types, the bulk of a record, are cached by their bytes.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from google.cloud.spanner_v1 import TypeCode

from services.spanner_reader.adapters.stream.row_messages import Row, Scalars, Structs
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
_UPGRADE: Final = "use the newest version of Millrace; the stream keeps the records until then, for its retention"
_HEARTBEAT: Final = "heartbeat_record"
_CHILDREN: Final = "child_partitions_record"
_CACHED: Final = 10_000


class RecordDecoder:
    """Decodes the rows of one query, whose metadata say where each field stands."""

    def __init__(self, row_type: Any) -> None:
        # Column -> array of struct of three arrays of structs.
        (column,) = row_type.fields
        records = _fields(column.type_, "change record")
        kinds = {field.name: field.type_ for field in column.type_.array_element_type.struct_type.fields}
        missing = {_DATA, _HEARTBEAT, _CHILDREN} - kinds.keys()
        if missing:
            raise MisconfiguredError(
                "record-kinds-missing",
                f"the change stream returns records without {', '.join(sorted(missing))}: only streams with "
                "partition_mode IMMUTABLE_KEY_RANGE are read",
            )
        self._kinds_of = _getter(records, _DATA, _HEARTBEAT, _CHILDREN)
        self._data_of = _getter(_fields(kinds[_DATA], _DATA), *_REQUIRED[_DATA])
        self._heartbeat = _fields(kinds[_HEARTBEAT], _HEARTBEAT)
        self._children = _fields(kinds[_CHILDREN], _CHILDREN)
        self._child = _fields(_field_type(kinds[_CHILDREN], "child_partitions"), "child_partitions")
        self._column = _fields(_field_type(kinds[_DATA], "column_types"), "column_types")
        self._mod_of = _getter(_fields(_field_type(kinds[_DATA], "mods"), "mods"), *_REQUIRED["mods"])
        self._column_types: dict[bytes, tuple[SpannerColumnType, ...]] = {}

    def decode(self, value: bytes) -> list[StreamRecord]:
        """Return the records of one row: exactly one, says the documentation, and as many as there are, say we."""
        records: list[StreamRecord] = []
        for element in _row(value).list_value.values:
            # The two kinds that a record is not of are empty or NULL.
            data, heartbeats, children = self._kinds_of(element.list_value.values)
            records += [self._data_record(one.list_value.values) for one in data.list_value.values]
            records += [self._heartbeat_record(one.list_value.values) for one in heartbeats.list_value.values]
            records += [self._children_record(one.list_value.values) for one in children.list_value.values]
        return records

    def _data_record(self, fields: Any) -> DataChangeRecord:
        (
            commit,
            sequence,
            transaction,
            is_last,
            table,
            column_types,
            mods,
            mod_type,
            captured,
            records,
            partitions,
            tag,
            is_system,
        ) = self._data_of(fields)
        content = column_types.list_value
        columns = self._column_types.get(content)
        mod_of = self._mod_of
        made = []
        for mod in _structs(mods.list_value).values:
            keys, new_values, old_values = mod_of(mod.list_value.values)
            made.append(Mod(keys.string_value, _text_or_null(new_values), _text_or_null(old_values)))
        return DataChangeRecord(
            commit_timestamp=parse_timestamp(commit.string_value),
            record_sequence=sequence.string_value or _text(sequence),
            server_transaction_id=transaction.string_value or _text(transaction),
            is_last_record_in_transaction_in_partition=is_last.bool_value,
            table=table.string_value,
            column_types=self._columns(content) if columns is None else columns,
            mods=tuple(made),
            mod_type=mod_type.string_value,
            value_capture_type=captured.string_value,
            number_of_records_in_transaction=int(records.string_value or _text(records)),
            number_of_partitions_in_transaction=int(partitions.string_value or _text(partitions)),
            transaction_tag=tag.string_value,
            is_system_transaction=is_system.bool_value,
        )

    def _columns(self, content: bytes) -> tuple[SpannerColumnType, ...]:
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
            for fields in (column.list_value.values for column in _structs(content).values)
        )
        return columns

    def _heartbeat_record(self, fields: Any) -> HeartbeatRecord:
        return HeartbeatRecord(_time(fields[self._heartbeat["timestamp"]]))

    def _children_record(self, fields: Any) -> ChildPartitionsRecord:
        at, child = self._children, self._child
        children = []
        for element in (one.list_value.values for one in _structs(fields[at["child_partitions"]].list_value).values):
            # The first partitions have no parents: [NULL], [] and NULL all say so.
            parents = map(_text_or_null, _scalars(element[child["parent_partition_tokens"]].list_value).values)
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
        raise MisconfiguredError(
            "record-form-unknown", f"the change stream returns {what} in a form this version does not know; {_UPGRADE}"
        )
    found = {field.name: index for index, field in enumerate(array.array_element_type.struct_type.fields)}
    missing = set(_REQUIRED[what]) - found.keys()
    if missing:
        raise MisconfiguredError(
            "record-fields-missing",
            f"the change stream returns {what} without {', '.join(sorted(missing))}; {_UPGRADE}",
        )
    return found


def _getter(at: Fields, *names: str) -> Any:
    """Return what takes some fields of a struct, in this order."""
    return itemgetter(*(at[name] for name in names))


def _text(value: Any) -> str:
    """Return text; of a number, which Spanner's documentation shows in places, its digits."""
    return str(int(value.number_value)) if value.HasField("number_value") else str(value.string_value)


def _text_or_null(value: Any) -> str | None:
    return value.string_value or ("" if value.HasField("string_value") else None)


def _time(value: Any) -> Nanoseconds:
    return parse_timestamp(value.string_value)


_row: Final = Row.FromString
_structs: Final = Structs.FromString
_scalars: Final = Scalars.FromString
