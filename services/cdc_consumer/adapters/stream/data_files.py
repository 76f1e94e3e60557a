"""The files that messages' data is in, from source to sink, where both are on one machine.

A file is written once, to the page cache, and read once. Its content is needed for one micro-batch, for what is not
acknowledged comes again from Pub/Sub. The next micro-batch writes over it, because new pages of the page cache cost
more than what is written to them.

The process that commits a micro-batch imports this module, and nothing of Arrow.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

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

    def __exit__(self, *_error: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def keep(self, data: Sequence[bytes]) -> Sequence[str]:
        """Write each message's data; return where each is (`DATA_AT`). OSError where there is no room for it."""
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


def forget_data(directory: Path) -> None:
    """Let the files of a micro-batch that has ended be written over by the next."""
    for path in directory.glob(f"*{_SUFFIX}"):
        path.rename(path.with_suffix(_FREE))
