"""Messages' data in files beside Spark: where source and sink are on one machine, Spark carries only where it is.

Data that travels as a column goes from one worker process to another through two sockets and a shuffle that compresses
it, and that costs almost as much as all that is done with it. A file is written once, to the page cache, and read once.
Its content is needed for one micro-batch, for what is not acknowledged comes again from Pub/Sub. The next micro-batch
writes over it, because new pages of the page cache cost more than what is written to them.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa

from services.cdc_consumer.core.stream.messages import DATA_AT, MESSAGE_SCHEMA

_SUFFIX: Final = ".data"
_FREE: Final = ".free"
"""The suffix of a file that may be written over."""


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

    def keep(self, data: Sequence[bytes]) -> Sequence[str]:
        """Write each message's data; return where each is. OSError where there is no room for it."""
        if self._descriptor is None:
            self._descriptor = self._open()
        places = []
        for each in data:
            places.append(f"{self._path.name}:{self._size}:{len(each)}")
            left = memoryview(each)
            while left:
                left = left[os.write(self._descriptor, left) :]
            self._size += len(each)
        return places

    def _open(self) -> int:
        for free in self._path.parent.glob(f"*{_FREE}"):
            with suppress(FileNotFoundError):  # another task has taken it
                free.rename(self._path)
                return os.open(self._path, os.O_WRONLY)
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def with_data(messages: pa.Table, directory: Path | None) -> pa.Table:
    """Return message rows (`MESSAGE_SCHEMA`) with the data that they came without, read from where it was kept.

    OSError, or ValueError, where it is no longer there, or not whole.
    """
    if DATA_AT not in messages.schema.names:
        return messages
    if directory is None:
        raise ValueError(f"message rows with a column {DATA_AT}, and no directory that it is meant of")
    places = [place.split(":") for place in messages[DATA_AT].to_pylist()]
    offsets = np.concatenate(([0], np.cumsum([int(size) for _name, _offset, size in places]))).astype(np.int32)
    buffer = pa.allocate_buffer(int(offsets[-1]))
    descriptors: dict[str, int] = {}
    with ExitStack() as opened, memoryview(buffer) as whole:
        for (name, offset, _size), start, end in zip(places, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            if name not in descriptors:
                descriptors[name] = os.open(directory / name, os.O_RDONLY)
                opened.callback(os.close, descriptors[name])
            _read(descriptors[name], int(offset), whole[start:end])
    data = pa.BinaryArray.from_buffers(pa.binary(), len(places), [None, pa.py_buffer(offsets), buffer])
    column = MESSAGE_SCHEMA.get_field_index("data")
    return messages.drop_columns([DATA_AT]).set_column(column, MESSAGE_SCHEMA.field(column), data)


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
