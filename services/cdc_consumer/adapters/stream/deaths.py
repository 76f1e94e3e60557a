"""How often a process ended while it handled a suspect message: small files, which no process takes along.

The driver chooses the directory and makes it; a worker that does not find it there (it runs on another machine) or
cannot write into it says that it does not know.
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
from services.cdc_consumer.adapters.stream.kept_file import MIRRORS

_KEPT_FOR: Final = timedelta(days=31)  # no longer does Pub/Sub keep a message
_PROBE: Final = ".probe"
_TOGETHER: Final = ".together"


def choose_directory(checkpoint: str | None) -> Path | None:
    """Make the directory for the files, with the checkpoint if that is on a disk; None if there is nowhere to keep it.

    Elsewhere it is in the temporary place of the machine and not of the process, which would not outlive it.
    """
    directory = Path(tempfile.gettempdir()) / f"millrace-suspects-{os.getuid()}"
    if (beside := on_disk(checkpoint)) is not None:
        directory = beside / "suspects"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = directory.stat().st_uid == os.getuid()  # anyone may have made one in a place that is everyone's
    except OSError as error:
        structlog.get_logger().warning("deaths_not_counted", why=str(error))
        return None
    return directory if ours else None


class DeathsOnDisk:
    """One file per message, or for several that are counted together. ``scope``: whose they are, for ids are its own.

    Where there are both, the message's own file tells.
    """

    def __init__(self, directory: Path | None, scope: str) -> None:
        self._directory = directory if directory is not None and _writable(directory) else None
        self._scope = scope

    def counted(self, messages: Sequence[str]) -> Sequence[int] | None:
        """Return how many processes in a row ended over each message; None if nobody can tell."""
        if self._directory is None:
            return None
        try:
            together: dict[str, int] = {}
            for _file, deaths, names in _files_of_several(self._directory):
                together |= dict.fromkeys(names, deaths)
            return [_number(self._file(self._directory, one), together) for one in messages]
        except OSError as error:
            self._give_up(error)
            return None

    def count(self, messages: Sequence[str], deaths: int) -> None:
        """Remember that number in place of the ones before; nothing is raised if that cannot be done."""
        if self._directory is None or not messages:
            return
        files = [self._file(self._directory, message) for message in messages]
        try:
            if not deaths:
                _forget(self._directory, files)
            elif len(files) == 1:
                _write(files[0], str(deaths))
            else:
                names = [file.name for file in files]
                _write(self._file(self._directory, "\0".join(names), _TOGETHER), "\n".join([str(deaths), *names]))
        except OSError as error:
            self._give_up(error)

    def _file(self, directory: Path, message: str, ending: str = "") -> Path:
        return directory / (hashlib.sha256(f"{self._scope}\0{message}".encode()).hexdigest() + ending)

    def _give_up(self, error: OSError) -> None:
        structlog.get_logger().warning("deaths_not_counted", why=str(error))
        self._directory = None


def _writable(directory: Path) -> bool:
    """Tell whether files can be written; those of messages that nobody has any more are removed."""
    probe = directory / f"{_PROBE}-{os.getpid()}"
    try:
        probe.write_text("1")
        probe.unlink()
        for file in directory.iterdir():
            if not file.name.startswith(MIRRORS) and file.stat().st_mtime < time.time() - _KEPT_FOR.total_seconds():
                file.unlink(missing_ok=True)
    except FileNotFoundError:  # it is not there, or another worker has removed a file first
        return directory.is_dir()
    except OSError as error:
        structlog.get_logger().warning("deaths_not_counted", why=str(error))
        return False
    return True


def _number(file: Path, otherwise: Mapping[str, int]) -> int:
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return otherwise.get(file.name, 0)
    except ValueError:
        return 0


def _write(file: Path, text: str) -> None:
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)  # whole or not at all


def _files_of_several(directory: Path) -> Iterator[tuple[Path, int, Sequence[str]]]:
    """Yield each file that tells of several messages, the number in it, and the names of their own files."""
    for file in directory.glob(f"*{_TOGETHER}"):
        try:
            deaths, *names = file.read_text().split("\n")
            yield file, int(deaths), names
        except (FileNotFoundError, ValueError):  # another worker has removed it; or somebody else has written it
            continue


def _forget(directory: Path, files: Sequence[Path]) -> None:
    """Remove the files of some messages, and their names from all that tell of several."""
    for file in files:
        file.unlink(missing_ok=True)
    gone = {file.name for file in files}
    for file, deaths, names in _files_of_several(directory):
        if left := [name for name in names if name not in gone]:
            if len(left) < len(names):
                _write(file, "\n".join([str(deaths), *left]))
        else:
            file.unlink(missing_ok=True)
