"""A data change as lines of a change log: one for each entry, under the column names of Google's template.

A line's id is made of what the record says, so that a record that is read twice makes the same lines; its sequence
orders the lines of a row across clusters by Bigtable's own rule: commit timestamp, tiebreaker, and place in the call.
"""

import hashlib
from binascii import b2a_base64
from functools import lru_cache
from typing import Final, assert_never

import msgspec

from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.refused import CELL_BYTES, NO_ROW, RefusedChange, key_text, refused
from services.bigtable_reader.core.stream.records import (
    Aggregated,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    SetCell,
    UnknownEntry,
)
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.change_batch import Change, Column, Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import bucket_of, ordering_key
from shared.contracts.timestamps import format_microseconds

_json: Final = msgspec.json.Encoder().encode
_content: Final = msgspec.msgpack.Encoder().encode
_TIEBREAKER_OFFSET: Final = 1 << 31
_NO_REVISION: Final = "/0000000000000000"
_REMEMBERED: Final = 10_000
_SHORT: Final = 100  # bytes of a qualifier that is worth remembering


class _Head(msgspec.Struct, frozen=True):
    """What all lines of a record begin with, each text up to where the entry's index comes."""

    id: str
    sequence: str
    commit: str
    place: str
    """What follows the index."""


class EntryMaker:
    """Makes the lines of one table."""

    def __init__(
        self, *, source: str, table: str, instance: str, options: BigtableOptions, buckets: int, watched: Watched
    ) -> None:
        """Take what the lines say of their source: ``instance`` is its id."""
        self._options = options
        self._buckets = buckets
        self._watched = watched
        self._table = table
        self._about_source = f',"source_instance":{_text(instance)},"source_table":{_text(table)}'
        self._columns: dict[tuple[str, bytes], str] = {}
        self._keys_are_text = options.row_key == "STRING"
        self._times_are_numbers = options.timestamps == "INT64"
        self._strips_values = options.strip_values
        self._latest_time = 0, self._time("timestamp", 0)
        """The timestamp of the cell before: those of one change mostly have the same."""
        time = options.timestamps
        self.header = Header(
            source=source,
            table=table,
            primary_key=("id",),
            columns=(
                Column("id", "STRING"),
                Column("row_key", options.row_key),
                Column("mod_type", "STRING"),
                Column("commit_timestamp", "TIMESTAMP"),
                Column("column_family", "STRING"),
                Column("column", "STRING" if options.qualifiers == "text" else "BYTES"),
                Column("timestamp", time),
                Column("value", "BYTES"),
                Column("timestamp_from", time),
                Column("timestamp_to", time),
                Column("is_gc", "BOOL"),
                Column("source_instance", "STRING"),
                Column("source_cluster", "STRING"),
                Column("source_table", "STRING"),
                Column("tiebreaker", "INT64"),
                Column("entry_index", "INT64"),
                Column("entry_count", "INT64"),
            ),
            content="entries",
        )

    @property
    def has_values(self) -> bool:
        """Return whether values are part of the lines."""
        return not self._options.strip_values

    def changes(self, record: DataChange) -> tuple[list[tuple[str, Change]], list[RefusedChange]]:
        """Return a record's lines, each with its ordering key, and what cannot be one of them."""
        wanted = self._watched.entries(record)
        if not wanted:
            return [], []
        commit = format_microseconds(record.commit)
        count, tiebreaker, cluster = len(record.entries), record.tiebreaker, _text(record.source_cluster)
        head = _Head(
            id=f'{{"id":"{_record_id(record)}-',
            sequence=f"{record.commit:016X}/{tiebreaker + _TIEBREAKER_OFFSET:016X}/",
            commit=commit,
            place=f',"entry_count":{count},"source_cluster":{cluster},"tiebreaker":{tiebreaker}'
            f',"low_watermark":"{format_microseconds(record.low_watermark)}"}}',
        )
        try:
            row_key = self._row_key(record.row_key)
        except PoisonRecordError as error:
            key = self._ordering_key(_bytes(record.row_key))
            return [], [self._refused(record.row_key, entry, index, head, key, error) for index, entry in wanted]
        key = self._ordering_key(row_key)
        is_gc = "true" if record.kind == "GARBAGE_COLLECTION" else "false"
        rest = (
            f'","row_key":{row_key},"entry_count":"{count}","commit_timestamp":"{commit}","is_gc":{is_gc}'
            f',"tiebreaker":"{tiebreaker}","source_cluster":{cluster}{self._about_source}}}'
        )
        begin_id, begin_sequence, end_place = head.id, head.sequence, head.place
        made: list[tuple[str, Change]] = []
        refused: list[RefusedChange] = []
        for index, entry in wanted:
            try:
                kind, fields = ("SET_CELL", self._cell(entry)) if type(entry) is SetCell else self._fields(entry)
            except PoisonRecordError as error:
                refused.append(self._refused(record.row_key, entry, index, head, key, error))
                continue
            of_sequence, of_place, of_id = _texts_of(index)
            change = Change(
                "UPSERT",
                kind,
                begin_sequence + of_sequence,
                commit,
                of_place + end_place,
                begin_id + of_id,
                f'{{"mod_type":"{kind}"{fields},"entry_index":"{index}{rest}',
            )
            made.append((key, change))
        return made, refused

    def _refused(
        self, row_key: bytes, entry: Entry, index: int, head: _Head, key: str, error: PoisonRecordError
    ) -> RefusedChange:
        of_sequence, of_place, of_id = _texts_of(index)
        change = Change(
            "UPSERT",
            _kind(entry),
            head.sequence + of_sequence,
            head.commit,
            of_place + head.place,
            head.id + of_id,
            NO_ROW,
        )
        content = {"entry": msgspec.structs.asdict(entry)}
        size = len(getattr(entry, "qualifier", b"")) + len(getattr(entry, "value", b"")) + CELL_BYTES
        return refused(self.header, key, change, content, error, row_key=row_key, size=size)

    def _ordering_key(self, row_key: str) -> str:
        """Return that of the row's image, if there is one: what is of one row comes in order, whichever it is."""
        return ordering_key(self._table, bucket_of(f"{self._table}\0[{row_key}]".encode(), self._buckets))

    def _row_key(self, row_key: bytes) -> str:
        return _json(key_text(row_key)).decode() if self._keys_are_text else _bytes(row_key)

    def _fields(self, entry: Entry) -> tuple[str, str]:
        """Return an entry's kind, and its own columns as members of a JSON object, each behind its comma."""
        match entry:
            case SetCell():
                return "SET_CELL", self._cell(entry)
            case DeleteCells():
                start = self._time("timestamp_from", entry.start) if entry.start else "null"
                end = self._time("timestamp_to", entry.end) if entry.end else "null"
                column = self._column(entry.family, entry.qualifier)
                return "DELETE_CELLS", f'{column},"timestamp_from":{start},"timestamp_to":{end}'
            case DeleteFamily():
                return "DELETE_FAMILY", f',"column_family":{_text(entry.family)}'
            case Aggregated():
                return entry.kind, self._cell(entry)
            case UnknownEntry():
                family = f',"column_family":{_text(entry.family)}' if entry.family else ""
                return entry.kind, f"{family}{self._value(entry.value)}"
        assert_never(entry)

    def _cell(self, entry: SetCell | Aggregated) -> str:
        column = self._columns.get((entry.family, entry.qualifier)) or self._column(entry.family, entry.qualifier)
        if entry.timestamp != self._latest_time[0]:
            self._latest_time = entry.timestamp, self._time("timestamp", entry.timestamp)
        time = self._latest_time[1]
        if self._strips_values:
            return f'{column},"timestamp":{time}'
        return f'{column},"timestamp":{time},"value":"{b2a_base64(entry.value, newline=False).decode()}"'

    def _value(self, value: bytes) -> str:
        return "" if self._options.strip_values else f',"value":{_bytes(value)}'

    def _column(self, family: str, qualifier: bytes) -> str:
        if self._options.qualifiers == "base64":
            column = _bytes(qualifier)
        else:
            try:
                column = _json(qualifier.decode()).decode()
            except UnicodeDecodeError:
                raise PoisonRecordError(
                    Reason.VALUE_DOES_NOT_FIT,
                    f'column "column" of type STRING: a qualifier of family {family} is not UTF-8; '
                    'qualifiers = "base64" takes every one, in a column of type BYTES',
                ) from None
        text = f',"column_family":{_text(family)},"column":{column}'
        if len(self._columns) < _REMEMBERED and len(qualifier) <= _SHORT:
            self._columns[family, qualifier] = text
        return text

    def _time(self, column: str, micros: int) -> str:
        if self._times_are_numbers:
            return f'"{micros}"'
        try:
            return f'"{format_microseconds(micros)}"'
        except (ValueError, OverflowError):
            raise PoisonRecordError(
                Reason.VALUE_DOES_NOT_FIT,
                f"column {column} of type TIMESTAMP: {micros} microseconds are outside the years 0001 to 9999; "
                'timestamps = "INT64" takes every number',
            ) from None


def _record_id(record: DataChange) -> str:
    """Name a record by all that it says; token and watermark are not its own, but the reading's."""
    content = (record.row_key, record.kind, record.source_cluster, record.commit, record.tiebreaker, record.entries)
    return hashlib.blake2b(_content(content), digest_size=16).hexdigest()


@lru_cache(maxsize=1_000)  # most changes have few entries
def _texts_of(index: int) -> tuple[str, str, str]:
    """Return what an entry's index is in its sequence, its place and its id."""
    return f"{index:016X}{_NO_REVISION}", f'{{"entry_index":{index}', f'{index:05d}"}}'


def _kind(entry: Entry) -> str:
    match entry:
        case SetCell():
            return "SET_CELL"
        case DeleteCells():
            return "DELETE_CELLS"
        case DeleteFamily():
            return "DELETE_FAMILY"
        case Aggregated() | UnknownEntry():
            return entry.kind
    assert_never(entry)


@lru_cache(maxsize=1_000)
def _text(text: str) -> str:
    return _json(text).decode()


def _bytes(value: bytes) -> str:
    return f'"{b2a_base64(value, newline=False).decode()}"'
