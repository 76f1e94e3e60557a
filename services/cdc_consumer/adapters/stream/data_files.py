"""Messages' data in files beside Spark: where source and sink are on one machine, Spark carries only where it is.

Data that travels as a column goes from one worker process to another through two sockets and a shuffle that compresses
it, and that costs almost as much as all that is done with it. A file is written once, to the page cache, and read once.
Its life is a micro-batch: nothing in it is needed again, for what is not acknowledged comes again from Pub/Sub.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import pyarrow as pa

from services.cdc_consumer.core.stream.messages import DATA_AT, MESSAGE_SCHEMA

_SUFFIX: Final = ".data"


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
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        places = []
        for each in data:
            places.append(f"{self._path.name}:{self._size}:{len(each)}")
            left = memoryview(each)
            while left:
                left = left[os.write(self._descriptor, left) :]
            self._size += len(each)
        return places


def with_data(messages: pa.Table, directory: Path | None) -> pa.Table:
    """Return message rows (`MESSAGE_SCHEMA`) with the data that they came without, read from where it was kept.

    OSError, or ValueError, where it is no longer there, or not whole.
    """
    if DATA_AT not in messages.schema.names:
        return messages
    if directory is None:
        raise ValueError(f"message rows with a column {DATA_AT}, and no directory that it is meant of")
    descriptors: dict[str, int] = {}
    data: list[bytes] = []
    with ExitStack() as opened:
        for place in messages[DATA_AT].to_pylist():
            name, offset, size = place.split(":")
            if name not in descriptors:
                descriptors[name] = os.open(directory / name, os.O_RDONLY)
                opened.callback(os.close, descriptors[name])
            data.append(_read(descriptors[name], int(offset), int(size)))
    column = MESSAGE_SCHEMA.get_field_index("data")
    return messages.drop_columns([DATA_AT]).set_column(
        column, MESSAGE_SCHEMA.field(column), pa.array(data, pa.binary())
    )


def forget_data(directory: Path) -> None:
    """Remove the files of a micro-batch that has ended."""
    for path in directory.glob(f"*{_SUFFIX}"):
        path.unlink(missing_ok=True)


def _read(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            raise ValueError(f"{len(data)} bytes of a message's data where {size} were kept")
        data += more
    return data
