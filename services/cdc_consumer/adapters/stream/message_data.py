"""How messages come from source to sink: as Arrow, with their data in files on one machine, compressed on several.

What travels goes from one Python process to another through two sockets, Java and a shuffle. Data that travels costs as
much there as all that is done with it.

On one machine it is in files (`data_files`). On several machines Java gets fewer bytes.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import structlog

from services.cdc_consumer.core.stream.messages import DATA_AT, MESSAGE_SCHEMA

# Decision 0021 has what it costs, and what Java costs without it.
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
_PLAIN: Final = pa.ipc.IpcWriteOptions(use_threads=False)
_READ: Final = pa.ipc.IpcReadOptions(use_threads=False)
_CHUNK_BYTES: Final = 16 << 20  # bytes: for what is larger than 32 MB glibc asks the system, whatever is free


def pack(messages: pa.RecordBatch) -> bytes:
    """Return messages as an Arrow IPC stream, compressed where their data travels with them."""
    packed = pa.BufferOutputStream()
    options = _PLAIN if DATA_AT in messages.schema.names else _COMPRESSED
    with pa.ipc.new_stream(packed, messages.schema, options=options) as stream:
        stream.write_batch(messages)
    return bytes(packed.getvalue())


def unpack(portions: Iterable[pa.RecordBatch]) -> tuple[pa.Table, int]:
    """Return the messages in rows of `PORTION_SCHEMA`, and how many portions cannot be read: damaged, or too large.

    Spark finds damage only in a shuffle that it compresses itself.
    """
    tables, damaged = [], 0
    for batch in portions:
        for packed, checksum in zip(batch["messages"].to_pylist(), batch["checksum"].to_pylist(), strict=True):
            try:
                if crc32(packed) == checksum:
                    tables.append(pa.ipc.open_stream(packed, options=_READ).read_all())
                    continue
            except (pa.ArrowException, MemoryError) as error:
                structlog.get_logger().error("portion_not_read", bytes=len(packed), error=repr(error))
            damaged += 1
    return pa.concat_tables(tables) if tables else MESSAGE_SCHEMA.empty_table(), damaged


def with_data(messages: pa.Table, directory: Path | None) -> pa.Table:
    """Return messages as `MESSAGE_SCHEMA`, their data read from files in the directory where it is there.

    OSError, or ValueError, where it is no longer there, or not whole.
    """
    if len(messages) and (directory is None) == (DATA_AT in messages.schema.names):
        raise ValueError("the source and the sink of messages do not agree whether their data is in files")
    if directory is None:
        return messages
    data = _read_all(messages[DATA_AT].to_pylist(), directory)
    column = MESSAGE_SCHEMA.get_field_index("data")
    return messages.drop_columns([DATA_AT]).set_column(column, MESSAGE_SCHEMA.field(column), data)


def _read_all(texts: Sequence[str], directory: Path) -> pa.ChunkedArray:
    places = [place.split(":") for place in texts]

    def fill(whole: Sequence[memoryview]) -> None:
        descriptors: dict[str, int] = {}
        with ExitStack() as opened:
            for (name, offset, _size), into in zip(places, whole, strict=True):
                if name not in descriptors:
                    descriptors[name] = os.open(directory / name, os.O_RDONLY)
                    opened.callback(os.close, descriptors[name])
                _read(descriptors[name], int(offset), into)

    return _array([int(size) for _name, _offset, size in places], fill)


def _array(sizes: Sequence[int], fill: Callable[[Sequence[memoryview]], None]) -> pa.ChunkedArray:
    """Return values of those sizes, which ``fill`` writes where they are to be: each is copied once."""
    chunk_numbers = np.cumsum(sizes, dtype=np.int64) // _CHUNK_BYTES
    chunks, places = [], []
    for chunk_sizes in np.split(np.array(sizes, np.int64), np.flatnonzero(np.diff(chunk_numbers)) + 1):
        offsets = np.concatenate(([0], np.cumsum(chunk_sizes))).astype(np.int32)
        buffer = pa.allocate_buffer(int(offsets[-1]))
        whole = memoryview(buffer).cast("B")
        places += [whole[start:end] for start, end in pairwise(offsets.tolist())]
        chunks.append(pa.BinaryArray.from_buffers(pa.binary(), len(chunk_sizes), [None, pa.py_buffer(offsets), buffer]))
    fill(places)
    return pa.chunked_array(chunks, pa.binary())


def _read(descriptor: int, offset: int, into: memoryview) -> None:
    read = 0
    while read < len(into):
        more = os.preadv(descriptor, [into[read:]], offset + read)
        if not more:
            raise ValueError(f"{read} bytes of a message's data where {len(into)} were kept")
        read += more
