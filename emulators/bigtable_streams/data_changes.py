"""A record as the messages of a stream: values cut into chunks, a change cut into a first message and CONTINUATIONs.

Source: google/bigtable/v2/bigtable.proto, ReadChangeStreamResponse. Both ways of cutting may meet in one change. What
the proto leaves empty in the later messages is left empty here, so that a reader that relies on it is found out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from emulators.bigtable_streams.change_log import Record
from emulators.bigtable_streams.protocol import ReadChangeStreamResponse

_TYPES: Final = ReadChangeStreamResponse.DataChange.Type
_USER: Final = _TYPES.Value("USER")
_GARBAGE_COLLECTION: Final = _TYPES.Value("GARBAGE_COLLECTION")
_CONTINUATION: Final = _TYPES.Value("CONTINUATION")


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How finely changes are cut: bytes of one value in a chunk, bytes of values and number of chunks in a message."""

    value_bytes: int = 1_000_000
    message_bytes: int = 1_000_000
    message_chunks: int = 1_000

    def __post_init__(self) -> None:
        if min(self.value_bytes, self.message_bytes, self.message_chunks) < 1:
            raise ValueError("limits are positive")


def messages_of(record: Record, limits: ChunkLimits, token: str) -> Iterator[Any]:
    """Yield the messages of a record: the first names the row, the last is done and carries token and watermark."""
    message = ReadChangeStreamResponse()
    change = message.data_change
    change.row_key = record.row_key
    change.type_ = _USER if record.kind == "USER" else _GARBAGE_COLLECTION
    change.source_cluster_id = record.cluster
    change.commit_timestamp.FromMicroseconds(record.commit)
    change.tiebreaker = record.tiebreaker
    size = 0
    for entry in record.entries:
        for chunk_bytes, fill in _chunks(entry, limits.value_bytes):
            if change.chunks and (
                size + chunk_bytes > limits.message_bytes or len(change.chunks) >= limits.message_chunks
            ):
                yield message
                message, size = ReadChangeStreamResponse(), 0
                change = message.data_change
                change.type_ = _CONTINUATION
            fill(change.chunks.add())
            size += chunk_bytes
    change.done = True
    change.token = token
    change.estimated_low_watermark.FromMicroseconds(record.watermark)
    yield message


def _chunks(entry: Any, limit: int) -> Iterator[tuple[int, Any]]:
    if entry.WhichOneof("mutation") != "set_cell" or len(entry.set_cell.value) <= limit:
        yield len(entry.set_cell.value), lambda chunk: chunk.mutation.CopyFrom(entry)
        return
    value = entry.set_cell.value
    for offset in range(0, len(value), limit):
        chunk = value[offset : offset + limit]
        yield len(chunk), _value_chunk(entry, chunk, offset, len(value))


def _value_chunk(entry: Any, part: bytes, offset: int, size: int) -> Any:
    def fill(chunk: Any) -> None:
        chunk.chunk_info.chunked_value_size = size
        chunk.chunk_info.chunked_value_offset = offset
        chunk.chunk_info.last_chunk = offset + len(part) == size
        cell = chunk.mutation.set_cell
        if offset == 0:  # later chunks carry nothing but the value
            cell.family_name = entry.set_cell.family_name
            cell.column_qualifier = entry.set_cell.column_qualifier
            cell.timestamp_micros = entry.set_cell.timestamp_micros
        cell.value = part

    return fill
