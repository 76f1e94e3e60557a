"""A lock on a file: one process at a time, until that process ends, however it ends."""

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shared.contracts.errors import MisconfiguredError

_LONGEST_OWNER: Final = 300  # bytes


class FileLock:
    """A lock on a file, which holds the number and the host of its owner.

    The file stays: its removal could free another's lock.
    """

    def __init__(self, path: Path, setting: str, refusal: Callable[[str], str]) -> None:
        """``setting`` names the path; ``refusal`` makes the error of the process that has the lock."""
        self._path = path
        self._setting = setting
        self._refusal = refusal

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold it while the block runs; MisconfiguredError at once where another process does, or where none can."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise MisconfiguredError(
                "lock-file-not-opened",
                f"{self._path} cannot be opened: {error.strerror}; make its directory and let this user write there, "
                f"or set {self._setting} to another place",
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, _LONGEST_OWNER, 0).decode(errors="replace").strip() or "unknown"
                raise MisconfiguredError("lock-file-in-use", self._refusal(owner)) from None
            except OSError as error:
                raise MisconfiguredError(
                    "lock-not-supported",
                    f"{self._path} cannot be locked: {error.strerror}; set {self._setting} to a path on a file system "
                    "that has file locks, such as a local disk",
                ) from error
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            except OSError as error:
                raise MisconfiguredError(
                    "lock-file-not-written",
                    f"{self._path} cannot be written: {error.strerror}; make room on its disk, or set {self._setting} "
                    "to another place",
                ) from error
            yield
        finally:
            os.close(descriptor)  # and with it the lock
