"""A row as it was read back, as a change record of the mirror: its families as JSON, or declared columns of cells.

The mirror's columns: ``row_key``; the declared columns in the file's order, the time of a cell behind its cell; then
one JSON column for each other watched family, an object of its qualifiers. What is a column of its own is not in its
family's JSON too. A row without a cell in any watched family is not there.

A member of a family's JSON is the newest value of its column; with ``cell_timestamps`` it is
``{"value": .., "timestamp_micros": ..}``, and with more ``versions`` than one a list of these, newest first. Times are
whole microseconds there, for a cell's timestamp may be any number.
"""

import re
import zlib
from binascii import b2a_base64
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from services.bigtable_reader.core.changes.cell_values import CELL_VALUES
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.refused import (
    CELL_BYTES,
    LARGEST,
    NO_ROW,
    Made,
    RefusedChange,
    key_text,
    refused,
)
from services.bigtable_reader.core.snapshot.snapshot import SnapshotPlace
from services.bigtable_reader.core.stream.records import DataChange
from shared.contracts.bigtable_options import ROW_KEY, BigtableOptions, CellColumn, QualifierEncoding, ValueEncoding
from shared.contracts.change_batch import Change, Column, Header
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import bucket_of, ordering_key
from shared.contracts.timestamps import format_microseconds


class CellVersion(msgspec.Struct, frozen=True, gc=False):
    """One version of a cell; microseconds since 1970-01-01 in UTC."""

    timestamp: int
    value: bytes


RowCells = dict[str, dict[bytes, list[CellVersion]]]
"""Family, qualifier, and the versions that were asked for, newest first."""


class TooLargeRow(msgspec.Struct, frozen=True):
    """A row that was not read to its end: its image has at least so many bytes, more than any message holds."""

    bytes: int


class PlainRow(msgspec.Struct, frozen=True, gc=False):
    """A row whose image is its key and its families alone: no declared columns, each cell's newest value, no times.

    ``key``: its row key, ``families``: the text of each that it has a cell in; as they are in the image.
    """

    key: str
    families: dict[str, str]


Row = RowCells | PlainRow | TooLargeRow

_NO_MORE_SECTIONS: Final = "/0000000000000000" * 3
"""Of `four_sections`: a version is the first, the rest is nothing."""
_TOO_LARGE: Final = (
    "the row takes {} bytes or more, no message takes as many: make it smaller, or leave its large columns out with "
    "excluded_columns in the tables file"
)
SNAPSHOT: Final = "SNAPSHOT"
"""What a row of a snapshot has in the place of a change's kind."""
T = TypeVar("T", bound=Made | RefusedChange)
_json: Final = msgspec.json.Encoder().encode
_FAMILY: Final = "column family "
_SHORT: Final = 100  # bytes of a qualifier that is worth remembering
_REMEMBERED: Final = 10_000
_END_OF_MEMBER: Final = b'\\",'
"""Of one that is a text, within a text."""
_document: Final = msgspec.json.Decoder(msgspec.Raw).decode


class ImageMaker:
    """Makes the images of one table. A family that it meets for the first time is one more column from then on."""

    def __init__(
        self,
        *,
        source: str,
        table: str,
        options: BigtableOptions,
        families: Collection[str],
        buckets: int,
        watched: Watched,
    ) -> None:
        """Take the table's families as they are now. MisconfiguredError where two columns would have one name."""
        self._source = source
        self._table = table
        self._options = options
        self._buckets = buckets
        self._watched = watched
        self._declared = options.cell_columns
        self._ordering_keys = [ordering_key(table, bucket) for bucket in range(buckets)]
        self._families: dict[str, _Family] = {}
        self._known: frozenset[str] = frozenset()
        self.header = self._header({})
        self._headers = self.header, msgspec.structs.replace(self.header, origin="snapshot")
        """The last header of rows of a snapshot, and what it was made of."""
        self.learn(families)

    def learn(self, families: Collection[str]) -> bool:
        """Take families, those that are known too; return whether that changed the columns.

        MisconfiguredError, and nothing changed, where one would have the column of another: no name but its own would
        be the same whichever families there are when a reader starts.
        """
        new = [name for name in sorted(families) if name not in self._families and self._watched.as_json(name)]
        if not new:
            self._known |= frozenset(families)
            return False
        found = dict(sorted((self._families | {name: self._family(name) for name in new}).items()))
        self.header = self._header(found)
        self._families = found
        self._known |= frozenset(families)
        return True

    def image(self, row_key: bytes, cells: Row | None, trigger: DataChange, version: int) -> Made | RefusedChange:
        """Return a row as it is now, or its absence (None), under the version of the record that asked for it."""
        sequence = f"{version:016X}{_NO_MORE_SECTIONS}"
        return self._image(row_key, cells, trigger.kind, sequence, format_microseconds(trigger.commit), _place(trigger))

    def row(self, row_key: bytes, cells: Row | None, at: SnapshotPlace) -> Made | RefusedChange:
        """Return a row as a snapshot found it, or its absence (None); it goes under a header of its own origin."""
        return self._of_snapshot(
            self._image(row_key, cells, SNAPSHOT, at.sequence, format_microseconds(at.read_at), "{}")
        )

    def unreadable_row(self, row_key: bytes, at: SnapshotPlace, why: str) -> RefusedChange:
        """Return the dead letter of a row that a snapshot found, and that is too large to be read."""
        return self._too_large(self.row(row_key, None, at), row_key, why)

    def _image(
        self, row_key: bytes, cells: Row | None, kind: str, sequence: str, commit: str, place: str
    ) -> Made | RefusedChange:
        if isinstance(cells, PlainRow):
            return self._upsert(cells.key, self._members(cells.families), kind, sequence, commit, place)
        if isinstance(cells, TooLargeRow):
            absent = self._image(row_key, None, kind, sequence, commit, place)
            return self._too_large(absent, row_key, _TOO_LARGE.format(cells.bytes), cells.bytes)
        is_watched = self._watched.family
        watched = {name: family for name, family in cells.items() if family and is_watched(name)} if cells else {}
        if not watched.keys() <= self._known:
            self.learn(watched.keys())
        is_text = self._options.row_key == "STRING"
        try:
            key = _json(key_text(row_key)).decode() if is_text else _base64(row_key)
        except PoisonRecordError as error:
            return self._refused("null", _base64(row_key), row_key, cells, sequence, commit, place, kind, error)
        if not watched:
            change = Change("DELETE", kind, sequence, commit, place, f'{{"{ROW_KEY}":{key}}}', None)
            return Made(self.header, self._ordering_key(key), change)
        try:
            row = self._row(watched)
        except PoisonRecordError as error:
            return self._refused(key, key, row_key, cells, sequence, commit, place, kind, error)
        return self._upsert(key, row, kind, sequence, commit, place)

    def _upsert(self, key: str, row: str, kind: str, sequence: str, commit: str, place: str) -> Made:
        change = Change("UPSERT", kind, sequence, commit, place, f'{{"{ROW_KEY}":{key}}}', row)
        return Made(self.header, self._ordering_key(key), change)

    @property
    def has_plain_rows(self) -> bool:
        """Return whether an image may be made of a `PlainRow`."""
        return self._watched.versions_kept is None and self._options.versions == 1 and not self._options.cell_timestamps

    def key(self, row_key: bytes) -> str | None:
        """Return a row key as it is in an image; None where it cannot be."""
        if self._options.row_key != "STRING":
            return _base64(row_key)
        try:
            return _json(row_key.decode()).decode()
        except UnicodeDecodeError:
            return None

    def plain_member(self, name: str, qualifier: bytes) -> bytes | None:
        """Return what a column's member of its family's text begins with, if its value as base64 is all that follows.

        None too of a family that is not known yet.
        """
        family = self._families.get(name)
        if family is None or family.values != "base64":
            return None
        try:
            return family.begin(qualifier)
        except PoisonRecordError:
            return None

    def unreadable(self, row_key: bytes, trigger: DataChange, version: int, why: str) -> RefusedChange:
        """Return the dead letter of a row that is too large to be read: its key and its place, and nothing of it."""
        return self._too_large(self.image(row_key, None, trigger, version), row_key, why)

    @staticmethod
    def _too_large(absent: Made | RefusedChange, row_key: bytes, why: str, size: int = 0) -> RefusedChange:
        if isinstance(absent, RefusedChange):
            return absent
        change = msgspec.structs.replace(absent.change, op="UPSERT", row=NO_ROW)
        error = PoisonRecordError(Reason.TOO_LARGE, why)
        return refused(absent.header, absent.ordering_key, change, {}, error, row_key=row_key, size=size)

    def _of_snapshot(self, made: T) -> T:
        """Return what is made of a row under the header of snapshots, and with an ordering key that the stream has not.

        Its changes would wait behind the snapshot's.
        """
        if made.header is not self._headers[0]:
            self._headers = made.header, msgspec.structs.replace(made.header, origin="snapshot")
        table, _, bucket = made.ordering_key.rpartition("/")
        return msgspec.structs.replace(made, header=self._headers[1], ordering_key=f"{table}/snapshot-{bucket}")

    def _row(self, cells: Mapping[str, Mapping[bytes, Sequence[CellVersion]]]) -> str:
        members = []
        for column in self._declared:
            versions = cells.get(column.family, {}).get(column.qualifier)
            members.append(f'"{column.name}":{"null" if not versions else _cell_value(column, versions[0])}')
            if column.timestamp is not None:
                members.append(f'"{column.timestamp}":{"null" if not versions else _cell_time(column, versions[0])}')
        texts = {name: family.text(cells[name]) for name, family in self._families.items() if name in cells}
        return self._members(texts, *members)

    def _members(self, texts: Mapping[str, str], *declared: str) -> str:
        """Return the row of some families, each as text."""
        families = [f'"{family.column}":{texts.get(name, "null")}' for name, family in self._families.items()]
        return f"{{{','.join((*declared, *families))}}}"

    def _family(self, name: str) -> "_Family":
        options = self._options
        own = options.family_columns.get(name)
        apart = (*((column.family, column.qualifier) for column in self._declared), *options.excluded_columns)
        return _Family(
            name=name,
            column=own.name if own is not None else family_column(name, ROW_KEY),
            values=(own.values if own is not None else None) or options.values,
            qualifiers=(own.qualifiers if own is not None else None) or options.qualifiers,
            timestamps=options.cell_timestamps or options.versions > 1,
            versions=options.versions,
            apart=frozenset(qualifier for family, qualifier in apart if family == name),
        )

    def _header(self, families: Mapping[str, "_Family"]) -> Header:
        columns = [(Column(ROW_KEY, self._options.row_key), "the row key")]
        for declared in self._declared:
            columns.append((Column(declared.name, declared.type), f"the column {declared.name} of the tables file"))
            if declared.timestamp is not None:
                columns.append((Column(declared.timestamp, "TIMESTAMP"), f"the time of {declared.name}"))
        columns += [(Column(one.column, "JSON"), f"{_FAMILY}{one.name}") for one in families.values()]
        owners: dict[str, str] = {}
        for column, what in columns:
            other = owners.setdefault(column.name.lower(), what)
            if other != what:
                family = what.removeprefix(_FAMILY)
                rename = f'[tables."{self._table}".columns.{family}_2] with family = "{family}"'
                fix = f'{rename}, or leave it out: excluded_families = ["{family}"]'
                raise MisconfiguredError(
                    "columns-differ-in-case",
                    f"table {self._table}: {other} and {what} would be one column, {column.name}: BigQuery does not "
                    "tell upper from lower case\nin the tables file give one of them another name"
                    f"{', say ' + fix if family != what else ''}",
                )
        return Header(
            source=self._source,
            table=self._table,
            primary_key=(ROW_KEY,),
            columns=tuple(column for column, _what in columns),
            content="images",
        )

    def _ordering_key(self, key: str) -> str:
        return self._ordering_keys[bucket_of(f"{self._table}\0[{key}]".encode(), self._buckets)]

    def _refused(
        self,
        key: str,
        bucket_key: str,
        row_key: bytes,
        cells: RowCells | None,
        sequence: str,
        commit: str,
        place: str,
        kind: str,
        error: PoisonRecordError,
    ) -> RefusedChange:
        of_cells = cells or {}
        size = sum(
            len(qualifier) + len(version.value) + CELL_BYTES
            for columns in of_cells.values()
            for qualifier, versions in columns.items()
            for version in versions
        )
        content = {
            family: [
                {"qualifier": qualifier, "timestamp_micros": version.timestamp, "value": version.value}
                for qualifier, versions in columns.items()
                for version in versions
            ]
            for family, columns in (of_cells.items() if size <= LARGEST else ())
        }
        change = Change("UPSERT", kind, sequence, commit, place, f'{{"{ROW_KEY}":{key}}}', NO_ROW)
        ordering = self._ordering_key(bucket_key)
        return refused(self.header, ordering, change, {"cells": content}, error, row_key=row_key, size=size)


class _Family(msgspec.Struct, frozen=True):
    """How a family becomes the text of its JSON column."""

    name: str
    column: str
    values: ValueEncoding
    qualifiers: QualifierEncoding
    timestamps: bool
    versions: int
    apart: frozenset[bytes]
    """Qualifiers of what is not among its members."""
    begins: dict[bytes, bytes] = {}
    """Of members, by their qualifiers."""

    def text(self, cells: Mapping[bytes, Sequence[CellVersion]]) -> str:
        """Return the family as the wire has JSON: a text in quotes; `null` where nothing of it is left."""
        if self.values == "base64" and not self.timestamps:
            return self._plain_text(cells)
        apart = self.apart
        members = [
            f"{self._qualifier(qualifier)}:{self._member(qualifier, versions)}"
            for qualifier in sorted(cells)
            if (versions := cells[qualifier]) and qualifier not in apart
        ]
        return _json(f"{{{','.join(members)}}}").decode() if members else "null"

    def _plain_text(self, cells: Mapping[bytes, Sequence[CellVersion]]) -> str:
        """Return the family whose members are base64: of these the qualifiers alone have to be escaped."""
        apart, begins = self.apart, self.begins
        parts = []
        for qualifier in sorted(cells):
            if (versions := cells[qualifier]) and qualifier not in apart:
                parts.append(begins.get(qualifier) or self.begin(qualifier))
                parts.append(b2a_base64(versions[0].value, newline=False))
        return text_of_members(parts) if parts else "null"

    def begin(self, qualifier: bytes) -> bytes:
        """Return what is between the value before and a member's own, as it is in a text in quotes."""
        begin = _END_OF_MEMBER + _json(f"{self._qualifier(qualifier)}:").removeprefix(b'"').removesuffix(b'"') + b'\\"'
        if len(self.begins) < _REMEMBERED and len(qualifier) <= _SHORT:
            self.begins[qualifier] = begin
        return begin

    def _qualifier(self, qualifier: bytes) -> str:
        if self.qualifiers == "base64":
            return _base64(qualifier)
        try:
            return _short_text(qualifier) if len(qualifier) <= _SHORT else _json(qualifier.decode()).decode()
        except UnicodeDecodeError:
            raise PoisonRecordError(
                Reason.VALUE_DOES_NOT_FIT,
                f"column {self.column} of type JSON: a qualifier of family {self.name} is not UTF-8; "
                'qualifiers = "base64" takes every one',
            ) from None

    def _member(self, qualifier: bytes, versions: Sequence[CellVersion]) -> str:
        if not self.timestamps:
            return self._value(qualifier, versions[0].value)
        members = [
            f'{{"value":{self._value(qualifier, version.value)},"timestamp_micros":{version.timestamp}}}'
            for version in versions[: self.versions]
        ]
        return f"[{','.join(members)}]" if self.versions > 1 else members[0]

    def _value(self, qualifier: bytes, value: bytes) -> str:
        if self.values == "base64":
            return _base64(value)
        try:
            if self.values == "json":
                _document(value)
                return value.decode()
            return _json(value.decode()).decode()
        except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
            shown = qualifier.decode("utf-8", "backslashreplace")
            kind = "a JSON text" if self.values == "json" else "UTF-8"
            raise PoisonRecordError(
                Reason.VALUE_DOES_NOT_FIT,
                f"column {self.column} of type JSON: the value of {self.name}:{shown} is not {kind}; "
                'values = "base64" takes every one',
            ) from None


def text_of_members(parts: Sequence[bytes]) -> str:
    """Return the text of a family: what each member begins with, and behind it its value as base64."""
    return f'"{{{b"".join(parts)[len(_END_OF_MEMBER) :].decode()}\\"}}"'


def _cell_value(column: CellColumn, version: CellVersion) -> str:
    try:
        return CELL_VALUES[column.type, column.encoding](version.value)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        what = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise PoisonRecordError(
            Reason.VALUE_DOES_NOT_FIT,
            f"column {column.name} of type {column.type}, encoded as {column.encoding}: {what} "
            f"({len(version.value)} bytes)",
        ) from None


def _cell_time(column: CellColumn, version: CellVersion) -> str:
    try:
        return f'"{format_microseconds(version.timestamp)}"'
    except (ValueError, OverflowError):
        raise PoisonRecordError(
            Reason.VALUE_DOES_NOT_FIT,
            f"column {column.timestamp} of type TIMESTAMP: {version.timestamp} microseconds are outside the years "
            "0001 to 9999",
        ) from None


def _place(trigger: DataChange) -> str:
    return (
        f'{{"entry_count":{trigger.entry_count},"source_cluster":{_text(trigger.source_cluster)},'
        f'"tiebreaker":{trigger.tiebreaker},"low_watermark":"{format_microseconds(trigger.low_watermark)}"}}'
    )


@lru_cache(maxsize=1_000)
def _text(text: str) -> str:
    return _json(text).decode()


@lru_cache(maxsize=10_000)
def _short_text(qualifier: bytes) -> str:
    return _json(qualifier.decode()).decode()


def _base64(value: bytes) -> str:
    return f'"{b2a_base64(value, newline=False).decode()}"'


_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_RESERVED: Final = (
    "_TABLE_",
    "_FILE_",
    "_PARTITION",
    "_ROW_TIMESTAMP",
    "__ROOT__",
    "_COLIDENTIFIER",
    "_CHANGE_",
    "_MILLRACE_",
)


def family_column(family: str, *taken: str) -> str:
    """Return a column name for a family: its own where BigQuery takes that, and nothing of ours is called so.

    Any other is ``family_``, its letters and digits, and a checksum, so that no two families share one; and it never
    depends on which other families there are.
    """
    upper = family.upper()
    if _PLAIN.fullmatch(family) and not upper.startswith(_RESERVED) and upper not in {name.upper() for name in taken}:
        return family
    letters = re.sub(r"[^A-Za-z0-9_]", "_", family)
    return f"family_{letters}_{zlib.crc32(family.encode()):08x}"
