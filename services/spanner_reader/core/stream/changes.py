"""A data change record as change records: who the row is, which change of it is newer, and its values untouched."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from services.spanner_reader.core.stream.records import DataChangeRecord, Mod, SpannerColumnType
from shared.contracts.change_batch import Change, Column, Header, Op
from shared.contracts.change_sequence import ChangeSequenceNumber, four_sections
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.row_id import bucket_of, canonical_key, ordering_key
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds

WHOLE_ROW: Final = ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
"""The value capture types with which every upsert carries its whole row."""
_AS_WHOLE: Final = {"OLD_AND_NEW_VALUES": "NEW_ROW_AND_OLD_VALUES", "NEW_VALUES": "NEW_ROW"}

_OPS: Final[Mapping[str, Op]] = {
    "INSERT": "UPSERT",  # a REPLACE is an INSERT of a row that was there: insert and update are told apart by nobody
    "UPDATE": "UPSERT",
    "DELETE": "DELETE",
}
_ALIASES: Final = {"INT": "INT64"}  # the public documentation of the records writes INT
_ANNOTATED: Final = {"PG_JSONB": "JSON", "PG_OID": "INT64", "PG_NUMERIC": "PG_NUMERIC"}
"""Types of the PostgreSQL dialect that share a code with another. Its numeric holds more than NUMERIC does, and NaN."""
_IN_HEADERS: Final = {**_ANNOTATED, "PG_JSONB": "PG_JSONB"}
_UNANNOTATED: Final = "TYPE_ANNOTATION_CODE_UNSPECIFIED"
_SEQUENCE: Final = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)
_EMPTY: Final = "{}"
_MOST_HEADERS: Final = 1_000
"""Headers that are remembered. Where updates name only what changed, each set of columns has one of its own."""
_NULL: Final = "null"

_json: Final = msgspec.json.Encoder().encode
_keys: Final = msgspec.json.Decoder(dict[str, object])
_type: Final = msgspec.json.Decoder(dict[str, object])


def spanner_sequence(commit_micros: int, record_sequence: str, mod: int) -> ChangeSequenceNumber:
    """Order changes of one row: commit, then record in transaction, then mod in record.

    The record sequence is read as hexadecimal whatever it is: that keeps the order of decimal and hexadecimal text.
    MisconfiguredError for any other text: without its order a change can neither be published nor left out.
    """
    if _SEQUENCE.fullmatch(record_sequence) is None:
        raise MisconfiguredError(
            f"a record of commit timestamp {format_timestamp(Nanoseconds(commit_micros * 1_000))} has the "
            f"record_sequence {record_sequence!r}, which is not 1 to 16 hexadecimal digits: this version cannot order "
            "its changes. Nothing is lost: start a version of the reader that knows this form before the change "
            "stream's retention is over"
        )
    return four_sections(commit_micros, int(record_sequence, 16), mod)


def is_whole(record: DataChangeRecord) -> bool:
    """Return whether a record's changes say all there is to say of their rows.

    Only an update may not, and only where the stream captured what changed and no more: an insert names all columns,
    and a delete needs none.
    """
    return record.mod_type != "UPDATE" or record.value_capture_type in WHOLE_ROW


def as_whole(value_capture_type: str) -> str:
    """Return what changes of a value capture type carry once updates are completed."""
    return _AS_WHOLE.get(value_capture_type, value_capture_type)


def header_type(text: str) -> str:
    """Return what a header calls a type: as `googlesql_type`, but for ``PG_JSONB``, whose numbers JSON does not hold.

    A table's remembered shape goes on calling that JSON: otherwise each such column would seem to have another type.
    """
    return _type_name(_type.decode(text), _IN_HEADERS)


def googlesql_type(text: str) -> str:
    """Return the GoogleSQL name of a type that Spanner describes as JSON, such as ``ARRAY<INT64>``.

    A type that only the PostgreSQL dialect has is called by its annotation: ``PG_NUMERIC``.
    What describes no type we know of is passed on by its code: only the consumer can say what it takes.
    """
    return _type_name(_type.decode(text), _ANNOTATED)


def _type_name(description: Mapping[str, object], annotated: Mapping[str, str]) -> str:
    code = str(description.get("code", "TYPE_CODE_UNSPECIFIED"))
    element = description.get("array_element_type")
    if code == "ARRAY" and isinstance(element, dict):
        return f"ARRAY<{_type_name(element, annotated)}>"
    annotation = str(description.get("type_annotation") or _UNANNOTATED)
    if annotation != _UNANNOTATED:
        return annotated.get(annotation, annotation)
    return _ALIASES.get(code, code)


class ChangeMaker:
    """Makes change records of one stream. Headers are cached by what they say, for records repeat them endlessly."""

    def __init__(
        self,
        source: str,
        buckets: int,
        primary_keys: Mapping[str, Sequence[str]],
        buckets_of: Callable[[str], int | None] = lambda _table: None,
    ) -> None:
        """Take how many ordering keys a table has, unless ``buckets_of`` it says another number."""
        self._source = source
        self._default_buckets = buckets
        self._options = buckets_of
        self._buckets: dict[str, int] = {}
        self._primary_keys = dict(primary_keys)
        self._headers: dict[tuple[str, tuple[SpannerColumnType, ...], str], Header] = {}

    def knows(self, table: str) -> bool:
        """Tell whether the order of a table's key columns is known from the schema."""
        return table in self._primary_keys

    def learn(self, primary_keys: Mapping[str, Sequence[str]], *, unless_known: bool = False) -> None:
        """Take the order of key columns from the schema as it is now."""
        known = self._primary_keys
        learned = {**primary_keys, **known} if unless_known else {**known, **primary_keys}
        if learned != self._primary_keys:
            self._primary_keys = learned
            self._headers.clear()

    def header(
        self, table: str, column_types: tuple[SpannerColumnType, ...], value_capture_type: str, *, whole: bool = True
    ) -> Header:
        """Return the header of a table's column list; of whole rows, unless they are what an update has changed."""
        if whole:
            value_capture_type = as_whole(value_capture_type)
        content = (table, column_types, value_capture_type)
        header = self._headers.get(content)
        if header is None:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            # Ordinals order the columns and nothing more: they shift when a column is dropped.
            columns = sorted(column_types, key=lambda column: column.ordinal_position)
            keys = [column.name for column in columns if column.is_primary_key]
            in_schema = self._primary_keys.get(table, ())
            header = self._headers[content] = Header(
                source=self._source,
                table=table,
                primary_key=tuple(in_schema) if set(in_schema) == set(keys) else tuple(keys),
                columns=tuple(Column(column.name, header_type(column.type)) for column in columns),
                value_capture_type=value_capture_type,
            )
        return header

    def changes(self, record: DataChangeRecord) -> tuple[Header, list[tuple[str, Change]]]:
        """Return the record's header and its change records, each with its ordering key.

        What holds only what changed says so by its value capture type: nobody may apply it before it is completed.
        """
        header = self.header(record.table, record.column_types, record.value_capture_type, whole=is_whole(record))
        key_types = header.key_types()
        op = _OPS[record.mod_type]
        commit = format_timestamp(record.commit_timestamp)
        micros = microseconds(record.commit_timestamp)
        about = _about(record)
        # A key alone has no values; of any other row, missing values are for the consumer to set aside, not to blank.
        without_values = _EMPTY if all(column.is_primary_key for column in record.column_types) else _NULL
        changes = []
        for index, mod in enumerate(record.mods):
            change = Change(
                op=op,
                mod_type=record.mod_type,
                sequence=str(spanner_sequence(micros, record.record_sequence, index)),
                commit_timestamp=commit,
                place=f'{{"mod_index":{index},{about}',
                key=mod.keys,
                row=None if op == "DELETE" else mod.new_values or without_values,
                old=mod.old_values if mod.old_values and mod.old_values != _EMPTY else None,
            )
            changes.append((self._ordering_key(record.table, key_types, mod), change))
        return header, changes

    def _ordering_key(self, table: str, key_types: Sequence[tuple[str, str]], mod: Mod) -> str:
        try:
            canonical = canonical_key(table, key_types, _keys.decode(mod.keys))
        except (PoisonRecordError, msgspec.MsgspecError):
            # A key that contradicts its type. The consumer sets such a change aside, with its bytes; here it only
            # needs some bucket, and no correctness rests on which.
            canonical = table.encode() + b"\0" + mod.keys.encode()
        return ordering_key(table, bucket_of(canonical, self.buckets_of(table)))

    def buckets_of(self, table: str) -> int:
        """Return how many ordering keys a table has."""
        buckets = self._buckets.get(table)
        if buckets is None:
            buckets = self._buckets[table] = self._options(table) or self._default_buckets
        return buckets


def _about(record: DataChangeRecord) -> str:
    """Return what all changes of a record say of their place, as the rest of a JSON object."""
    fields = {
        "mod_count": len(record.mods),
        "record_sequence": record.record_sequence,
        "server_transaction_id": record.server_transaction_id,
        "is_last_record_in_transaction_in_partition": record.is_last_record_in_transaction_in_partition,
        "number_of_records_in_transaction": record.number_of_records_in_transaction,
        "number_of_partitions_in_transaction": record.number_of_partitions_in_transaction,
        "transaction_tag": record.transaction_tag,
        "is_system_transaction": record.is_system_transaction,
    }
    return _json(fields).decode()[1:]
