"""The messages of a change stream, put together: a change may come in several, and a value in several chunks.

Two kinds of cutting at once: a change that is not ``done`` goes on in messages of type CONTINUATION, and the value of
a SetCell may be cut into contiguous chunks. Token and low watermark come with the last message. The rules, and what
breaks them, are those of Google's Java client (java-bigtable, ChangeStreamStateMachine).

Messages are `google.bigtable.v2.ReadChangeStreamResponse` in the raw class, whose attributes are read and nothing more.
"""

import struct
from hashlib import sha256
from typing import Any, Final, Literal

from services.bigtable_reader.core.stream.records import (
    Aggregated,
    ChangeKind,
    Child,
    CloseStream,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    KeyRange,
    Microseconds,
    RangeToken,
    SetCell,
    StreamRecord,
    UnknownEntry,
)
from shared.contracts.errors import MisconfiguredError

Kept = Literal["all", "names", "number"]
"""Of entries: all of them, all but their values, or how many there are."""

MOST_BYTES: Final = 256 * 1024 * 1024
"""As much as one request may write; a change of more is none that Bigtable takes."""

_USER, _GARBAGE_COLLECTION, _CONTINUATION = 1, 2, 3
_Head = tuple[bytes, ChangeKind, str, Microseconds, int]
_KINDS: Final[dict[int, ChangeKind]] = {_USER: "USER", _GARBAGE_COLLECTION: "GARBAGE_COLLECTION"}
_MUTATIONS_LAST: Final = 7  # the highest field of a mutation that this version knows; none of them is a new kind
_ENTRY_BYTES: Final = 128
_LAST_MICROSECOND: Final = 253_402_300_799_999_999  # 9999-12-31


class BrokenStreamError(ValueError):
    """The messages contradict each other, or the rules; nothing of the change that they begin can be used."""


class Merging:
    """What has come of a change so far. One for each call, whose messages it takes in their order."""

    def __init__(self, *, keep: Kept = "all", most_bytes: int = MOST_BYTES) -> None:
        """Take what is kept of entries; ``most_bytes`` of one change while it comes in chunks."""
        self.keeps_entries = keep != "number"
        self._keep_values = keep == "all"
        self._most_bytes = most_bytes
        self._head: _Head | None = None
        """What the first message said of the change that is not yet done."""
        self._entries: list[Entry] = []
        self._left_out = 0
        self._bytes = 0
        self._cell: Any = None
        """The SetCell whose value is not yet whole."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._wanted = 0

    @property
    def under_way(self) -> bool:
        """Return whether a change has begun and is not done."""
        return self._head is not None

    def take(self, response: Any) -> StreamRecord | None:
        """Return what is complete with a message; None while it is not.

        BrokenStreamError; MisconfiguredError for a change of more bytes than may be held, or a message of a kind
        that this version does not know.
        """
        which = response.WhichOneof("stream_record")
        if which == "data_change":
            return self._data_change(response.data_change)
        if self._head is not None:
            raise BrokenStreamError(f"a {which} in the middle of a change")
        if which == "heartbeat":
            heartbeat = response.heartbeat
            return Heartbeat(
                heartbeat.continuation_token.token, _microseconds(heartbeat.estimated_low_watermark, "a low watermark")
            )
        if which == "close_stream":
            return _close(response.close_stream)
        raise MisconfiguredError(
            "bigtable-record-unknown",
            "the change stream sent a record of a kind that this version does not know: upgrade the reader",
        )

    def whole(self, change: Any) -> DataChange | None:
        """Return a change that came in one message, with no value cut, as nearly all do.

        None for any other message, which `take` then takes. Not to be asked while a change is `under_way`. Of
        ``change`` all chunks are one, and its entries are bytes where none is kept (`stream_messages.py`).
        """
        kind, row_key, cluster = _KINDS.get(change.type_), change.row_key, change.source_cluster_id
        token, chunks = change.token, change.chunks
        mutations = chunks.mutations
        commit, low = change.commit_timestamp, change.estimated_low_watermark
        committed_at = commit.seconds * 1_000_000 + commit.nanos // 1_000
        low_watermark = low.seconds * 1_000_000 + low.nanos // 1_000
        if (
            not (change.done and kind and row_key and token and mutations)
            or chunks.chunk_info  # empty, it says nothing
            or (kind == "USER") != bool(cluster)
            or not 0 < committed_at <= _LAST_MICROSECOND  # 0 is what is not said, too
            or not 0 < low_watermark <= _LAST_MICROSECOND
        ):
            return None
        entries: tuple[Entry, ...] = ()
        if self.keeps_entries:
            keep_values = self._keep_values
            entries = tuple([_entry(mutation, keep_values=keep_values) for mutation in mutations])
        return DataChange(
            row_key,
            kind,
            cluster,
            Microseconds(committed_at),
            change.tiebreaker,
            entries,
            token,
            Microseconds(low_watermark),
            0 if entries else len(mutations),
        )

    def _data_change(self, change: Any) -> DataChange | None:
        head, chunks = self._head, change.chunks
        if head is None:
            head = _head(change, chunks)
        elif change.type_ != _CONTINUATION:
            raise BrokenStreamError("a change begins before another is done")
        entries, keep_entries = self._entries, self.keeps_entries
        for chunk in chunks:
            if self._cell is not None or chunk.chunk_info.chunked_value_size:
                self._take_chunk(chunk)
                continue
            if not keep_entries:
                self._left_out += 1
                continue
            entries.append(_entry(chunk.mutation, keep_values=self._keep_values))
        if change.done:
            return self._done(head, change)
        self._head = head
        self._bytes += change.ByteSize() if self._keep_values else _ENTRY_BYTES * len(chunks)
        if self._bytes > self._most_bytes:
            raise MisconfiguredError(
                "change-too-large-to-hold",
                f"one change of a row ({_unnamed(head[0])}) has more than the {self._most_bytes} bytes that may "
                "be held of a change: raise MOST_CHANGE_BYTES, and the memory of the reader with it",
            )
        return None

    def _take_chunk(self, chunk: Any) -> None:
        """Take a chunk of a value, or what claims to be one. Of a later one only the value counts."""
        info = chunk.chunk_info
        if not info.chunked_value_size:
            raise BrokenStreamError("a value ends before all its chunks have come")
        if chunk.mutation.WhichOneof("mutation") != "set_cell":
            raise BrokenStreamError("a chunk that is no SetCell")
        cell = chunk.mutation.set_cell
        if info.chunked_value_offset != self._size:
            raise BrokenStreamError(f"a chunk from byte {info.chunked_value_offset}, and {self._size} have come")
        if self._cell is None:
            self._cell, self._wanted = cell, info.chunked_value_size
        elif info.chunked_value_size != self._wanted:
            raise BrokenStreamError(f"a value of {self._wanted} bytes has a chunk of one of {info.chunked_value_size}")
        self._size += len(cell.value)
        if self._keep_values:
            self._chunks.append(cell.value)
        if not info.last_chunk:
            return
        if self._size != self._wanted:
            raise BrokenStreamError(f"a value of {self._wanted} bytes came with {self._size}")
        whole, self._cell, self._size = self._cell, None, 0
        value, self._chunks = b"".join(self._chunks), []
        self._entries.append(SetCell(whole.family_name, whole.column_qualifier, whole.timestamp_micros, value))

    def _done(self, head: _Head, last: Any) -> DataChange:
        if self._cell is not None:
            raise BrokenStreamError("a change is done before all chunks of a value have come")
        if not last.token or not last.HasField("estimated_low_watermark"):
            raise BrokenStreamError("a change is done without a token or a low watermark")
        entries, left_out = tuple(self._entries), self._left_out
        self._entries, self._left_out, self._head, self._bytes = [], 0, None, 0
        row_key, kind, cluster, commit, tiebreaker = head
        low = _microseconds(last.estimated_low_watermark, "a low watermark")
        return DataChange(row_key, kind, cluster, commit, tiebreaker, entries, last.token, low, left_out)


def key_range(row_range: Any) -> KeyRange:
    """Return a range of the protocol; each end of it may be open or closed, and none is no bound. BrokenStreamError."""
    start, end = row_range.start_key_closed, row_range.end_key_open
    if row_range.WhichOneof("start_key") == "start_key_open":
        start = row_range.start_key_open + b"\0"
    if row_range.WhichOneof("end_key") == "end_key_closed":
        end = row_range.end_key_closed + b"\0"
    try:
        return KeyRange(start, end)
    except ValueError as error:
        raise BrokenStreamError(f"a range without keys: {error}") from error


def _head(change: Any, chunks: Any) -> _Head:
    """Return row key, kind, source cluster, commit timestamp and tiebreaker of the first message of a change."""
    kind = change.type_
    if kind not in _KINDS:
        what = "a continuation of nothing" if kind == _CONTINUATION else f"a change of type {kind}"
        raise BrokenStreamError(f"{what}, which is neither a user's nor garbage collection's")
    row_key, cluster = change.row_key, change.source_cluster_id
    if not row_key:
        raise BrokenStreamError("a change without a row key")
    if not change.HasField("commit_timestamp"):
        raise BrokenStreamError("a change without a commit timestamp")
    if not chunks:
        raise BrokenStreamError("a change that begins without an entry")
    if bool(cluster) != (kind == _USER):
        raise BrokenStreamError("a user's change has a source cluster, and garbage collection has none")
    return (
        row_key,
        _KINDS[kind],
        cluster,
        _microseconds(change.commit_timestamp, "a commit timestamp"),
        change.tiebreaker,
    )


def _microseconds(timestamp: Any, what: str) -> Microseconds:
    found: int = timestamp.seconds * 1_000_000 + timestamp.nanos // 1_000
    if not 0 <= found <= _LAST_MICROSECOND:
        raise BrokenStreamError(f"{what} outside the years 1970 to 9999: {timestamp.seconds} seconds")
    return Microseconds(found)


def _close(close: Any) -> CloseStream:
    tokens = [RangeToken(key_range(token.partition.row_range), token.token) for token in close.continuation_tokens]
    partitions = [key_range(partition.row_range) for partition in close.new_partitions]
    amiss = ""
    if len(partitions) != len(tokens):  # none: as before there were any
        if partitions:  # a refusal would be answered with the same again; a token is good for its own range at least
            amiss = f"closed with {len(tokens)} tokens for {len(partitions)} new partitions"
        partitions = [token.range for token in tokens]
    status = close.status
    children = tuple(Child(token, partition) for token, partition in zip(tokens, partitions, strict=True))
    return CloseStream(status.code, status.message, children, amiss)


def _unnamed(row_key: bytes) -> str:
    """Return a digest that identifies a row key without showing it: keys are values, and logs have none."""
    return f"its key: {len(row_key)} bytes, SHA-256 {sha256(row_key).hexdigest()[:16]}..."


def _entry(mutation: Any, *, keep_values: bool) -> Entry:
    if mutation.HasField("set_cell"):  # as most are
        cell = mutation.set_cell
        value = cell.value if keep_values else b""
        return SetCell(cell.family_name, cell.column_qualifier, cell.timestamp_micros, value)
    which = mutation.WhichOneof("mutation")
    if which == "delete_from_column":
        delete = mutation.delete_from_column
        times = delete.time_range
        return DeleteCells(
            delete.family_name, delete.column_qualifier, times.start_timestamp_micros, times.end_timestamp_micros
        )
    if which == "delete_from_family":
        return DeleteFamily(mutation.delete_from_family.family_name)
    if which in ("add_to_cell", "merge_to_cell"):
        added = getattr(mutation, which)
        return Aggregated(
            "ADD_TO_CELL" if which == "add_to_cell" else "MERGE_TO_CELL",
            added.family_name,
            _value(added.column_qualifier),
            _timestamp(added.timestamp),
            _value(added.input) if keep_values else b"",
        )
    content = mutation.SerializeToString()
    return UnknownEntry(which.upper() if which else _unknown_kind(content), "", content if keep_values else b"")


def _value(value: Any) -> bytes:
    """Return a `google.bigtable.v2.Value` as a cell's bytes; of what no cell holds, the bytes of the message."""
    match value.WhichOneof("kind"):
        case "raw_value":
            return bytes(value.raw_value)
        case "bytes_value":
            return bytes(value.bytes_value)
        case "string_value":
            return str(value.string_value).encode()
        case "int_value":
            return int(value.int_value).to_bytes(8, "big", signed=True)
        case "float_value":
            return struct.pack(">d", value.float_value)
        case _:
            return bytes(value.SerializeToString())


def _timestamp(value: Any) -> Microseconds:
    match value.WhichOneof("kind"):
        case "raw_timestamp_micros":
            return Microseconds(value.raw_timestamp_micros)
        case "int_value":
            return Microseconds(value.int_value)
        case "timestamp_value":
            return Microseconds(value.timestamp_value.seconds * 1_000_000 + value.timestamp_value.nanos // 1_000)
        case _:
            return Microseconds(0)


def _unknown_kind(mutation: bytes) -> str:
    """Name a mutation that no field of this version holds, by the number of its field in the protocol."""
    position = 0
    while position < len(mutation):
        tag, position = _varint(mutation, position)
        if tag >> 3 > _MUTATIONS_LAST:
            return f"MUTATION_{tag >> 3}"
        position = _behind(mutation, position, tag & 7)
    return "MUTATION_UNKNOWN"


def _behind(message: bytes, position: int, wire_type: int) -> int:
    """Return where a field ends."""
    if wire_type == 0:
        return _varint(message, position)[1]
    if wire_type == 2:
        length, position = _varint(message, position)
        return position + length
    return position + {1: 8, 5: 4}.get(wire_type, len(message))


def _varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(message):
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return number, position
