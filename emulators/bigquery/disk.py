"""What has been accepted and not merged yet, on disk: a file per request, so that a killed stand-in loses nothing.

Only with ``--directory``; without it all is in memory. Merged rows are in DuckDB's own file beside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from emulators.bigquery.rows import Rows


@dataclass(frozen=True)
class AcceptedPart:
    """The rows of one request. ``number`` grows with every request; ``ingested`` is in microseconds."""

    number: int
    rows: Rows
    ingested: int


class AcceptedParts:
    """The files of the parts that wait. Not safe for several threads by itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, table: int, part: AcceptedPart) -> None:
        """Write a part; when this returns it outlives the process."""
        kind = "changes" if part.rows.changes else "rows"
        path = self._directory / f"{table}-{part.number:015}-{part.ingested}-{kind}.arrow"
        unfinished = path.with_suffix(".unfinished")
        with ipc.new_file(str(unfinished), part.rows.columns.schema) as file:
            file.write_table(part.rows.columns)
        unfinished.rename(path)

    def read(self, table: int, after: int) -> Iterator[AcceptedPart]:
        """Yield a table's parts with a higher number than ``after``, in their order."""
        for number, path in self._files(table):
            if number > after:
                _, _, ingested, kind = path.stem.split("-")
                with pa.memory_map(str(path)) as file:
                    columns = ipc.open_file(file).read_all()
                yield AcceptedPart(number, Rows(columns, changes=kind == "changes"), int(ingested))

    def remove(self, table: int, last: int) -> None:
        """Remove a table's parts up to a number: they are merged."""
        for number, path in self._files(table):
            if number <= last:
                path.unlink()

    def highest(self) -> int:
        """Return the highest number there is, 0 where there is none."""
        return max((int(path.stem.split("-")[1]) for path in self._directory.glob("*.arrow")), default=0)

    def _files(self, table: int) -> Iterator[tuple[int, Path]]:
        for path in sorted(self._directory.glob(f"{table}-*.arrow")):
            yield int(path.stem.split("-")[1]), path
