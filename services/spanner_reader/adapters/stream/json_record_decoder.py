"""Rows of a change stream query in a PostgreSQL-dialect database: one JSON document a record, fields by their names.

The values of mods are kept as the JSON text that they are; column types, the bulk of a record, are cached by theirs.
"""

from typing import Final

import msgspec

from services.spanner_reader.adapters.stream.row_messages import Scalar
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
from shared.contracts.timestamps import parse_timestamp

_CACHED: Final = 10_000
_NULL: Final = b"null"


class _Column(msgspec.Struct):
    name: str
    type: msgspec.Raw
    is_primary_key: bool
    ordinal_position: int


class _Mod(msgspec.Struct):
    keys: msgspec.Raw
    new_values: msgspec.Raw = msgspec.Raw(_NULL)
    old_values: msgspec.Raw = msgspec.Raw(_NULL)


class _Data(msgspec.Struct):
    commit_timestamp: str
    record_sequence: str | int
    server_transaction_id: str
    is_last_record_in_transaction_in_partition: bool
    table_name: str
    column_types: msgspec.Raw
    mods: list[_Mod]
    mod_type: str
    value_capture_type: str
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int
    transaction_tag: str = ""
    is_system_transaction: bool = False


class _Heartbeat(msgspec.Struct):
    timestamp: str


class _Child(msgspec.Struct):
    token: str
    parent_partition_tokens: list[str | None] | None = None


class _Children(msgspec.Struct):
    start_timestamp: str
    record_sequence: str | int
    child_partitions: list[_Child]


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    data_change_record: _Data | None = None
    heartbeat_record: _Heartbeat | None = None
    child_partitions_record: _Children | None = None


# Not strict: Spanner's documentation shows numbers where text is usual, and the other way round.
_record: Final = msgspec.json.Decoder(_Record, strict=False)
_columns: Final = msgspec.json.Decoder(list[_Column], strict=False)


class JsonRecordDecoder:
    """Decodes the rows of one query."""

    def __init__(self) -> None:
        self._column_types: dict[bytes, tuple[SpannerColumnType, ...]] = {}

    def decode(self, value: bytes) -> list[StreamRecord]:
        """Return the records of one row: exactly one, says the documentation, and as many as there are, say we."""
        try:
            record = _record.decode(Scalar.FromString(value).string_value)
            found: list[StreamRecord] = []
            if record.data_change_record is not None:
                found.append(self._data(record.data_change_record))
            if record.heartbeat_record is not None:
                found.append(HeartbeatRecord(parse_timestamp(record.heartbeat_record.timestamp)))
            if record.child_partitions_record is not None:
                found.append(_children(record.child_partitions_record))
        except msgspec.MsgspecError as error:
            raise MisconfiguredError(
                "json-record-unknown",
                f"the change stream returns records in a form this version does not know ({error}): only streams with "
                "partition_mode IMMUTABLE_KEY_RANGE are read",
            ) from error
        return found

    def _data(self, data: _Data) -> DataChangeRecord:
        return DataChangeRecord(
            commit_timestamp=parse_timestamp(data.commit_timestamp),
            record_sequence=str(data.record_sequence),
            server_transaction_id=data.server_transaction_id,
            is_last_record_in_transaction_in_partition=data.is_last_record_in_transaction_in_partition,
            table=data.table_name,
            column_types=self._types(bytes(data.column_types)),
            mods=tuple(
                Mod(bytes(mod.keys).decode(), _text_or_null(mod.new_values), _text_or_null(mod.old_values))
                for mod in data.mods
            ),
            mod_type=data.mod_type,
            value_capture_type=data.value_capture_type,
            number_of_records_in_transaction=data.number_of_records_in_transaction,
            number_of_partitions_in_transaction=data.number_of_partitions_in_transaction,
            transaction_tag=data.transaction_tag,
            is_system_transaction=data.is_system_transaction,
        )

    def _types(self, text: bytes) -> tuple[SpannerColumnType, ...]:
        types = self._column_types.get(text)
        if types is None:
            if len(self._column_types) >= _CACHED:
                self._column_types.clear()
            types = self._column_types[text] = tuple(
                SpannerColumnType(
                    column.name, bytes(column.type).decode(), column.is_primary_key, column.ordinal_position
                )
                for column in _columns.decode(text)
            )
        return types


def _children(record: _Children) -> ChildPartitionsRecord:
    # The first partitions have no parents: [NULL], [] and NULL all say so.
    children = (
        ChildPartition(
            PartitionToken(child.token),
            frozenset(PartitionToken(parent) for parent in child.parent_partition_tokens or () if parent),
        )
        for child in record.child_partitions
    )
    return ChildPartitionsRecord(parse_timestamp(record.start_timestamp), str(record.record_sequence), tuple(children))


def _text_or_null(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == _NULL else text.decode()
