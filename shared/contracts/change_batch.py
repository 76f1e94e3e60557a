"""The wire: one Pub/Sub message is one change batch, a JSON document with a header and 0..N changes.

What Millrace makes stands in columns, what the source made stands as row objects, untouched, so a reader passes the
text of rows through without parsing it and a subscriber needs no more than a JSON parser. The full row image of an
upsert is ``keys`` and ``rows`` together: a row object holds the columns outside the primary key.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason

FORMAT: Final = 2
"""The newest wire format that this version reads. It writes each batch in the oldest that can say it.

Format 1 knows changes only: a consumer that reads no further would make mirrors of entries, and histories of images.
So what is no change says format 2, and a consumer that is older does not apply it.
"""

BUCKET: Final = "bucket"
"""Attribute of a message without an ordering key: the ordering key that it would have. Messages of one row share it."""

OLD_VALUES_OMITTED: Final = "old_values_omitted"
"""Member of a change's place: the stream has its old values, and no message can hold them together with the rest."""

RECONSTRUCTED: Final = "reconstructed"
"""Member of a change's place: the stream held only what changed, and its row as it was then can no longer be read.

So columns that the change did not name may hold what they held later.
"""

_CONTENT_FORMAT: Final = 2  # the first that says what a batch holds

Op = Literal["UPSERT", "DELETE"]
Origin = Literal["stream", "snapshot", "replay"]
SequenceText = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-F]{16}(/[0-9A-F]{16}){3}\Z")]
"""A change sequence number as Millrace writes it."""
Content = Literal["changes", "images", "entries"]
"""What the changes of a batch are.

- changes: every change of a row, each with the whole row as it then was. They make mirrors and histories.
- images: rows as they were when they were read again after a change; what came in between is skipped, and a reader that
  begins again gives them new versions. They make mirrors only.
- entries: lines of a change log, each a row of its own that never changes; the key tells one from another. They are
  appended as they are. Where they have a column ``row_key``, it says which row they are of; ``commit_timestamp``, when.
"""


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its name and its GoogleSQL type, such as ``INT64`` or ``ARRAY<STRING>``."""

    name: str
    type: str


class Header(msgspec.Struct, frozen=True):
    """What all changes of a batch have in common. Columns are in the table's order, key columns included."""

    source: str
    table: str
    primary_key: tuple[str, ...]
    columns: tuple[Column, ...]
    value_capture_type: str = ""
    origin: Origin = "stream"
    content: Content = "changes"
    format: Annotated[int, msgspec.Meta(ge=1)] = 1
    complete_since: SequenceText | msgspec.UnsetType = msgspec.UNSET
    """Says that a snapshot of the table is at its end: each row that the source had then is published with this
    sequence or a higher one. It stands in a batch without changes, and nowhere else; unset, it is not written at all.
    """
    read_since: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    """Beside ``complete_since``, where that is not a time: one before any of these rows was read, by the source's
    clock, in microseconds of Unix time. It is what may be compared with times. Unset, the sequence is a time.
    """
    published_until: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    """Says that every change of the source up to this time is published, in microseconds of Unix time: a heartbeat. It
    stands in a batch without changes, and nowhere else; unset, it is not written at all.
    """

    def __post_init__(self) -> None:
        if self.content != "changes" and self.format < _CONTENT_FORMAT:
            msgspec.structs.force_setattr(self, "format", _CONTENT_FORMAT)

    def key_types(self) -> Sequence[tuple[str, str]]:
        """Return name and GoogleSQL type of the key columns, in key order."""
        types = {column.name: column.type for column in self.columns}
        return [(name, types[name]) for name in self.primary_key]


class Change(msgspec.Struct, frozen=True, gc=False):
    """One change record on its way out. ``key``, ``row``, ``old`` and ``place`` are JSON texts, passed on untouched."""

    op: Op
    mod_type: str
    sequence: str
    commit_timestamp: str
    place: str
    key: str
    row: str | None
    old: str | None = None

    def __post_init__(self) -> None:
        if (self.row is None) != (self.op == "DELETE"):
            raise ValueError("an upsert has a row, a delete has none")

    def without_old_values(self) -> "Change":
        """Return the change without ``old``. Its place then says `OLD_VALUES_OMITTED`: a subscriber may miss them."""
        return msgspec.structs.replace(self, old=None, place=_with_member(self.place, OLD_VALUES_OMITTED))

    def completed(self, row: str, *, reconstructed: bool = False) -> "Change":
        """Return the change with its whole row; its place then says whether that is `RECONSTRUCTED`."""
        place = _with_member(self.place, RECONSTRUCTED) if reconstructed else self.place
        return msgspec.structs.replace(self, row=row, place=place)

    def size(self) -> int:
        """Return about how many bytes this change adds to a message (never fewer)."""
        place, key, row, old = self.place, self.key, self.row, self.old
        size = _OVERHEAD + (len(place) if place.isascii() else len(place.encode()))
        size += len(key) if key.isascii() else len(key.encode())
        if row is not None:
            size += len(row) if row.isascii() else len(row.encode())
        if old is not None:
            size += len(old) if old.isascii() else len(old.encode())
        return size


def _with_member(place: str, name: str) -> str:
    place = place.rstrip().removesuffix("}")
    separator = "" if place.rstrip().endswith("{") else ","
    return f'{place}{separator}"{name}":true}}'


_BETWEEN: Final = '","'
_OVERHEAD: Final = 192  # op, mod_type, sequence (67 characters), commit timestamp, quotes and commas


class ChangeBatch(msgspec.Struct, frozen=True):
    """A decoded change batch: lists of equal length; what the source wrote is still JSON text (``msgspec.Raw``)."""

    header: Header
    op: list[str]
    mod_type: list[str]
    sequence: list[str]
    commit_timestamp: list[str]
    place: list[msgspec.Raw]
    keys: list[msgspec.Raw]
    rows: list[msgspec.Raw]
    old: list[msgspec.Raw]
    header_text: bytes = b""
    """The header's own bytes, so that a change can be cut out under the very same header."""

    def __len__(self) -> int:
        return len(self.sequence)

    def cut(self, index: int) -> bytes:
        """Return one change in a change batch of its own: same header, its JSON text exactly as it came."""
        return b"".join(
            (
                b'{"header":' + self.header_text,
                b',"op":[' + _text(self.op[index]),
                b'],"mod_type":[' + _text(self.mod_type[index]),
                b'],"sequence":[' + _text(self.sequence[index]),
                b'],"commit_timestamp":[' + _text(self.commit_timestamp[index]),
                b'],"place":[' + bytes(self.place[index]),
                b'],"keys":[' + bytes(self.keys[index]),
                b'],"rows":[' + bytes(self.rows[index]),
                b'],"old":[' + bytes(self.old[index]),
                b"]}",
            )
        )


def encode_batch(header: Header, changes: Sequence[Change]) -> bytes:
    """Return the change batch as bytes. ``changes`` may be empty: such a batch announces a table or a column list."""
    return "".join(
        (
            '{"header":' + msgspec.json.encode(header).decode(),
            ',"op":[' + _quoted([c.op for c in changes]),
            '],"mod_type":[' + _quoted([c.mod_type for c in changes]),
            '],"sequence":[' + _quoted([c.sequence for c in changes]),
            '],"commit_timestamp":[' + _quoted([c.commit_timestamp for c in changes]),
            '],"place":[' + ",".join([c.place for c in changes]),
            '],"keys":[' + ",".join([c.key for c in changes]),
            '],"rows":[' + ",".join([c.row if c.row is not None else "null" for c in changes]),
            '],"old":[' + ",".join([c.old if c.old is not None else "null" for c in changes]),
            "]}",
        )
    ).encode()


class NewerFormatError(MisconfiguredError):
    """A change batch of a wire format that this version does not read. Every format has these three fields."""

    def __init__(self, format: int, source: str, table: str) -> None:  # noqa: A002  the field's name
        super().__init__(
            "wire-format-newer",
            f"a change batch of wire format {format} arrived and this version reads up to {FORMAT}: "
            "upgrade the consumer before the readers",
        )
        self.format = format
        self.source = source
        self.table = table

    def __reduce__(self) -> tuple[type["NewerFormatError"], tuple[int, str, str]]:
        return type(self), (self.format, self.source, self.table)


def decode_batch(data: bytes | memoryview) -> ChangeBatch:
    """Return the change batch in a message; its JSON text is not copied.

    NewerFormatError if its format is newer than ours: nothing is wrong with it, the consumer is to be upgraded
    first. PoisonRecordError if it is garbage (UNDECODABLE), a batch followed by more (TRAILING_BYTES), or a batch
    whose lists differ in length (UNEQUAL_LISTS).
    """
    try:
        str(data, "utf-8")  # what stays JSON text is not parsed below, and has to be UTF-8 all the same
        document = _decoded(data)
        header = _header.decode(document.header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse_newer(data)
        message = str(error) or type(error).__name__
        reason = Reason.TRAILING_BYTES if "trailing characters" in message else Reason.UNDECODABLE
        raise PoisonRecordError(reason, f"{message} ({len(data)} bytes)") from error
    if header.format > FORMAT:
        raise NewerFormatError(header.format, header.source, header.table)
    batch = ChangeBatch(
        header,
        document.op,
        document.mod_type,
        document.sequence,
        document.commit_timestamp,
        document.place,
        document.keys,
        document.rows,
        document.old,
        bytes(document.header),
    )
    _check(batch)
    return batch


def _decoded(data: bytes | memoryview) -> "_Document":
    try:
        return _known_words.decode(data)
    except msgspec.ValidationError:  # by another word, or by what no document may hold
        return _document.decode(data)


def _quoted(texts: Sequence[str]) -> str:
    return f'"{_BETWEEN.join(texts)}"' if texts else ""


class _Document(msgspec.Struct):
    header: msgspec.Raw
    op: list[str]
    mod_type: list[str]
    sequence: list[str]
    commit_timestamp: list[str]
    place: list[msgspec.Raw]
    keys: list[msgspec.Raw]
    rows: list[msgspec.Raw]
    old: list[msgspec.Raw]


class _FormatOnly(msgspec.Struct):
    """What every format to come keeps, so that an older version can tell ours from junk that has a `format`."""

    format: int
    source: str
    table: str


class _Peek(msgspec.Struct):
    header: _FormatOnly


_ModType = Literal[
    "INSERT",
    "UPDATE",
    "DELETE",
    "SNAPSHOT",
    "USER",
    "GARBAGE_COLLECTION",
    "SET_CELL",
    "DELETE_CELLS",
    "DELETE_FAMILY",
    "ADD_TO_CELL",
    "MERGE_TO_CELL",
]


class _KnownWords(_Document):
    """Documents as Millrace writes them: of each word there is one object, and not one for each change: 130 bytes."""

    op: list[Op]  # type: ignore[assignment]
    mod_type: list[_ModType]  # type: ignore[assignment]


_document: Final = msgspec.json.Decoder(_Document)
_known_words: Final = msgspec.json.Decoder(_KnownWords)
_header: Final = msgspec.json.Decoder(Header)
_peek: Final = msgspec.json.Decoder(_Peek)
_text: Final = msgspec.json.Encoder().encode


def _check(batch: ChangeBatch) -> None:
    lengths = {
        name: len(getattr(batch, name))
        for name in ("op", "mod_type", "sequence", "commit_timestamp", "place", "keys", "rows", "old")
    }
    if len(set(lengths.values())) > 1:
        raise PoisonRecordError(Reason.UNEQUAL_LISTS, ", ".join(f"{name} {n}" for name, n in lengths.items()))
    missing = set(batch.header.primary_key) - {column.name for column in batch.header.columns}
    if missing:
        raise PoisonRecordError(Reason.UNDECODABLE, f"header: key columns without a type: {', '.join(sorted(missing))}")


def _refuse_newer(data: bytes | memoryview) -> None:
    """Raise NewerFormatError if what we cannot read says that it is of a newer format."""
    try:
        found = _peek.decode(data).header
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if found.format > FORMAT:
        raise NewerFormatError(found.format, found.source, found.table)
