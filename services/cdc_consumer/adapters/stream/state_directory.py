"""What a process of the consumer leaves to the next one: small files in one directory that outlives both.

The driver chooses the directory and makes it. A worker that does not find it there (the worker runs on another machine)
or cannot write into it goes on without: it logs that, and raises nothing.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

from services.cdc_consumer.adapters.spark.checkpoint import on_disk

MIRRORS: Final = "mirrors"
"""The name of the file that says when mirrors were made. It is never removed."""
_VALID_FOR: Final = timedelta(hours=1)
"""Longer than any restart is waited for: an older file says nothing of the present."""
_COUNTED_FOR: Final = timedelta(days=31)  # no longer does Pub/Sub keep a message
_PROBE: Final = ".probe"
_TOGETHER: Final = ".together"


def choose_state_directory(checkpoint: str | None) -> Path | None:
    """Make the directory, with the checkpoint if that is on a disk; None where it cannot be made, or is another user's.

    Elsewhere it is in the temporary place of the machine and not of the process, which would not outlive it.
    """
    directory = Path(tempfile.gettempdir()) / f"millrace-suspects-{os.getuid()}"
    if (beside := on_disk(checkpoint)) is not None:
        directory = beside / "suspects"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = directory.stat().st_uid == os.getuid()  # anyone may have made one in a place that is everyone's
    except OSError as error:
        _log_crashes_not_counted(error)
        return None
    return directory if ours else None


def subscription_scope(pubsub_emulator_host: str | None, subscription: str) -> str:
    """Return whose a file about a subscription's messages is."""
    return f"{pubsub_emulator_host or ''} {subscription}"


class StateFile:
    """The port DurableBytes as one file of the directory; without a directory nothing is kept.

    ``scope``: whose it is. Of several processes that write at a time the last one's stays. ``valid_for``: None where
    its age does not matter.
    """

    def __init__(
        self, directory: Path | None, name: str, scope: str, *, valid_for: timedelta | None = _VALID_FOR
    ) -> None:
        self._valid_for = valid_for
        digest = hashlib.sha256(scope.encode()).hexdigest()
        self._file = None if directory is None else directory / f"{name}-{digest}"

    def read(self) -> bytes | None:
        """Return what was written last; None if that is long ago, or cannot be read."""
        if self._file is None:
            return None
        try:
            if self._valid_for and self._file.stat().st_mtime < time.time() - self._valid_for.total_seconds():
                return None
            return self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            structlog.get_logger().warning("file_not_read", name=self._file.name, why=str(error))
            return None

    def write(self, data: bytes) -> None:
        """Keep this in place of what was kept before; nothing is raised if that cannot be done."""
        if self._file is None:
            return
        try:
            _write(self._file, data)
        except OSError as error:
            structlog.get_logger().warning("file_not_written", name=self._file.name, why=str(error))
            self._file = None  # it would be logged again with every task


class CrashCountsOnDisk:
    """The port CrashCounts: one file per message, or for several that are counted together.

    ``scope``: whose messages, for ids are unique in a subscription. Where there are both files, the message's own
    counts.
    """

    def __init__(self, directory: Path | None, scope: str) -> None:
        self._directory = directory if directory is not None and _writable(directory) else None
        self._scope = scope

    def read_counts(self, messages: Sequence[str]) -> Sequence[int] | None:
        """Return how many processes in a row crashed over each message; None if crashes are not counted."""
        if self._directory is None:
            return None
        try:
            together: dict[str, int] = {}
            for _file, crashes, names in _files_of_several(self._directory):
                together |= dict.fromkeys(names, crashes)
            return [_number(self._file(self._directory, one), together) for one in messages]
        except OSError as error:
            self._give_up(error)
            return None

    def set_counts(self, messages: Sequence[str], crashes: int) -> None:
        """Keep that number in place of the ones before; nothing is raised if that cannot be done."""
        if self._directory is None or not messages:
            return
        files = [self._file(self._directory, message) for message in messages]
        try:
            if not crashes:
                _forget(self._directory, files)
            elif len(files) == 1:
                _write(files[0], str(crashes).encode())
            else:
                names = [file.name for file in files]
                _write_together(self._file(self._directory, "\0".join(names), _TOGETHER), crashes, names)
        except OSError as error:
            self._give_up(error)

    def _file(self, directory: Path, message: str, ending: str = "") -> Path:
        return directory / (hashlib.sha256(f"{self._scope}\0{message}".encode()).hexdigest() + ending)

    def _give_up(self, error: OSError) -> None:
        _log_crashes_not_counted(error)
        self._directory = None


def _write(file: Path, data: bytes) -> None:
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(data)
    fresh.replace(file)  # whole or not at all


def _log_crashes_not_counted(error: OSError) -> None:
    structlog.get_logger().warning("crashes_not_counted", why=str(error))


def _writable(directory: Path) -> bool:
    """Return whether files can be written; remove those of messages that Pub/Sub does not keep any longer."""
    probe = directory / f"{_PROBE}-{os.getpid()}"
    try:
        probe.write_text("1")
        probe.unlink()
        for file in directory.iterdir():
            if not file.name.startswith(MIRRORS) and file.stat().st_mtime < time.time() - _COUNTED_FOR.total_seconds():
                file.unlink(missing_ok=True)
    except FileNotFoundError:  # it is not there, or another worker has removed a file first
        return directory.is_dir()
    except OSError as error:
        _log_crashes_not_counted(error)
        return False
    return True


def _number(file: Path, otherwise: Mapping[str, int]) -> int:
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return otherwise.get(file.name, 0)
    except ValueError:
        return 0


def _write_together(file: Path, crashes: int, names: Sequence[str]) -> None:
    _write(file, "\n".join([str(crashes), *names]).encode())


def _files_of_several(directory: Path) -> Iterator[tuple[Path, int, Sequence[str]]]:
    """Yield each file that counts for several messages, the number in it, and the names of their own files."""
    for file in directory.glob(f"*{_TOGETHER}"):
        try:
            crashes, *names = file.read_text().split("\n")
            yield file, int(crashes), names
        except (FileNotFoundError, ValueError):  # another worker has removed it; or another program has written it
            continue


def _forget(directory: Path, files: Sequence[Path]) -> None:
    """Remove the files of some messages, and their names from all that count for several."""
    for file in files:
        file.unlink(missing_ok=True)
    gone = {file.name for file in files}
    for file, crashes, names in _files_of_several(directory):
        if left := [name for name in names if name not in gone]:
            if len(left) < len(names):
                _write_together(file, crashes, left)
        else:
            file.unlink(missing_ok=True)
