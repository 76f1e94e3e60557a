"""The directory of CHECKPOINT_LOCATION: writable, and of one consumer.

Two queries on one checkpoint number the same micro-batches; Spark finds that late, and ends one of them with a stack
trace. Elsewhere than on a disk (gs://bucket/x) there is no lock, and Spark's own check is all there is.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.cdc_consumer.adapters.spark.spark_version import major_minor
from shared.contracts.errors import MisconfiguredError
from shared.runtime.file_lock import FileLock

if TYPE_CHECKING:  # the processes of the tasks import this module, and nothing of Spark's session
    from pyspark.sql import SparkSession

_LOCK: Final = "consumer.lock"
_FILE_URL: Final = re.compile(r"file:(?://)?(/(?!/).*)")
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_FIX: Final = "let this user write there, or give the consumer another directory (CHECKPOINT_LOCATION)"


_FILES_OF_SPARK: Final = ("metadata", ".metadata.crc", "offsets", "commits", "sources", "state")
"""What Spark keeps there; beside it is what the consumer knows of crashes, deferred messages and mirrors."""
_DAMAGED: Final = "damaged"
_FORM: Final = "v1"
"""The first line of a file of offsets whose last one is the source's offset and nothing else."""


def move_damaged_checkpoint(location: str | None) -> Path | None:
    """Move Spark's files of a checkpoint into the directory `damaged` beside them, and return that; older ones go.

    None where the checkpoint is not on a disk of this machine. Nothing is lost: only Pub/Sub's acks say what is done.
    """
    directory = on_disk(location)
    if directory is None:
        return None
    damaged = directory / _DAMAGED
    shutil.rmtree(damaged, ignore_errors=True)
    damaged.mkdir()
    for name in _FILES_OF_SPARK:
        if (directory / name).exists():
            (directory / name).rename(damaged / name)
    return damaged


def unreadable_offsets(location: str | None) -> Path | None:
    """Return a file of offsets whose last line is cut off and which Spark would read, of a checkpoint on a disk.

    That line is the consumer's own. Spark does not look at it: it hands it to Python, whose error names no file. Spark
    reads the newest file, and the one before it if the newest micro-batch was not committed.
    """
    directory = on_disk(location)
    if directory is None:
        return None
    numbers = sorted(int(each.name) for each in (directory / "offsets").glob("*") if each.name.isdecimal())[-2:]
    if numbers and (directory / "commits" / str(numbers[-1])).exists():
        numbers = numbers[-1:]
    files = [directory / "offsets" / str(number) for number in numbers]
    return next((each for each in files if not _is_readable(each)), None)


def _is_readable(offsets: Path) -> bool:
    """Return whether the last line is whole. A file that is empty, or of another form, is left to Spark."""
    try:
        lines = offsets.read_text(errors="replace").splitlines()
        return lines[:1] != [_FORM] or isinstance(json.loads(lines[-1])["batch"], int)
    except OSError:
        return True
    except (ValueError, LookupError, TypeError):
        return False


def on_disk(location: str | None) -> Path | None:
    """Return the directory of a checkpoint that is on a disk of this machine; None for any other."""
    if location and (url := _FILE_URL.match(location)):
        location = url[1]
    if not location or ":" in location.partition("/")[0]:  # a scheme
        return None
    return Path(location).absolute()


def prepare_checkpoint(session: "SparkSession", location: str) -> str:
    """Return where Spark keeps its checkpoint, whatever its file system for paths without a scheme is (`fs.defaultFS`).

    On a disk it is written in a way that starts few processes (decision 0070): by itself Spark has Hadoop start `chmod`
    and `readlink` a dozen times for each micro-batch. Elsewhere Spark chooses.
    """
    directory = on_disk(location)
    if directory is None:
        return location
    package = f"{_STREAMING}.checkpointing" if major_minor(session.version) >= (4, 1) else _STREAMING
    for name, value in {
        "spark.sql.streaming.checkpointFileManagerClass": f"{package}.FileSystemBasedCheckpointFileManager",
        # No file of checksums beside each file; the file system with them is the one that Hadoop remembers.
        "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "fs.file.impl.disable.cache": "true",
    }.items():
        session.conf.set(name, value)
    return f"file://{directory}"


@contextmanager
def owned_checkpoint(location: str | None) -> Iterator[None]:
    """Own a checkpoint while the block runs, if it is on a disk.

    MisconfiguredError where it cannot be written, or belongs to another consumer.
    """
    directory = on_disk(location)
    if directory is None:
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        parts = [directory, *(part for part in directory.iterdir() if part.is_dir())]
    except OSError as error:
        raise MisconfiguredError(
            "checkpoint-unusable", f"checkpoint {directory} cannot be used: {error.strerror}: {_FIX}"
        ) from error
    for part in parts:
        if not os.access(part, os.R_OK | os.W_OK | os.X_OK):
            raise MisconfiguredError(
                "checkpoint-not-writable", f"checkpoint {directory}: no right to write in {part}: {_FIX}"
            )

    def refusal(owner: str) -> str:
        return (
            f"another consumer (process {owner}) uses the checkpoint {directory}: stop that one first, or give this "
            "one a CHECKPOINT_LOCATION of its own; consumers of one subscription share its messages"
        )

    with FileLock(directory / _LOCK, "CHECKPOINT_LOCATION", refusal).locked():
        yield
