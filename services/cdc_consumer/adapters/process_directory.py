"""Directories that go with their process. What one that was killed has left is removed by the next start.

In Kubernetes it would fill the disk: `/tmp` outlives the container. A directory is locked while its process lives.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "millrace-process-"


def temporary_places(environ: Mapping[str, str]) -> Collection[Path]:
    """Return all places where `tempfile` may make a directory: on a full disk it does not say which one it takes."""
    named = (environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return {Path(place) for place in (*named, "/tmp", "/var/tmp", "/usr/tmp", ".") if place}  # noqa: S108


def remove_leftovers(places: Iterable[Path]) -> None:
    """Remove the directories of processes that have ended."""
    for place in places:
        with suppress(OSError):  # another user's place
            for left in list(place.glob(f"{_PREFIX}*")):
                with suppress(OSError), _locked(left):  # it fails where the process lives, or is another user's
                    shutil.rmtree(left, ignore_errors=True)


@contextmanager
def process_directory() -> Iterator[Path]:
    """Make a directory for the block."""
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    with _locked(made):
        directory = made.rename(made.with_name(made.name[1:]))  # once it is locked: no other start removes it before
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)  # Java may still remove what is its own


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
