"""A data change record as change records: who the row is, which change of it is newer, and its values untouched."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from services.spanner_reader.core.stream.records import DataChangeRecord, Mod, SpannerColumnType
from shared.contracts.change_batch import Change, Column, Header, Op
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.row_id import bucket_of, canonical_key, ordering_key
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds

WHOLE_ROW: Final = ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
"""The value capture types with which every upsert carries its whole row."""
_AS_WHOLE: Final = {"OLD_AND_NEW_VALUES": "NEW_ROW_AND_OLD_VALUES", "NEW_VALUES": "NEW_ROW"}

_OPS: Final[Mapping[str, Op]] = {
    "INSERT": "UPSERT",  # a REPLACE is an INSERT of a row that was there: no consumer tells insert and update apart
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


def _first_sections(commit_micros: int, record_sequence: str) -> str:
    """Return the sections of a change sequence number that all changes of a record have, as text.

    It orders changes of one row: commit, then record in transaction, then mod in record. The record sequence is read as
    hexadecimal whatever it is: that keeps the order of decimal and hexadecimal text. MisconfiguredError for any other
    text: without its order a change can neither be published nor left out.
    """
    if _SEQUENCE.fullmatch(record_sequence) is None:
        raise MisconfiguredError(
            "record-sequence-unknown",
            f"a record of commit timestamp {format_timestamp(Nanoseconds(commit_micros * 1_000))} has the "
            f"record_sequence {record_sequence!r}, which is not 1 to 16 hexadecimal digits: this version cannot order "
            "its changes. Nothing is lost: start a version of the reader that knows this form before the change "
            "stream's retention is over",
        )
    return f"{commit_micros:016X}/{int(record_sequence, 16):016X}/"


@lru_cache(maxsize=1_000)
def _last_sections(mod: int) -> str:
    return f"{mod:016X}/{0:016X}"


class _Form(msgspec.Struct, frozen=True):
    """What records have in common: their column types, and what follows from these."""

    column_types: tuple[SpannerColumnType, ...]
    header: Header
    key_types: tuple[tuple[str, str], ...]
    op: Op
    without_values: str
    ordering_keys: Sequence[str]
    """By bucket."""


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
        self._ordering_keys: dict[str, Sequence[str]] = {}
        """Of each table, by bucket: there may be ten thousand."""
        self._primary_keys = dict(primary_keys)
        self._headers: dict[tuple[str, tuple[SpannerColumnType, ...], str], Header] = {}
        self._forms: dict[tuple[int, str, str, str], _Form] = {}

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
            self._forms.clear()

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

        What holds only what changed says so by its value capture type: no consumer may apply it before it is completed.
        """
        form = self._form(record)
        commit = format_timestamp(record.commit_timestamp)
        of_record = _first_sections(microseconds(record.commit_timestamp), record.record_sequence)
        about = _about(record)
        op, mod_type, without_values = form.op, record.mod_type, form.without_values
        changes = []
        for index, mod in enumerate(record.mods):
            old = mod.old_values
            change = Change(
                op,
                mod_type,
                of_record + _last_sections(index),
                commit,
                f'{{"mod_index":{index},{about}',
                mod.keys,
                None if op == "DELETE" else mod.new_values or without_values,
                old if old and old != _EMPTY else None,
            )
            changes.append((self._ordering_key(form, mod), change))
        return form.header, changes

    def _form(self, record: DataChangeRecord) -> "_Form":
        """Return what all records have in common that are of one table and kind, and of the same column types.

        These are the same object as a rule: who decodes records has made them once.
        """
        content = (id(record.column_types), record.table, record.mod_type, record.value_capture_type)
        form = self._forms.get(content)
        if form is None or form.column_types is not record.column_types:
            if len(self._forms) >= _MOST_HEADERS:
                self._forms.clear()
            header = self.header(record.table, record.column_types, record.value_capture_type, whole=is_whole(record))
            # A key alone has no values; of any other row, missing values are for the consumer to dead-letter, not
            # to blank.
            is_key_alone = all(column.is_primary_key for column in record.column_types)
            form = self._forms[content] = _Form(
                record.column_types,
                header,
                tuple(header.key_types()),
                _OPS[record.mod_type],
                _EMPTY if is_key_alone else _NULL,
                self._ordering_keys_of(record.table),
            )
        return form

    def _ordering_key(self, form: "_Form", mod: Mod) -> str:
        table = form.header.table
        try:
            canonical = canonical_key(table, form.key_types, _keys.decode(mod.keys))
        except (PoisonRecordError, msgspec.MsgspecError):
            # A key that contradicts its type. The consumer sets such a change aside, with its bytes; here it only
            # needs some bucket, and no correctness rests on which.
            canonical = table.encode() + b"\0" + mod.keys.encode()
        return form.ordering_keys[bucket_of(canonical, len(form.ordering_keys))]

    def buckets_of(self, table: str) -> int:
        """Return how many ordering keys a table has."""
        return len(self._ordering_keys_of(table))

    def _ordering_keys_of(self, table: str) -> Sequence[str]:
        keys = self._ordering_keys.get(table)
        if keys is None:
            buckets = self._options(table) or self._default_buckets
            keys = self._ordering_keys[table] = [ordering_key(table, bucket) for bucket in range(buckets)]
        return keys


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
