"""How messages' data comes from source to sink: in files beside Spark on one machine, compressed on several.

Data that travels as a column goes from one Python process to another through two sockets, Java and a shuffle. That
costs as much as all that is done with it.

On one machine a file is written once, to the page cache, and read once. Its content is needed for one micro-batch, for
what is not acknowledged comes again from Pub/Sub. The next micro-batch writes over it, because new pages of the page
cache cost more than what is written to them. On several machines Java gets fewer bytes.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa

from services.cdc_consumer.core.stream.messages import DATA_AT, MESSAGE_SCHEMA, Kept

_SUFFIX: Final = ".data"
_FREE: Final = ".free"
"""The suffix of a file that may be written over."""
_CODEC: Final = pa.Codec("zstd", 1)  # decision 0021 has what it costs, and what Java costs without it
_WORTH_COMPRESSING: Final = 1024  # bytes
_PIECE: Final = 16 << 20  # bytes: for what is larger than 32 MB glibc asks the system, whatever is free


class DataFile:
    """A file that one task writes its messages' data to; there is none until the first."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"{uuid4().hex}{_SUFFIX}"
        self._descriptor: int | None = None
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def keep(self, data: Sequence[bytes]) -> Kept:
        """Write each message's data; say where each is. OSError where there is no room for it."""
        if self._descriptor is None:
            self._descriptor = self._open()
        places = []
        for each in data:
            places.append(f"{self._path.name}:{self._size}:{len(each)}")
            left = memoryview(each)
            while left:
                left = left[os.write(self._descriptor, left) :]
            self._size += len(each)
        return [None] * len(data), places

    def _open(self) -> int:
        for free in self._path.parent.glob(f"*{_FREE}"):
            with suppress(FileNotFoundError):  # another task has taken it
                free.rename(self._path)
                return os.open(self._path, os.O_WRONLY)
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def compress(data: Sequence[bytes]) -> Kept:
    """Return each message's data compressed, short data as it is; and its size, with a checksum of what is carried.

    Spark finds damage only in a shuffle that it compresses itself.
    """
    carried = [_CODEC.compress(each, asbytes=True) if len(each) >= _WORTH_COMPRESSING else each for each in data]
    return carried, [f"{len(whole)}:{crc32(each)}" for whole, each in zip(data, carried, strict=True)]


def with_data(messages: pa.Table, directory: Path | None) -> pa.Table:
    """Return rows of `KEPT_SCHEMA` as `MESSAGE_SCHEMA`, their data read from files in the directory, or expanded.

    OSError, or ValueError, where it is no longer there, or not whole.
    """
    if len(messages) and (directory is None) == bool(messages["data"].null_count):
        raise ValueError("the source and the sink of messages do not agree whether their data is in files")
    data = _expanded(messages) if directory is None else _read_all(messages[DATA_AT].to_pylist(), directory)
    column = MESSAGE_SCHEMA.get_field_index("data")
    return messages.drop_columns([DATA_AT]).set_column(column, MESSAGE_SCHEMA.field(column), data)


def _expanded(messages: pa.Table) -> pa.ChunkedArray:
    carried = messages["data"].to_pylist()
    told = [[int(number) for number in each.split(":")] for each in messages[DATA_AT].to_pylist()]

    def fill(whole: Sequence[memoryview]) -> None:
        for each, (size, checksum), into in zip(carried, told, whole, strict=True):
            if crc32(each) != checksum:
                raise ValueError(f"{len(each)} bytes of a message's data that are not those which were sent")
            into[:] = memoryview(each if size < _WORTH_COMPRESSING else _CODEC.decompress(each, size)).cast("B")

    return _array([size for size, _checksum in told], fill)


def _read_all(told: Sequence[str], directory: Path) -> pa.ChunkedArray:
    places = [place.split(":") for place in told]

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
    of_piece = np.cumsum(sizes, dtype=np.int64) // _PIECE
    pieces, places = [], []
    for piece in np.split(np.array(sizes, np.int64), np.flatnonzero(np.diff(of_piece)) + 1):
        offsets = np.concatenate(([0], np.cumsum(piece))).astype(np.int32)
        buffer = pa.allocate_buffer(int(offsets[-1]))
        whole = memoryview(buffer).cast("B")
        places += [whole[start:end] for start, end in pairwise(offsets.tolist())]
        pieces.append(pa.BinaryArray.from_buffers(pa.binary(), len(piece), [None, pa.py_buffer(offsets), buffer]))
    fill(places)
    return pa.chunked_array(pieces, pa.binary())


def forget_data(directory: Path) -> None:
    """Let the files of a micro-batch that has ended be written over by the next."""
    for path in directory.glob(f"*{_SUFFIX}"):
        path.rename(path.with_suffix(_FREE))


def _read(descriptor: int, offset: int, into: memoryview) -> None:
    read = 0
    while read < len(into):
        more = os.preadv(descriptor, [into[read:]], offset + read)
        if not more:
            raise ValueError(f"{read} bytes of a message's data where {len(into)} were kept")
        read += more
